"""torch.ao.nn.quantizable.LSTM in float32, as it is before it is quantized."""

import torch

from pytest_ecornn import Case, Implementation, Weights

from ._one_layer import one_layer


class TorchQuantizable(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer("lstm", max_layers=4, bidirectional=True)

    def build(self, case: Case, weights: Weights):
        module = torch.ao.nn.quantizable.LSTM(
            case.input_size, case.hidden_size, case.layers, case.bias, case.batch_first, 0.0, case.bidirectional
        )
        for name, parameter in weights.items():
            kind, _, suffix = name.rpartition("_l")
            number, _, reverse = suffix.partition("_")
            cell = getattr(module.layers[int(number)], "layer_bw" if reverse else "layer_fw").cell
            gates = cell.igates if kind.endswith("ih") else cell.hgates
            setattr(gates, kind.partition("_")[0], parameter)
        return lambda x, state, lengths: module(x, state)
