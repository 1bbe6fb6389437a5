"""Limits: the most specific wins, and what cannot be read is named."""

from __future__ import annotations

import pytest

from pytest_ecornn.regression.gate_limits import DEFAULT, Thresholds

GIVEN = ["6%", "scan_cpu=3%", " lstm = 10 % ", "scan_cpu:mingru=2%", "device-only=1.5%", "scan_cpu:device-only=.5%"]


@pytest.mark.parametrize(
    ("implementation", "cell", "column", "percent"),
    [
        ("torch_cpu", "gru", "timing", 6),
        ("scan_cpu", "gru", "timing", 3),
        ("torch_cpu", "lstm", "timing", 10),
        ("scan_cpu", "lstm", "timing", 3),
        ("scan_cpu", "mingru", "timing", 2),
        ("torch_cpu", "gru", "replay", 1.5),
        ("torch_cpu", "lstm", "replay", 10),
        ("scan_cpu", "lstm", "replay", 0.5),
        ("scan_cpu", "mingru", "replay", 2),
    ],
)
def test_the_most_specific_limit_wins(implementation: str, cell: str, column: str, percent: float) -> None:
    assert Thresholds(GIVEN).share(implementation, cell, column) == pytest.approx(percent / 100)
    assert Thresholds(GIVEN[::-1]).share(implementation, cell, column) == pytest.approx(percent / 100)


def test_of_two_for_the_same_the_last_wins_and_without_any_there_is_a_default() -> None:
    assert Thresholds(["4%", "lstm=9%", "7%", "lstm=8%"]).share("a", "lstm", "timing") == pytest.approx(0.08)
    assert Thresholds(["4%", "7%"]).share("a", "gru", "timing") == pytest.approx(0.07)
    assert Thresholds().share("a", "gru", "timing") == DEFAULT == 0.05


@pytest.mark.parametrize("text", ["", "5", "%", "-5%", "0%", "five%", "=5%", "a:=5%", ":=5%", "a=b=5%", "a=5", "5%5%", "nan%"])
def test_what_is_no_limit_is_refused_with_what_came(text: str) -> None:
    with pytest.raises(ValueError, match="expected a percentage over 0, such as 5%") as caught:
        Thresholds([text])
    assert str(caught.value).endswith(f"got {text!r}")


def test_a_name_that_nothing_has_is_refused() -> None:
    Thresholds(GIVEN).check(["scan_cpu", "lstm", "mingru"])
    with pytest.raises(ValueError, match="unknown name 'scna': expected one of lstm, as-called, device-only"):
        Thresholds(["scna:lstm=5%"]).check(["lstm"])
