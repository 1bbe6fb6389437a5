"""The gate judges ratios to a common anchor, promises few false alarms, and finds what did get slower."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ecornn import reporting
from pytest_ecornn.regression import gate
from pytest_ecornn.regression.gate_limits import Thresholds
from pytest_ecornn.reporting import ReportError, gate_tables, github
from pytest_ecornn.results.rows import Doubt
from pytest_ecornn.results.statistics import Ratio, paired_ratio
from pytest_ecornn.suites.acceptance import gate_false_alarms
from pytest_ecornn.system import machine
from tests.helpers.reporting.outputs import printed
from tests.helpers.reporting_samples import BUSY, CASES, HOSTILE, drawn, row, sample_rows, sample_run
from tests.tools.gate_noise import Machine, compared, one, replayed


def verdicts(outcome: gate.RegressionReport) -> dict[str, str]:
    return {found.implementation: found.verdict for found in outcome.findings}


# The rule.


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, "not slower"), (1.04, "not slower"), (1.05, "unclear"), (1.1, "slower"), (0.8, "faster")]
)
def test_a_slower_machine_is_not_a_slower_kernel(factor: float, expected: str) -> None:
    then, now = one("a", 100.0, {"base": 200.0}), one("a", 300.0 * factor, {"base": 600.0})
    (found,) = compared([then], [now]).findings
    assert (found.verdict, found.anchor, found.times_us) == (expected, "base", (100.0, 300.0 * factor))
    assert found.change.ratio == pytest.approx(factor)  # type: ignore[union-attr]


def test_the_anchor_is_the_first_baseline_of_both_runs_that_is_right_in_both() -> None:
    then = [one("a", 100.0, {"y": 100.0, "x": 100.0, "w": 100.0}), one("x", 100.0, {})]
    now = [one("a", 100.0, {"z": 50.0, "x": 50.0, "y": 100.0, "w": 50.0}), row("x", CASES[0], status="failed")]
    assert compared(then[:1], now[:1]).findings[0].anchor == "x"
    assert compared(then, now).findings[0].anchor == "y"


def test_a_row_without_an_anchor_is_shown_and_not_judged() -> None:
    then, now = (
        [one("base", 100.0, {}), one("a", 50.0, {"base": 100.0})],
        [one("base", 900.0, {}), one("a", 90.0, {"z": 100.0})],
    )
    outcome = compared(then, now)
    assert verdicts(outcome) == {"base": "not judged", "a": "not judged"}
    assert outcome.findings[1].reason == "no anchor: baselines then base, now z"
    assert outcome.problems == ["no row could be judged"]


def test_a_strict_comparison_fails_for_what_it_cannot_decide() -> None:
    then = [one(name, 100.0, {"base": 100.0}) for name in ("decided", "lost", "unclear")] + [one("base", 100.0, {})]
    now = [one("decided", 100.0, {"base": 100.0}), one("lost", 100.0, {"z": 100.0}), one("unclear", 105.0, {"base": 100.0})]
    outcome = compared(then, [*now, one("base", 500.0, {})])
    assert outcome.problems == []
    assert [found.implementation for found in outcome.findings if outcome.is_due(found)] == ["unclear"]  # it looks slower
    outcome.is_strict = True
    assert outcome.problems == ["2 undecided, by --ecornn-strict"]
    assert {found.implementation for found in outcome.undecided} == {"lost", "unclear"}
    noisy = compared([one("a", 100.0, {"base": 100.0})], [one("a", 100.0, {"base": 100.0})])
    noisy.findings[0] = replace(noisy.findings[0], change=Ratio(1.0, 0.9, 1.1), verdict="unclear")
    assert not noisy.is_due(noisy.findings[0])
    noisy.is_strict = True
    assert noisy.is_due(noisy.findings[0])


def test_a_disturbed_row_that_is_stored_is_no_base() -> None:
    """As stored with four spinning processes on two processors: every later run would have failed."""
    then, now = [one("a", 100.0, {"base": 23_000.0})], [one("a", 230.0, {"base": 100.0})]
    then[0].timing.disturbance = BUSY  # type: ignore[union-attr]
    outcome = compared(then, now)
    assert verdicts(outcome) == {"a": "not judged"}
    assert outcome.findings[0].reason.startswith("the stored row was disturbed: 75% of blocks disturbed: other processes")
    assert any(line.startswith("1 not judged: the stored row was disturbed") for line in gate_tables.summary_lines(outcome))
    outcome.is_strict = True
    assert "1 undecided, by --ecornn-strict" in outcome.problems


def test_a_report_is_of_no_use_where_each_of_its_ratios_is_disturbed_too_short_or_absent() -> None:
    usable, busy = (one(name, 100.0, {"base": 100.0}) for name in ("a", "b"))
    busy.timing.disturbance = BUSY  # type: ignore[union-attr]
    assert gate.unusable([usable, busy]) == gate.unusable([]) == ""
    assert gate.unusable([busy]).startswith("75% of blocks disturbed: other processes took")
    short = one("c", 100.0, {"base": 100.0})
    for blocks in (short.timing, short.timing.against[0]):  # type: ignore[union-attr]
        blocks.samples_us = blocks.samples_us[:2]  # type: ignore[union-attr]
    assert gate.unusable([short]) == "expected at least 3 pairs, got 2 and 2 times"
    assert gate.unusable([one("base", 100.0, {})]) == "nothing took turns with a baseline"
    assert gate.unusable([row("d", CASES[0], status="skipped")]) == ""


def test_a_row_that_is_disturbed_now_is_not_slower_unless_by_more_than_that_has_cost() -> None:
    then = [one("a", 100.0, {"base": 100.0})]
    for factor, expected in ((2.0, "unclear"), (50.0, "slower")):
        now = [one("a", 100.0 * factor, {"base": 100.0})]
        timing: Any = now[0].timing
        timing.disturbance = BUSY
        for times in (timing, timing.against[0]):
            times.lost, times.delayed = [0.8] * 40, [0.0] * 40
        assert verdicts(compared(then, now)) == {"a": expected}


def test_a_doubt_that_an_earlier_version_stored_without_a_measure_leaves_a_row_unjudged() -> None:
    then, now = ([one("a", 100.0, {"base": 100.0})] for _ in range(2))
    timing: Any = then[0].timing
    timing.against[0].doubt = "base took 2 ms here and 0.1 ms in its own row"
    (found,) = compared(then, now).findings
    assert found.verdict == "not judged"
    assert found.reason.endswith("base took 2 ms here and 0.1 ms in its own row")


@pytest.mark.parametrize(
    ("doubt", "time_us", "expected"),
    [
        (0.5, 60.0, "unclear"),
        (0.5, 50.0, "not slower"),
        (0.5, 2.0, "faster"),
        (1.4, 60.0, "faster"),
        (1.4, 130.0, "unclear"),
        (1.4, 200.0, "slower"),
    ],
)
@pytest.mark.parametrize("is_then", [True, False])
def test_other_times_of_an_anchor_widen_the_interval(is_then: bool, doubt: float, time_us: float, expected: str) -> None:
    """What is to be quicker than the anchor's quickest now has to be slower than its slowest then."""
    then, now = [one("a", 100.0, {"base": 100.0})], [one("a", time_us, {"base": 100.0})]
    ratio, times = (then, 1 / doubt) if is_then else (now, doubt)
    against = ratio[0].timing.against[0]  # type: ignore[union-attr]
    against.add_doubts([Doubt("after", times, times, times)], 0.05)
    (found,) = compared(then, now).findings
    assert found.verdict == expected
    assert ("base took" in found.reason) == (expected == "unclear")


