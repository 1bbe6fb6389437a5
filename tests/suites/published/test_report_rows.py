"""Rows of a report by their cases, as pages about published problems read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ecornn.results.rows import AGAIN, Row
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.report_rows import CALLED, REPLAYED, CaseRows, by_case
from tests.helpers.report_rows import report_row, timing
from tests.helpers.studies import SMALL

NAMES = ("mine", "cudnn")


def rows_of(*rows: Row) -> CaseRows:
    return by_case(rows, [SMALL], NAMES)[SMALL]


def test_a_ratio_is_the_baseline_s_time_over_ours() -> None:
    row = report_row("mine", SMALL, timing=timing(100.0, cudnn=250.0))
    assert row.timing
    row.timing.against[0].low, row.timing.against[0].high = 0.25, 0.5
    case = rows_of(row)
    assert case.ratio("mine", "cudnn", CALLED) == Ratio(2.5, 2.0, 4.0)
    assert case.ratio("mine", "cudnn", REPLAYED) is None
    assert case.ratio("cudnn", "mine", CALLED) is None


def test_a_baseline_s_time_is_its_own_row_s_else_that_beside_a_candidate() -> None:
    mine = report_row("mine", SMALL, timing=timing(100.0, cudnn=250.0))
    assert rows_of(mine).time_us("cudnn") == (250.0, 250.0, 250.0)
    own = rows_of(mine, report_row("cudnn", SMALL, timing=replace(timing(240.0), low_us=230.0)))
    assert own.time_us("cudnn") == (240.0, 230.0, 240.0)


@pytest.mark.parametrize(
    ("called", "replayed", "timing_mode"),
    [
        (timing(1.0), timing(1.0), REPLAYED),
        (None, timing(1.0), REPLAYED),
        (timing(1.0, cudnn=2.0), timing(1.0), CALLED),
        (timing(1.0), None, CALLED),
    ],
)
def test_graph_replay_is_shown_unless_more_ran_as_called(called: object, replayed: object, timing_mode: str) -> None:
    row = report_row("mine", SMALL)
    row.timing, row.replay = called, replayed  # type: ignore[assignment]
    assert rows_of(row).timing_mode == timing_mode


def test_what_has_no_time_says_why() -> None:
    mine = report_row("mine", SMALL, timing=timing(1.0))
    mine.notes = "by the cluster; not compared with cudnn: it is wrong; no device-only time of mine: a call takes 0.3 s"
    case = rows_of(mine)
    assert (case.reason("mine", CALLED), case.reason("mine", REPLAYED)) == ("", "a call takes 0.3 s")
    assert case.reason("cudnn") == "it is wrong"
    assert case.reason("absent") == ""
    failed = report_row("cudnn", SMALL, f"needs 9 SMs{AGAIN}pytest --ecornn-case some")
    assert rows_of(mine, failed).reason("cudnn") == "needs 9 SMs"


def test_what_is_not_proven_has_no_time() -> None:
    timed = report_row("mine", SMALL, timing=timing(1.0, cudnn=2.0))
    case = rows_of(timed, replace(timed, kind="properties", case="some", status="failed", reason="broken", timing=None))
    assert not case.is_timed
    assert case.reason("mine") == "a drawn case or a property failed"


def test_cases_are_in_the_order_of_the_set_and_others_are_left_out() -> None:
    other, missing = replace(SMALL, steps=9), replace(SMALL, steps=10)
    rows = [report_row("mine", replace(SMALL, steps=11)), report_row("mine", SMALL), report_row("mine", other)]
    assert list(by_case(rows, [other, missing, SMALL], NAMES)) == [other, SMALL]
