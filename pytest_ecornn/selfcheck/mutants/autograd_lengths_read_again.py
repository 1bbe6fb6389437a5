"""The backward pass reads the caller's lengths again, which may have been refilled for the next batch."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, with_gradient

CAUGHT_BY = "property: lengths_refilled"
CELL = "gru"


class Fault(AroundLoop):
    def call(
        self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        if lengths is None:
            return layer(x, state, lengths)
        given: Tensor = lengths

        def alive(gradient: Tensor) -> Tensor:
            steps = gradient.new_ones(case.steps).cumsum(0)
            mask = steps[None, :] <= given[:, None] if case.batch_first else steps[:, None] <= given[None, :]
            return gradient * mask[..., None]

        return layer(with_gradient(x, alive), state, lengths)
