"""Which steps of a row's history are marked, and which are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pytest_ecornn.publishing import change_points
from pytest_ecornn.publishing.change_points import Step, steps, two_sided_p

RUNS, ROWS = 20, 400
Noise = Callable[[np.random.Generator, int], np.ndarray]


def with_intervals(times: Sequence[float], share: float = 0.004) -> list[tuple[float, float]]:
    return [(time * (1 - share), time * (1 + share)) for time in times]


def marked(times: Sequence[float], rows: int = ROWS) -> list[Step]:
    return steps(list(times), with_intervals(times), rows * change_points.places(len(times)))


def noisy(levels: Sequence[float], noise: float, seed: int = 0) -> list[float]:
    return list(np.asarray(levels) * np.exp(np.random.default_rng(seed).normal(0, noise, len(levels))))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("at", [5, 10, 15])
@pytest.mark.parametrize("ratio", [1.05, 1 / 1.05])
def test_a_step_of_five_percent_is_marked_where_it_is(at: int, ratio: float, seed: int) -> None:
    (found,) = marked(noisy([100.0] * at + [100.0 * ratio] * (RUNS - at), 0.006, seed))
    assert found.run == at
    assert found.low < ratio < found.high
    assert found.low > 1 or found.high < 1


@pytest.mark.parametrize("slope", [0.001, 0.003, 0.01, 0.03, -0.01])
@pytest.mark.parametrize("noise", [0.0, 0.002, 0.01])
@pytest.mark.parametrize("seed", range(5))
def test_a_drift_is_no_step(slope: float, noise: float, seed: int) -> None:
    assert marked(noisy([100.0 * (1 + slope) ** run for run in range(RUNS)], noise, seed)) == []


def heavy(random: np.random.Generator, count: int) -> np.ndarray:
    return 0.03 * random.standard_t(3, count)


def spikes(random: np.random.Generator, count: int) -> np.ndarray:
    return 0.005 * random.standard_normal(count) + 0.4 * (random.random(count) < 0.1)


def two_modes(random: np.random.Generator, count: int) -> np.ndarray:
    return 0.002 * random.standard_normal(count) + 0.1 * (random.random(count) < 0.5)


def correlated(correlation: float) -> Noise:
    def draw(random: np.random.Generator, count: int) -> np.ndarray:
        values = [random.standard_normal()]
        for _ in range(count - 1):
            values.append(correlation * values[-1] + (1 - correlation**2) ** 0.5 * random.standard_normal())
        return 0.03 * np.asarray(values)

    return draw


NOISES: dict[str, Noise] = {
    "none": lambda random, count: np.zeros(count),
    "normal": lambda random, count: 0.05 * random.standard_normal(count),
    "heavy tails": heavy,
    "spikes": spikes,
    "two modes": two_modes,
    "correlated": correlated(0.3),
    "much correlated": correlated(0.5),
    "one side": lambda random, count: 0.05 * random.exponential(1.0, count),
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_alone_is_not_marked(name: str) -> None:
    random = np.random.default_rng(1)
    pages = 25
    false = sum(any(marked(100 * np.exp(NOISES[name](random, RUNS)), 80) for _ in range(80)) for _ in range(pages))
    assert false <= 1, f"{false} of {pages} pages of 80 rows have a mark where nothing changed"


def test_two_steps_are_both_marked() -> None:
    found = marked(noisy([100.0] * 8 + [110.0] * 8 + [95.0] * 8, 0.005))
    assert [step.run for step in found] == [8, 16]
    assert [step.ratio for step in found] == pytest.approx([1.10, 0.864], rel=0.01)


def test_more_rows_take_more_proof_and_what_is_too_small_to_matter_is_not_marked() -> None:
    times = noisy([100.0] * 5 + [105.0] * 5, 0.006, 3)
    assert [len(marked(times, rows)) for rows in (1, 100_000)] == [1, 0]
    assert marked(noisy([100.0] * 10 + [101.0] * 10, 0.0002)) == []


def test_runs_are_no_surer_than_their_intervals() -> None:
    times = [100.0] * 5 + [103.0] * 5
    assert len(steps(times, with_intervals(times, 0.002), 5)) == 1
    assert steps(times, with_intervals(times, 0.2), 5) == []


@pytest.mark.parametrize("count", range(2 * change_points.MIN_RUNS))
def test_few_runs_have_no_steps(count: int) -> None:
    assert marked([100.0] * (count // 2) + [200.0] * (count - count // 2)) == []


@pytest.mark.parametrize(
    ("t", "degrees", "chance"),
    [
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (3.182, 3, 0.05),
        (2.228, 10, 0.05),
        (2.845, 20, 0.01),
        (3.883, 19, 0.001),
        (0.0, 7, 1.0),
    ],
)
def test_the_tail_of_students_t(t: float, degrees: int, chance: float) -> None:
    assert two_sided_p(t, degrees) == pytest.approx(chance, rel=2e-3)
    if chance < 1:
        assert change_points.quantile(chance, degrees) == pytest.approx(t, rel=1e-3)
