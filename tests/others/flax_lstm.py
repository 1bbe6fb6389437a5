"""flax.nnx.RNN of an OptimizedLSTMCell, with lengths."""

from pytest_ecornn import Case, Implementation, Weights

from . import _bridge
from ._one_layer import one_layer


def lstm(x, lengths, h, c, w_ih, w_hh, b_ih, b_hh):
    import jax.numpy as jnp
    from flax import nnx

    cell = nnx.OptimizedLSTMCell(w_ih.shape[1], w_hh.shape[1], rngs=nnx.Rngs(0))
    cell.dense_i.kernel[...], cell.dense_h.kernel[...], cell.dense_h.bias[...] = w_ih.T, w_hh.T, b_ih + b_hh
    lengths = lengths.astype(jnp.int32)
    (c, h), output = nnx.RNN(cell)(x, initial_carry=(c[0], h[0]), seq_lengths=lengths, return_carry=True)
    is_step = jnp.arange(x.shape[1]) < lengths[:, None]
    return jnp.where(is_step[..., None], output, 0.0), h[None], c[None]


class FlaxLSTM(Implementation):
    carry, deterministic, costly_shapes = "float32", True, True
    supported = one_layer("lstm", batchfirst="only", ragged=True)

    def build(self, case: Case, weights: Weights):
        return _bridge.layer(_bridge.jax(lstm), case, weights, takes_lengths=True)
