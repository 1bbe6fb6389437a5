"""mlx.nn.LSTM."""

from pytest_ecornn import Case, Implementation, Weights

from . import _bridge
from ._one_layer import one_layer


def run(arrays):
    import mlx.core as mx
    import mlx.nn

    def whole(x, h, c, w_ih, w_hh, b_ih, b_hh):
        module = mlx.nn.LSTM(w_ih.shape[1], w_hh.shape[1])
        module.Wx, module.Wh, module.bias = w_ih, w_hh, b_ih + b_hh
        h, c = module(x, h[0], c[0])
        return h, h[:, -1][None], c[:, -1][None]

    inputs = [mx.array(array) for array in arrays]
    return whole(*inputs), lambda gradients: mx.vjp(lambda *a: [*whole(*a)], inputs, [mx.array(one) for one in gradients])[1]


class MlxLSTM(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer("lstm", batchfirst="only")

    def build(self, case: Case, weights: Weights):
        return _bridge.layer(run, case, weights)
