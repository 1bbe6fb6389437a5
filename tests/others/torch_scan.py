"""A GRU by torch's higher-order operator scan, as torchrl has it."""

import torch
from torch.nn.functional import linear

from pytest_ecornn import Case, Implementation, Weights

from ._one_layer import one_layer


class TorchScan(Implementation):
    carry, deterministic, costly_shapes = "float32", True, True
    supported = one_layer("gru")

    def build(self, case: Case, weights: Weights):
        w_ih, w_hh, b_ih, b_hh = weights.values()

        def step(h, x_gates, w_hh, b_hh):
            x, y = x_gates.chunk(3, -1), linear(h, w_hh, b_hh).chunk(3, -1)
            r, z = (x[0] + y[0]).sigmoid(), (x[1] + y[1]).sigmoid()
            h = torch.lerp((x[2] + r * y[2]).tanh(), h, z)
            return h, h.clone()

        def layer(x, state, lengths):
            x = linear(x.transpose(0, 1) if case.batch_first else x, w_ih, b_ih)
            h = x.new_zeros(case.batch, case.hidden_size) if state is None else state[0]
            final, output = torch.ops.higher_order.scan(step, [h], [x], (w_hh, b_hh))
            return output.transpose(0, 1) if case.batch_first else output, final[None]

        return layer