def test_both_columns_are_judged_by_limits_of_their_own() -> None:
    rows = [one("a", time, {"base": 100.0}) for time in (100.0, 104.0)]
    for found, time_us in zip(rows, (100.0, 104.0), strict=True):
        found.replay = one("a", time_us, {"base": 100.0}).timing
    outcome = gate.compare(rows[:1], rows[1:], (), Thresholds(["device-only=2%"]).share)
    assert [(found.column, found.limit, found.verdict) for found in outcome.findings] == [
        ("timing", 0.05, "not slower"),
        ("replay", 0.02, "slower"),
    ]


def test_what_was_proven_then_and_is_not_now_fails_and_the_reverse_is_shown() -> None:
    then = [one("a", 100.0, {"base": 100.0}), row("b", CASES[0], status="failed", reason="wrong"), drawn("c", "lstm")]
    then += [one(name, 100.0, {"base": 100.0}) for name in ("c", "d", "e")]
    now = [one("a", 100.0, {"base": 100.0}), one("b", 100.0, {"base": 100.0}), drawn("c", "lstm", "failed", "worse")]
    now += [one("c", 100.0, {"base": 100.0}), row("d", CASES[0], status="skipped", reason="no more"), one("f", 1.0, {})]
    outcome = compared(then, now)
    changes = {(change.kind, change.implementation): (change.then, change.now, change.reason) for change in outcome.changes}
    assert changes == {
        ("benchmark", "b"): ("failed", "passed", "wrong"),
        ("drawn", "c"): ("passed", "failed", "worse"),
        ("benchmark", "c"): ("passed", "unproven", ""),
        ("benchmark", "d"): ("passed", "skipped", "no more"),
    }
    assert outcome.problems == ["3 passed then and not now"]
    assert (outcome.only_then, outcome.only_now) == ([f"e {CASES[0]} (benchmark)"], [f"f {CASES[0]} (benchmark)"])


