"""Haiku's LSTM by dynamic_unroll. It adds 1 to the forget gate's bias, and has the gates in the order i, g, f, o."""

from pytest_ecornn import Case, Implementation, Weights

from . import _bridge
from ._one_layer import one_layer


def lstm(x, h, c, w_ih, w_hh, b_ih, b_hh):
    import haiku as hk
    import jax.numpy as jnp

    def whole(x, h, c):
        output, (h, c) = hk.dynamic_unroll(hk.LSTM(h.shape[1]), x, hk.LSTMState(h, c))
        return output, h[None], c[None]

    i, f, g, o = jnp.split(jnp.concatenate([w_ih, w_hh, (b_ih + b_hh)[:, None]], 1), 4)
    weight = jnp.concatenate([i, g, f.at[:, -1].add(-1), o])
    parameters = {"lstm/linear": {"w": weight[:, :-1].T, "b": weight[:, -1]}}
    return hk.transform(whole).apply(parameters, None, x, h[0], c[0])


class HaikuLSTM(Implementation):
    carry, deterministic, costly_shapes = "float32", True, True
    supported = one_layer("lstm", batchfirst=False)

    def build(self, case: Case, weights: Weights):
        return _bridge.layer(_bridge.jax(lstm), case, weights)
