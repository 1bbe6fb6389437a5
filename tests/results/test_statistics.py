"""The interval covers the truth, and the verdict keeps its promises under noise, outliers, drift and repeated looks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pytest_ecornn.results.statistics import (
    CONFIDENCE,
    MIN_PAIRS,
    Ratio,
    change,
    is_conclusive,
    median_interval,
    of_replicates,
    pair_noise,
    paired_ratio,
    per_comparison_confidence,
    student,
    verdict,
)
from tests.tools.gate_noise import Machine

D = 0.05


def test_median_interval_of_few_samples_is_their_range() -> None:
    assert median_interval([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 1.0, 5.0)
    assert median_interval([7.0]) == (7.0, 7.0, 7.0)
    assert median_interval([1.0, 2.0]) == (1.5, 1.0, 2.0)


def test_median_interval_leaves_out_what_the_binomial_allows() -> None:
    # P(Bin(20, 1/2) <= 3) = 0.00129 and P(<= 4) = 0.0059: the 4th smallest and the 4th largest.
    assert median_interval([float(n) for n in range(20)], 0.99) == (9.5, 3.0, 16.0)


@pytest.mark.parametrize("count", [8, 20, 101, 3000])
def test_median_interval_covers_the_median(count: int) -> None:
    random = np.random.default_rng(count)
    samples = random.lognormal(0.0, 1.0, (400, count))
    inside = [low <= 1.0 <= high for _, low, high in map(median_interval, samples.tolist())]
    assert np.mean(inside) >= 0.97


def test_an_outlier_moves_neither_median_nor_bounds() -> None:
    samples = [100.0 + n % 5 for n in range(20)]
    assert median_interval([*samples, 1e9])[2] < 105


@pytest.mark.parametrize("confidence", [0.0, 1.0, 99.0])
def test_a_confidence_outside_0_to_1_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 1, got {confidence}"):
        median_interval(list(range(10)), confidence)


def test_no_samples_unequal_pairs_and_times_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="got none"):
        median_interval([])
    with pytest.raises(ValueError, match="got 4 and 3"):
        paired_ratio([1.0] * 4, [1.0] * 3)
    with pytest.raises(ValueError, match="at least 3 pairs, got 2"):
        paired_ratio([1.0] * 2, [1.0] * 2)
    with pytest.raises(ValueError, match=r"above 0, got 0\.0"):
        paired_ratio([1.0, 0.0, 1.0], [1.0] * 3)


def test_ratio_is_the_candidates_time_over_the_baselines_and_swaps_to_its_inverse() -> None:
    random = np.random.default_rng(0)
    a, b = random.lognormal(0.7, 0.1, 21).tolist(), random.lognormal(0.0, 0.1, 21).tolist()
    there, back = paired_ratio(a, b), paired_ratio(b, a)
    assert 1.7 < there.low < there.ratio < there.high < 2.4
    assert [back.ratio, back.high, back.low] == pytest.approx([1 / there.ratio, 1 / there.low, 1 / there.high])
    assert paired_ratio(a, b) == there


def test_drift_that_both_share_cancels() -> None:
    drift = np.geomspace(1.0, 10.0, 20)
    ratio = paired_ratio((1.2 * drift).tolist(), drift.tolist())
    assert [ratio.low, ratio.ratio, ratio.high] == pytest.approx([1.2] * 3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.06, 1.20, "slower"),
        (1.04, 1.20, "unclear"),
        (0.96, 1.04, "same"),
        (0.90, 1.04, "unclear"),
        (0.80, 0.94, "faster"),
        (0.80, 0.96, "unclear"),
        (0.80, 1.20, "unclear"),
    ],
)
def test_verdict_needs_the_whole_interval(low: float, high: float, expected: str) -> None:
    assert verdict(Ratio((low * high) ** 0.5, low, high), D) == expected
    assert is_conclusive(expected) == (expected != "unclear")


def test_three_pairs_decide_only_what_is_plain() -> None:
    assert verdict(paired_ratio([3.0, 3.1, 2.9], [1.0, 1.0, 1.0]), D) == "slower"
    assert verdict(paired_ratio([1.06, 1.10, 1.08], [1.0, 1.0, 1.0]), D) == "unclear"


def _sequential(true: float, most: int, machine: Machine, fewest: int = MIN_PAIRS) -> tuple[str, bool]:
    """One measurement as it is run, with a look after every pair: its verdict, and whether the interval holds the truth."""
    candidate, baseline = machine.times(true, most)
    for pairs in range(fewest, most + 1):
        ratio = paired_ratio(candidate[:pairs], baseline[:pairs])
        if is_conclusive(found := verdict(ratio, D)):
            break
    return found, ratio.low <= true <= ratio.high


@pytest.mark.parametrize("sigma", [0.02, 0.04])
@pytest.mark.parametrize("most", [30, 100])
def test_verdicts_are_right_though_pairs_are_added_until_decided(sigma: float, most: int) -> None:
    machine, runs = Machine(1, sigma, arm=0.0), 400
    groups = [[_sequential(true, most, machine) for _ in range(runs)] for true in (1.0, 1.1, 1 / 1.1)]
    counts = [Counter(found for found, _ in group) for group in groups]
    equal, slower, faster = counts
    assert equal["faster"] + equal["slower"] <= 0.02 * runs, counts
    assert equal["unclear"] <= 0.20 * runs, counts
    assert slower["slower"] >= 0.90 * runs, counts
    assert faster["faster"] >= 0.90 * runs, counts
    assert slower["faster"] + slower["same"] + faster["slower"] + faster["same"] <= 0.02 * runs, counts
    for group in groups:
        assert np.mean([inside for _, inside in group]) >= 0.97


@pytest.mark.parametrize("sigma", [0.04, 0.10])
def test_few_pairs_of_slow_calls_hardly_ever_mislead(sigma: float) -> None:
    machine, runs = Machine(2, sigma, arm=0.0), 1000
    found = Counter(_sequential(1.0, 10, machine, fewest=3)[0] for _ in range(runs))
    assert found["faster"] + found["slower"] <= 0.02 * runs, found


def test_many_verdicts_are_right_together() -> None:
    """Of 200 runs of 40 equal pairs of implementations each, 5 in 100 may have an interval that misses 1."""
    assert per_comparison_confidence(1) == per_comparison_confidence(5) == CONFIDENCE
    confidence, random, missed = per_comparison_confidence(40), np.random.default_rng(11), 0
    for _ in range(200):
        ratios = [paired_ratio(*random.lognormal(0.0, 0.03, (2, 24)), confidence) for _ in range(40)]
        missed += any(not one.low <= 1.0 <= one.high for one in ratios)
    assert missed <= 10


def test_the_spread_of_pairs_is_their_noise_whatever_the_ratio_and_the_outliers() -> None:
    random = np.random.default_rng(5)
    times = random.lognormal(0.0, 0.02, (2, 2000)) * [[300.0], [100.0]]
    times[0, :100] *= 10
    assert pair_noise(*times) == pytest.approx(0.02 * 2**0.5, rel=0.1)


# Several processes.


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 3, 5.841), (0.99, 4, 4.604), (0.99, 15, 2.947), (0.99, 30, 2.750)],
)
def test_student_is_as_tabulated(confidence: float, freedom: int, expected: float) -> None:
    assert student(confidence, freedom) == pytest.approx(expected, abs=6e-4)


def test_an_interval_by_processes_holds_what_differs_between_them() -> None:
    random = np.random.default_rng(1)
    samples = 1.3 * np.exp(random.normal(0, 0.02, (2000, 5)))
    inside = [ratio.low <= 1.3 <= ratio.high for ratio in map(of_replicates, samples.tolist())]
    assert 0.985 <= np.mean(inside) <= 0.995


@pytest.mark.parametrize("processes", [(5, 5), (3, 12), (5, 1), (1, 5)])
def test_a_change_by_processes_is_missed_as_often_as_promised(processes: tuple[int, int]) -> None:
    random, misses = np.random.default_rng(2), 0
    for _ in range(2000):
        then, now = (np.exp(random.normal(0, 0.02, count)).tolist() for count in processes)
        ratios = [of_replicates(one, 0.95) if len(one) > 1 else Ratio(one[0], one[0], one[0]) for one in (then, now)]
        found = change(*ratios, 0.95)
        misses += not found.low <= 1 <= found.high
    assert 60 <= misses <= 140


def test_fewer_than_three_processes_promise_nothing() -> None:
    with pytest.raises(ValueError, match=r"expected at least 3 values above 0, got \[1.0, 2.0\]"):
        of_replicates([1.0, 2.0])
    with pytest.raises(ValueError, match="above 0, got"):
        of_replicates([1.0, 2.0, 0.0])
