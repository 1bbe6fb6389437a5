"""A row as several processes measured it: blocks together, intervals by processes, doubts by their mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ecornn.measurement.noise.bounds import ratio_of
from pytest_ecornn.results.replicates import with_replicates
from pytest_ecornn.results.rows import Disturbance, Doubt, Row
from pytest_ecornn.results.statistics import of_replicates
from tests.helpers.reporting_samples import BUSY, CASES, row, timing


def measured(time_us: float, base_us: float = 100.0) -> Row:
    return row("mine", CASES[0], timing=timing(time_us, {"base": base_us}))


def joined(*rows: Row) -> Row:
    return with_replicates(rows[0], rows[1:], 0.99)


def test_the_interval_is_that_of_the_processes() -> None:
    found = joined(measured(100.0), measured(110.0), measured(121.0))
    assert found.timing is not None
    (against,) = found.timing.against
    assert against.replicates == pytest.approx([1.0, 1.1, 1.21])
    assert found.timing.time_us == pytest.approx(110.0)
    assert (against.ratio, against.verdict) == (pytest.approx(1.1), "unclear")
    assert against.low == pytest.approx(1.1 * 1.1 ** (-9.925 / 3**0.5), rel=1e-3)  # Student's t, 99 %, two degrees
    assert len(found.timing.samples_us) == len(against.samples_us) == 3 * len(measured(1.0).timing.samples_us)  # type: ignore[union-attr]
    assert found.notes.endswith("timed in 3 processes")
    assert ratio_of(found.timing, against, 0.99) == of_replicates(against.replicates, 0.99)
    assert Row.from_dict(found.as_dict()) == found


def test_processes_that_agree_decide() -> None:
    found = joined(*(measured(50.0 + step) for step in (0.0, 0.1, 0.2, 0.1)))
    assert found.timing is not None
    assert found.timing.against[0].verdict == "faster"


def test_two_processes_and_other_baselines_count_for_nothing() -> None:
    alone, other = measured(100.0), row("mine", CASES[0], timing=timing(100.0, {"another": 1.0}))
    assert joined(alone, measured(110.0)) == alone
    assert joined(alone, measured(110.0), other, row("mine", CASES[0], status="skipped", reason="no memory")) == alone


def test_a_row_that_fails_in_one_process_has_failed() -> None:
    found = joined(measured(1.0), measured(1.0), row("mine", CASES[0], status="failed", reason="wrong there"))
    assert (found.status, found.timing, found.reason) == ("failed", None, "in a fresh process: wrong there")


def test_a_doubt_of_one_process_counts_by_its_share() -> None:
    rows = [measured(50.0) for _ in range(4)]
    rows[1].timing.against[0].doubts = [Doubt("before", 0.5, 0.5, 0.5)]  # type: ignore[union-attr]
    found = joined(*rows)
    assert found.timing is not None
    (against,) = found.timing.against
    assert [(doubt.cause, doubt.low) for doubt in against.doubts] == [("before", pytest.approx(0.5**0.25))]
    assert against.high == pytest.approx(0.5 / 0.5**0.25)


def test_what_disturbed_the_processes_is_a_mean_over_their_seconds() -> None:
    calm, busy = (
        Disturbance(seconds, 2, others, 0.0, 0.0, 0.0, 0.0, 10, disturbed)
        for seconds, others, disturbed in ((3.0, 0.0, 0), (1.0, 1.0, 9))
    )
    rows = [replace(measured(1.0), timing=replace(timing(1.0, {"base": 1.0}), disturbance=one)) for one in (calm, busy, calm)]
    found = joined(*rows)
    assert found.timing is not None
    assert found.timing.disturbance == Disturbance(7.0, 2, pytest.approx(1 / 7), 0.0, 0.0, 0.0, 0.0, 30, 9)


def test_what_was_chosen_for_its_own_figures_is_measured_afresh() -> None:
    found = with_replicates(measured(150.0), [measured(100.0) for _ in range(3)], 0.99, is_afresh=True)
    assert found.timing is not None
    assert found.timing.against[0].replicates == [1.0, 1.0, 1.0]


def test_processes_that_are_disturbed_alike_decide_nothing() -> None:
    """All others' work was in the candidate's blocks, which agree on a ratio of 2."""
    lost = replace(BUSY, others=1.0, unseen=0.0)
    rows = [measured(200.0 + step) for step in range(3)]
    for row_ in rows:
        assert row_.timing is not None
        row_.timing.disturbance = lost
        row_.timing.lost, row_.timing.delayed = ([value] * len(row_.timing.samples_us) for value in (0.6, 0.0))
        row_.timing.against[0].lost = row_.timing.against[0].delayed = [0.0] * len(row_.timing.samples_us)
    found = joined(*rows)
    assert found.timing is not None
    ratio = ratio_of(found.timing, found.timing.against[0], 0.99)
    assert ratio.low < 1.0 < 2.0 < ratio.high
