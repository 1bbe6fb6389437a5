"""Where values lie on an axis, and its ticks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.reporting.pictures.axes import LogAxis, enclosing_ticks, has_place, labels_with_room, powers_of_ten

VALUES = st.floats(1e-100, 1e100)


def test_equal_ratios_are_equal_distances() -> None:
    axis = LogAxis(0.5, 8, 100, 500)
    assert [axis(value) for value in (0.5, 1, 2, 4, 8)] == pytest.approx([100, 200, 300, 400, 500])
    assert (axis.clamp(0.1), axis.clamp(3), axis.clamp(float("inf"))) == (0.5, 3, 8)


@given(VALUES, VALUES, st.integers(5, 12))
def test_ticks_enclose_the_values_and_are_not_too_many(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    ticks = enclosing_ticks(low, high, most)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= most
    assert all(before < after for before, after in pairwise(ticks))
    assert not low <= 1 <= high or any(abs(tick - 1) < 1e-9 for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.3, 4, [0.2, 0.5, 1, 2, 5]),
        (1, 1, [1, 2]),
        (0.5, 20, [0.5, 1, 2, 5, 10, 20]),
        (0.02, 3000, [0.01, 0.1, 1, 10, 100, 1000, 10_000]),
        (1e-9, 1e9, [1e-9, 1e-6, 1e-3, 1, 1e3, 1e6, 1e9]),
    ],
)
def test_ticks_are_ones_twos_and_fives_or_powers_of_ten(low: float, high: float, expected: list[float]) -> None:
    assert enclosing_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_what_an_axis_has_no_place_for(value: float) -> None:
    assert has_place(1.0, 1e-9)
    assert not has_place(1.0, value)


def test_powers_of_ten_lie_between() -> None:
    assert powers_of_ten(0.05, 200) == [0.1, 1, 10, 100]


def test_a_label_gives_way_to_those_before_it() -> None:
    assert labels_with_room([(50, "1x"), (60, "2x"), (100, "5x"), (10, "0.5x")], 14) == [(50, "1x"), (100, "5x"), (10, "0.5x")]
