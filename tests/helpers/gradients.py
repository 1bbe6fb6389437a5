"""Gradients of a recurrent layer's parameters in float64, from those of its gates."""

from __future__ import annotations

import torch
from torch import Tensor


def sums_over_steps(
    d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor, initial: Tensor | None
) -> list[Tensor]:
    """The four gradients of [D, T, B, G*H], GRU's of its product [D, T, B, H], x [T, B, I], output [T, B, D*H], [D, B, H]."""
    d_gates, inputs, output = d_gates.double(), inputs.double(), output.double()
    directions, hidden = len(d_gates), output.shape[-1] // len(d_gates)
    of_states = d_gates.clone()
    if d_product is not None:
        of_states[..., 2 * hidden :] = d_product.double()
    before = torch.zeros(directions, *output.shape[:2], hidden, dtype=torch.float64, device=output.device)
    before[0, 1:] = output[:-1, :, :hidden]
    if directions > 1:
        before[1, :-1] = output[1:, :, hidden:]
    if initial is not None:
        for direction, step in ((0, 0), (1, -1))[:directions]:
            before[direction, step] = initial[direction].double()
    weight_ih = torch.einsum("dtbg,tbi->dgi", d_gates, inputs)
    return [weight_ih, torch.einsum("dtbg,dtbh->dgh", of_states, before), d_gates.sum((1, 2)), of_states.sum((1, 2))]
