"""Constants are found again in times that the models make of them, in the layout of the sources' tables."""

from __future__ import annotations

import inspect

import pytest
import torch

from pytest_ecornn.implementations._common import gradient_sizes
from pytest_ecornn.implementations._cuda import parameter_gradients
from tests.tools.gradients_times import Timing, drawn, fit, tables


def test_the_tables_of_the_sources_are_found_again_in_times_of_their_models() -> None:
    timings = []
    for sizes, width in drawn(torch.device("cuda"))[:900]:
        launch_us = parameter_gradients.launch_us(
            sizes.rows, sizes.gate_width, sizes.hidden, width, sizes.dtype, sizes.directions
        )
        timings.append(Timing(sizes, width, sizes.are_together(width), launch_us, sizes.products_us(width), 1))
    lines = list(tables(timings))
    assert "\n".join(lines[:2]) in inspect.getsource(parameter_gradients)
    assert "\n".join(lines[2:]) in inspect.getsource(gradient_sizes)


@pytest.mark.parametrize("rows", [[], [[1, 2, 3.0]], [[1, 2, 3.0], [2, 4, 3.0]]])
def test_too_few_times_for_a_fit_are_refused(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=f"determine all constants, got {len(rows)}"):
        fit(rows)