def test_more_columns_and_fewer_pairs_make_wider_intervals() -> None:
    assert gate.confidence_of(1) == gate.confidence_of(33) == 1 - 3e-4
    assert gate.confidence_of(1000) == 1 - 1e-5
    ratios = [paired_ratio(np.linspace(1.0, 1.1, 8), [1.0] * 8, gate.confidence_of(n)) for n in (1, 1000)]
    assert 1.1 < ratios[0].high < ratios[1].high < 1.5


def test_times_that_are_none_are_not_judged() -> None:
    then, now = one("a", 100.0, {"base": 100.0}), one("a", 900.0, {"base": 100.0})
    del then.timing.samples_us[2:]  # type: ignore[union-attr]
    (found,) = compared([then], [now]).findings
    assert (found.verdict, found.looks_slower) == ("not judged", False)
    assert "expected at least 3 pairs" in found.reason


# Measuring again.


def test_only_what_is_slower_each_time_stays_slower() -> None:
    (found,) = compared([one("a", 100.0, {"base": 100.0})], [one("a", 120.0, {"base": 100.0})]).findings
    assert found.looks_slower

    def again(times: list[float]) -> gate.RegressionFinding:
        left = iter(times)
        return gate.with_remeasurement(found, lambda _: paired_ratio([100.0 * next(left)] * 40, [100.0] * 40, 0.999), 0.999)

    assert (again([1.2, 1.2, 1.2]).verdict, again([1.2, 1.2, 1.2]).measured) == ("slower", 4)
    assert (again([1.2, 1.0]).verdict, again([1.2, 1.0]).measured) == ("not slower", 3)


def test_what_was_not_measured_again_is_unclear() -> None:
    outcome = compared([one("a", 100.0, {"base": 100.0})], [one("a", 120.0, {"base": 100.0})])
    outcome.mark_inconclusive()
    assert (verdicts(outcome), outcome.problems) == ({"a": "unclear"}, [])


def test_what_several_processes_measured_is_judged_by_theirs() -> None:
    machine = Machine(1, 0.01, arm=0.02)
    then = machine.row("case", 1.0, 40, processes=5)
    for factor, verdict in ((1.0, "unclear"), (1.5, "slower")):
        (found,) = compared([then], [machine.row("case", factor, 40, processes=5)]).findings
        assert (found.verdict, found.measured) == (verdict, 5)
        assert found.change.low < factor < found.change.high  # type: ignore[union-attr]


def test_a_row_that_looks_slower_is_due_in_as_many_processes_as_then() -> None:
    then, now = Machine(1, 0.01).row("case", 1.0, 40, processes=6), Machine(1, 0.01).row("case", 1.2, 40)
    outcome = compared([then], [now])
    assert outcome.replicates_due == {now.key: 6}
    assert compared([then], [Machine(1, 0.01).row("case", 1.2, 40, processes=3)]).replicates_due == {}
    assert compared([Machine(1, 0.01).row("case", 1.0, 40)], [now]).replicates_due == {}


# The promise: recorded-like runs replayed.


def test_what_differs_between_processes_makes_no_false_alarm_among_five() -> None:
    machine = Machine(5, 0.02, arm=0.02)
    assert sum(replayed(machine, 1.0, 50, 40, processes=5)[0] for _ in range(8)) == 0
    assert replayed(machine, 1.3, 50, 40, processes=5)[0] >= 45


def test_of_10000_rows_that_did_not_change_3_at_most_are_called_slower() -> None:
    machines = [(Machine(1, sigma), pairs) for sigma, pairs in ((0.02, 40), (0.04, 100), (0.08, 8), (0.03, 20))]
    assert sum(replayed(machine, 1.0, 50, pairs)[0] for machine, pairs in machines for _ in range(50)) <= 3


@pytest.mark.parametrize(("sigma", "pairs"), [(0.02, 60), (0.03, 100)])
def test_a_tenth_slower_is_found_in_95_of_100_rows(sigma: float, pairs: int) -> None:
    machine = Machine(2, sigma)
    assert sum(replayed(machine, 1.1, 30, pairs)[0] for _ in range(20)) >= 0.95 * 600


