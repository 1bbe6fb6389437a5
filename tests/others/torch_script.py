"""An LSTM scripted by TorchScript, in the form of PyTorch's benchmarks/fastrnns/custom_lstms.py.

Gates are indexed: `chunk` is wrong in the backward pass (docs/faults.md).
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn import Case, Implementation, Weights

from ._one_layer import one_layer


def lstm(x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    outputs: list[Tensor] = []
    for x_t in x.unbind(0):
        gates = (linear(x_t, w_ih) + linear(h, w_hh) + bias).unflatten(1, [4, -1])
        i, f, g, o = gates[:, 0], gates[:, 1], gates[:, 2], gates[:, 3]
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h, c


class TorchScript(Implementation):
    carry, deterministic = "float32", True
    supported = one_layer("lstm", dtypes=("float32", "float64"), batchfirst=False)

    def build(self, case: Case, weights: Weights):
        scripted = torch.jit.script(lstm)

        def layer(x, state, lengths):
            h, c = [x.new_zeros(case.batch, case.hidden_size) for _ in range(2)] if state is None else (s[0] for s in state)
            bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]
            output, h, c = scripted(x, h, c, weights["weight_ih_l0"], weights["weight_hh_l0"], bias)
            return output, (h[None], c[None])

        return layer
