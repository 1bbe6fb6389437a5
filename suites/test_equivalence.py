"""Every implementation computes the same function as the float64 reference: on drawn cases, and on the cases selected."""

from __future__ import annotations

from pytest_ecornn.run.items.drawn_items import DrawnItem
from pytest_ecornn.run.items.items import NamedCaseItem


def test_drawn_cases(ecornn_drawn: DrawnItem) -> None:
    """Outputs, final states and gradients agree on cases drawn by Hypothesis."""
    ecornn_drawn.run()


def test_fixed_case(ecornn_fixed: NamedCaseItem) -> None:
    """Outputs, final states and gradients agree on one named case."""
    ecornn_fixed.run()
