"""The backward pass asks for every gradient, required or not, and raises where one is not."""

from __future__ import annotations

from pytest_ecornn.selfcheck._function_layers import Recomputed

CAUGHT_BY = "property: gradients_required"


class Fault(Recomputed):
    def needed(self, needs: tuple[bool, ...]) -> tuple[bool, ...]:
        return (True,) * len(needs)
