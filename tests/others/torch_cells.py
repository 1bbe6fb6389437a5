"""torch.nn's RNNCell, LSTMCell and GRUCell in a loop over time."""

import torch

from pytest_ecornn import Case, Implementation, Weights

from ._one_layer import one_layer

CELLS = {"rnn_tanh": torch.nn.RNNCell, "rnn_relu": torch.nn.RNNCell, "lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}


class TorchCells(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer(*CELLS, dtypes=("float32", "float64"), nobias=True)

    def build(self, case: Case, weights: Weights):
        options = {"nonlinearity": case.cell[4:]} if case.cell.startswith("rnn") else {}
        cell = CELLS[case.cell](case.input_size, case.hidden_size, case.bias, dtype=getattr(torch, case.dtype), **options)
        for name, parameter in weights.items():
            setattr(cell, name.removesuffix("_l0"), parameter)
        time = 1 if case.batch_first else 0

        def layer(x, state, lengths):
            h = None if state is None else (state[0][0], state[1][0]) if case.cell == "lstm" else state[0]
            outputs = []
            for x_t in x.unbind(time):
                h = cell(x_t, h)
                outputs.append(h[0] if case.cell == "lstm" else h)
            return torch.stack(outputs, time), tuple(s[None] for s in h) if case.cell == "lstm" else h[None].clone()

        return layer
