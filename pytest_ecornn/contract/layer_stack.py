"""Layers and directions: what is above one layer in one direction is the same for every implementation that has such a form."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, State, cells


class RunLayer(Protocol):
    def __call__(
        self, suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
    ) -> tuple[Tensor, cells.GateTensors]:
        """One layer in one direction: x as the case lays it out -> output [..., H] laid out alike, final states [B, H].

        suffix: torch.nn's, of the parameters' names. is_projected: x holds this direction's gate pre-activations.
        state: the initial states [B, H], () for none.
        """


def run_layers(case: Case, x: Tensor, state: State, run_layer: RunLayer) -> tuple[Tensor, State]:
    """Output and final state of the whole case, `run_layer` called for each layer and direction, inputs first."""
    cell = cells.get(case.cell)
    initial = cells.unpack_state(state)
    outputs: list[Tensor] = []
    finals: list[cells.GateTensors] = []
    for layer, direction, suffix in cells.parameter_suffixes(case):
        if direction == 0 and layer:
            x, outputs = outputs[0] if case.directions == 1 else torch.cat(outputs, -1), []
        is_projected = case.projected and layer == 0
        given = x.chunk(2, -1)[direction] if is_projected and case.bidirectional else x
        first = tuple(s[layer * case.directions + direction] for s in initial)
        output, final = run_layer(suffix, given, is_projected, first, bool(direction))
        outputs.append(output)
        finals.append(final)
    output = outputs[0] if case.directions == 1 else torch.cat(outputs, -1)
    return output, cells.pack_state(cell, finals)