# What is shown.


def outcome_of_everything() -> gate.RegressionReport:
    then = [one(name, 100.0, {"base": 100.0}) for name in ("slow", "noisy", "same", "gone", HOSTILE)]
    now = [one("slow", 120.0, {"base": 100.0}), one("noisy", 105.0, {"base": 100.0}), one("same", 100.0, {"base": 100.0})]
    now += [row("gone", CASES[0], status="skipped", reason=HOSTILE), one("base", 100.0, {})]
    outcome = compared(then, now)
    outcome.stored, outcome.started, outcome.warnings = "report.json", "2025-01-31", ["torch: 2.8 and 2.9"]
    return outcome


def test_the_comparison_stands_in_json_and_markdown_and_is_read_over(tmp_path: Path) -> None:
    reporting.write_reports(tmp_path, sample_run(), sample_rows(), outcome_of_everything())
    data = json.loads((tmp_path / "report.json").read_text())["comparison"]
    assert data["problems"] == ["1 slower than their limit", "1 passed then and not now"]
    assert data["findings"][0]["change"]["low"] > 1.15
    assert len(reporting.read_report(tmp_path / "report.json")[1]) == len(sample_rows())
    text = (tmp_path / "report.md").read_text()
    assert "## Compared with the run of 2025-01-31" in text
    line = next(line for line in text.splitlines() if line.startswith(f"| {CASES[0]} | slow | as called"))
    assert line.endswith("| 5 % | slower |")
    assert "<script>" not in text


def test_the_terminal_shows_what_got_slower_with_its_interval() -> None:
    text = printed(gate_tables.terminal_table(outcome_of_everything()), 150)
    lines = [line for line in text.splitlines() if "slow" in line or "noisy" in line]
    assert "+20.0 % [+19." in lines[0]
    assert [line.split()[-1] for line in lines] == ["slower", "unclear"]
    assert "gate failed: 1 slower than their limit" in gate_tables.summary_lines(outcome_of_everything())


def test_the_summary_of_a_ci_job_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    github.append_summary("Recurrent layers", sample_rows(), outcome_of_everything())
    text = path.read_text()
    assert text.startswith("before\n## Recurrent layers: 1 slower than their limit; 1 passed then and not now")
    assert "| noisy | as called |" in text
    assert "| same |" not in text
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    with pytest.raises(ReportError, match="cannot be written"):
        github.append_summary("Recurrent layers", sample_rows(), outcome_of_everything())


# The machine.


def test_another_kind_of_machine_is_refused_and_other_versions_are_shown() -> None:
    here = sample_run().machine
    assert machine.check_comparable(here, {**here, "commit": "other", "dirty": False}, has_gpu=True) == ([], [])
    assert machine.check_comparable(here, {**here, "cpu": "Z80", "cores": 1}, has_gpu=False)[0] == [
        "cpu: AMD EPYC 9354 32-Core Processor and Z80",
        "cores: 2 and 1",
    ]
    other = {**here, "gpu": None, "packages": {"torch": "2.9.0"}}
    assert machine.check_comparable(here, other, has_gpu=False) == ([], ["torch: 2.8.0 and 2.9.0"])
    assert machine.check_comparable(here, other, has_gpu=True)[0] == ["gpu: NVIDIA H200 and none"]


def test_a_ratio_of_intervals_is_as_wide_as_both() -> None:
    found = gate.RegressionFinding("a", "case", "timing", (1.0, 1.0), 0.05, "base", then=Ratio(1.0, 0.9, 1.1))
    assert gate.reevaluate(found, Ratio(1.2, 1.1, 1.3), 0.99).change == Ratio(1.2, 1.1 / 1.1, 1.3 / 0.9)


def test_a_control_is_not_judged() -> None:
    rows = [one("a", 1.0, {"base": 2.0}), replace(one("base", 100.0, {"base": 100.0}), kind="control")]
    assert [found.implementation for found in compared(rows, rows).findings] == ["a"]


def test_recorded_runs_are_replayed_against_each_other() -> None:
    """Beside the first run each of four others is slower, and none beside another."""
    runs = [[one("a", time_us, {"base": 100.0})] for time_us in (100.0, 150.0, 150.0, 150.0, 150.0)]
    assert gate_false_alarms(runs) == (20, 4)
    assert gate_false_alarms([[one("a", 100.0, {"base": 100.0})]] * 4) == (12, 0)
