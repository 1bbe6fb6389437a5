"""jax.experimental.rnn's LSTM, as a CPU runs it: lstm_ref."""

from functools import cache, partial

from pytest_ecornn import Case, Implementation, Weights

from . import _bridge
from ._one_layer import one_layer


def lstm(layers: int, bidirectional: bool, x, lengths, h, c, *weights):
    import jax.numpy as jnp
    from jax.experimental.rnn import lstm_ref

    by_kind = (dict(enumerate(weights[kind::4])) for kind in range(4))
    options = (x.shape[2], h.shape[2], layers, 0.0, bidirectional)
    output, h, c = lstm_ref(x, h, c, *by_kind, lengths.astype(jnp.int32), *options)
    is_step = jnp.arange(x.shape[1]) < lengths[:, None]
    return jnp.where(is_step[..., None], output, 0.0), h, c


@cache
def compiled(layers: int, bidirectional: bool) -> _bridge.Run:
    return _bridge.jax(partial(lstm, layers, bidirectional))


class JaxLSTM(Implementation):
    carry, deterministic, costly_shapes = "float32", True, True
    supported = one_layer("lstm", max_layers=4, bidirectional=True, batchfirst="only", ragged=True)

    def build(self, case: Case, weights: Weights):
        return _bridge.layer(compiled(case.layers, case.bidirectional), case, weights, takes_lengths=True)
