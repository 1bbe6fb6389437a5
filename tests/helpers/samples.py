"""Implementations that end-to-end tests write into a foreign directory: one right, and ways of being wrong."""

from __future__ import annotations

RIGHT = """
import torch
from pytest_ecornn import Cost, Implementation

class Right(Implementation):
    carry = "storage"
    deterministic = True

    def unsupported(self, case, device):
        if case.cell != "lstm" or case.dtype != "float32" or case.ragged or case.projected or case.density < 1:
            return "runs a plain LSTM in float32"
        if case.layers > 1 or case.bidirectional or case.batch_first or not case.bias or case.device != "cpu":
            return "runs one layer in one direction, time first, with biases"
        return None

    def build(self, case, weights):
        def layer(x, state, lengths):
            w_ih, w_hh, b_ih, b_hh = (weights[n + "_l0"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            zeros = x.new_zeros(case.batch, case.hidden_size)
            h, c = (zeros, zeros) if state is None else (state[0][0], state[1][0])
            outputs = []
            for gates in (x @ w_ih.T + b_ih).unbind(0):
                i, f, g, o = (gates + h @ w_hh.T + b_hh).chunk(4, -1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                outputs.append(h)
            return torch.stack(outputs), (h[None], c[None])
        return layer

    def cost(self, case):
        rows, sides = case.steps * case.batch, case.input_size + case.hidden_size
        times = 3 if case.training else 1
        return Cost(times * 4 * (rows + 4 * case.hidden_size) * sides, times * 8 * rows * case.hidden_size * sides)
"""
WRONG = RIGHT.replace("i, f, g, o = (", "f, i, g, o = (")
RAISES = RIGHT.replace("outputs = []", "raise RuntimeError('no | such\\n`kernel`')", 1)
WRONG_SHAPE = RIGHT.replace("return torch.stack(outputs), (", "return torch.stack(outputs)[1:], (")
WRONG_DTYPE = RIGHT.replace("return torch.stack(outputs), (", "return torch.stack(outputs).double(), (")
NOT_FINITE = RIGHT.replace("return torch.stack(outputs), (", "return torch.stack(outputs) * float('nan'), (")
NO_STATE = RIGHT.replace(", (h[None], c[None])", "")
REMEMBERS = RIGHT.replace(
    "        return layer\n",
    """        first = []
        def remembering(x, state, lengths):
            first.append(first[0] if first and not x.requires_grad and len(first) > 1 else layer(x, state, lengths))
            return first[-1]
        return remembering
""",
)
CASE = "lstm-T6-B3-H8-float32"
