"""equinox.nn.GRUCell, mapped over the batch and scanned over time."""

from pytest_ecornn import Case, Implementation, Weights

from . import _bridge
from ._one_layer import one_layer


def gru(x, h, w_ih, w_hh, b_ih, b_hh):
    import equinox as eqx
    import jax

    cell = eqx.nn.GRUCell(w_ih.shape[1], w_hh.shape[1], key=jax.random.key(0))
    bias = b_ih.at[: -w_hh.shape[1]].add(b_hh[: -w_hh.shape[1]])
    cell = eqx.tree_at(lambda c: (c.weight_ih, c.weight_hh, c.bias, c.bias_n), cell, (w_ih, w_hh, bias, b_hh[-w_hh.shape[1] :]))

    def step(h, x):
        h = jax.vmap(cell)(x, h)
        return h, h

    final, output = jax.lax.scan(step, h[0], x)
    return output, final[None]


class EquinoxGRU(Implementation):
    carry, deterministic, costly_shapes = "float32", True, True
    supported = one_layer("gru", batchfirst=False)

    def build(self, case: Case, weights: Weights):
        return _bridge.layer(_bridge.jax(gru), case, weights)
