"""torchrl.modules.LSTM, whose loop over time is Python's."""

from pytest_ecornn import Case, Implementation, Weights

from ._one_layer import one_layer


class TorchrlLSTM(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer("lstm", batchfirst="only", max_layers=4, nobias=True)

    def build(self, case: Case, weights: Weights):
        from torchrl.modules import LSTM

        module = LSTM(case.input_size, case.hidden_size, case.layers, bias=case.bias)
        for name, parameter in weights.items():
            setattr(module, name, parameter)
        return lambda x, state, lengths: module(x, state)
