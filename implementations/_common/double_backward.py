"""Gradients that support double backward: those of a loop over time, by torch's own operators in float32.

A backward pass with create_graph=True makes them. It computes the results once more, from what the call was given. The second
backward pass multiplies in the process's precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.input_projection import held
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS

Options = tuple[str, bool, bool, bool, bool]  # cell, batch_first, bidirectional, projected, tf32


def differentiable_gradients(
    wanted: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None,
    d_results: Sequence[Tensor | None], how: Options,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of x, the initial states and the weights, in that order, None where none is wanted or none is left.

    d_results: gradients of the results of `run_loop`, None for zeros.
    """
    with torch.enable_grad(), held(x.float(), how[4]):
        # Aliases, so that a gradient stops at them: one input may depend on another, or be the same tensor.
        aliases = [None if one is None else one.view_as(one) for one in (x, *first, *weights)]
        inputs = [one for one, is_wanted in zip(aliases, wanted, strict=True) if is_wanted and one is not None]
        of_states, of_weights = aliases[1 : 1 + len(first)], aliases[1 + len(first) :]
        assert aliases[0] is not None
        results = run_loop(aliases[0], [one for one in of_states if one is not None], of_weights, lengths, how)
        pairs = [(result, gradient) for result, gradient in zip(results, d_results, strict=True) if gradient is not None]
        if not pairs:
            return [None] * len(wanted)
        outputs, gradients = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=True, allow_unused=True))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def run_loop(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, how: Options
) -> list[Tensor]:
    """Output and final states [L*D, B, H] of all layers and directions.

    x: [T, B, I], or [B, T, I] with batch_first; W_ih x without biases where projected. first: [L*D, B, H] each, () for zeros.
    weights: of each layer and direction weight_ih (None where x is projected), weight_hh, bias_ih and bias_hh (None for none).
    """
    name, batch_first, bidirectional, _, is_tf32 = how
    directions, cell, count = 2 if bidirectional else 1, cells.get(name), len(PARAMETERS)
    rows, finals = (x.transpose(0, 1) if batch_first else x).float(), []
    with held(rows, is_tf32):
        for layer in range(len(weights) // count // directions):
            outputs = []
            for track in range(layer * directions, (layer + 1) * directions):
                parameters = weights[count * track : count * (track + 1)]
                weight_ih, weight_hh, bias_ih, bias_hh = (None if one is None else one.float() for one in parameters)
                assert weight_hh is not None
                recurrent = {"weight_hh": weight_hh} | ({} if bias_hh is None else {"bias_hh": bias_hh})
                x_gates = _input_product(rows, weight_ih, bias_ih, track % directions, directions)
                zeros = x_gates.new_zeros(x_gates.shape[1], weight_hh.shape[1])
                carry = tuple(state[track].float() for state in first) or (zeros,) * len(cell.states)
                is_reverse = track % directions == 1
                output, final = cells.loop_over_time(cell, x_gates, carry, recurrent, lengths, None, is_reverse)
                outputs.append(output)
                finals.append(final)
            rows = torch.cat(outputs, -1)
    output = rows.transpose(0, 1) if batch_first else rows
    return [one.to(x.dtype) for one in (output, *(torch.stack(of_state) for of_state in zip(*finals, strict=True)))]


def _input_product(rows: Tensor, weight: Tensor | None, bias: Tensor | None, direction: int, directions: int) -> Tensor:
    """W_ih x + b_ih of a direction. weight: None where the rows hold W_ih x of all directions."""
    if weight is not None:
        return linear(rows, weight, bias)
    given = rows.chunk(directions, -1)[direction]
    return given if bias is None else given + bias
