"""Gradients that support double backward: those of a loop over time, by torch's own operators in float32.

A backward pass with create_graph=True makes them. It computes the results once more, from what the call was given. The second
backward pass multiplies in the process's precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, cells
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
    cell, batch_first, bidirectional, is_projected, _ = how
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    _, weight_hh, *_ = weights
    assert weight_hh is not None
    hidden, directions = weight_hh.shape[1], 2 if bidirectional else 1
    case = Case(
        cell=cell, steps=steps, batch=batch, hidden_size=hidden, input_size=hidden if is_projected else x.shape[2],
        layers=len(weights) // len(PARAMETERS) // directions, bidirectional=bidirectional, batch_first=batch_first,
        projected=is_projected,
    )  # fmt: skip
    names = [name + suffix for _, _, suffix in cells.parameter_suffixes(case) for name in PARAMETERS]
    parameters = {name: weight.float() for name, weight in zip(names, weights, strict=True) if weight is not None}
    rows = x.float()
    if is_projected:  # the reference adds no bias to what is projected
        zeros = rows.new_zeros(weight_hh.shape[0])
        rows = rows + torch.cat([parameters.get(f"bias_ih_l0{end}", zeros) for end in ("", "_reverse")[:directions]])
    output, final = cells.reference(case, parameters, rows, tuple(state.float() for state in first) or None, lengths)
    return [one.to(x.dtype) for one in (output, *cells.unpack_state(final))]
