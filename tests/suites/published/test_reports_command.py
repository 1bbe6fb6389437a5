"""`make reports`: what is missing or stale is measured anew within a time, what was measured outlives, and the rest is left."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.cases.case_sets import case_set
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.results import journal
from pytest_ecornn.suites.published import __main__ as reports
from pytest_ecornn.suites.published import staleness, stored
from pytest_ecornn.suites.published.__main__ import DueReport, due_reports, main, model
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import ReportPlan
from pytest_ecornn.suites.published.selection_parts import problems
from pytest_ecornn.suites.published.selection_parts.selection_tables import SelectionRow
from pytest_ecornn.suites.published.staleness import RUN, Staleness

ROOT = Path(__file__).parents[3]
COMMIT = "a" * 40
FRESH, STALE, STALER = Staleness(COMMIT), Staleness(COMMIT, ("a.cu",)), Staleness(COMMIT, ("a.cu", "b.cu"))
CASE = "mingru-T20-B2-H16-float32-projected"


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"), ("Tesla V100-SXM2-16GB", "v100"), ("NVIDIA L40S", "l40s"),
    ],
)  # fmt: skip
def test_a_card_s_folder_has_its_model_s_name(name: str, card: str) -> None:
    assert model(name) == card
    with pytest.raises(ValueError, match="expected a GPU's name with a model's number, got 'NVIDIA'"):
        model("NVIDIA")


def test_every_published_suite_is_measured_on_a_gpu_or_on_a_cpu_alone() -> None:
    suites = {path.stem for path in Path(stored.__file__).parent.glob("*.py") if "--output" in path.read_text()}
    assert {*reports.REPORTS["cuda"], *stored.OF_CPU} == {*suites, *stored.NAMES, *stored.PAGES, RUN} - {"__main__"}
    assert set(reports.REPORTS["cpu"]) - set(reports.REPORTS["cuda"]) == set(stored.OF_CPU)
    assert {name for name in stored.NAMES if stored.plan(name).device == "cpu"} == set(stored.OF_CPU)


@pytest.mark.parametrize("name", ["seed", "smoke"])
def test_a_report_begins_with_what_cudnn_runs(name: str) -> None:
    has_rival = [case.cell in NN_CELLS for case in case_set(name)]
    assert has_rival == sorted(has_rival, reverse=True)


# What is due.


def test_missing_reports_come_first_then_stale_ones_and_last_what_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = {"scan_kernel": FRESH, "selection": STALE, "persistent": STALER, "host_time": FRESH, "varying": None}
    by_path = {stored.file_of(tmp_path, name): age for name, age in ages.items()}
    monkeypatch.setattr(staleness, "of_report", by_path.__getitem__)
    lacking = {"scan_kernel": ["peers"], "selection": ["peers"]}
    monkeypatch.setattr(ReportPlan, "lacking", lambda plan, path: lacking.get(plan.name, []))
    assert due_reports(tmp_path, ["host_time", "scan_kernel", "selection", "varying", "persistent"]) == [
        DueReport("varying", None, [], False),  # of a commit that is not in the history
        DueReport("persistent", STALER, [], False),
        DueReport("selection", STALE, [], False),
        DueReport("scan_kernel", FRESH, ["peers"], True),
    ]


def test_the_harness_s_own_report_goes_on_before_others_begin(tmp_path: Path) -> None:
    """Its rows stand beside those of no other commit."""
    (tmp_path / journal.NAME).write_text("")
    assert [report.name for report in due_reports(tmp_path, [RUN, "scan_kernel"])] == [RUN, "scan_kernel"]
    (tmp_path / "sparse").mkdir()
    (tmp_path / "sparse" / journal.NAME).write_text("")
    assert due_reports(tmp_path, ["scan_kernel", "sparse"])[1] == DueReport("sparse", None, [], True)


def test_what_is_stored_lacks_the_parts_that_were_not_reached_or_not_finished(tmp_path: Path) -> None:
    report = json.loads((ROOT / "reports/h200/scan_kernel.json").read_text())

    def lacking(**changed: Any) -> list[str]:
        (tmp_path / "scan_kernel.json").write_text(json.dumps({**report, **changed}))
        return stored.plan("scan_kernel").lacking(tmp_path / "scan_kernel.json")

    assert lacking() == []
    rows = report["rows"]
    assert lacking(rows={name: rows[name] for name in rows if name != "errors"}) == ["errors"]
    late = [{**rows["bandwidth"][0], "reason": NOT_REACHED}, *rows["bandwidth"][1:]]
    assert lacking(rows={**rows, "bandwidth": late}, ended={"peers": "the run was over"}) == ["bandwidth", "peers"]
    assert lacking(ended={"peers": "RuntimeError: no"}) == []  # it would fail again


def test_what_goes_on_is_measured_by_its_parts() -> None:
    def arguments(one: DueReport) -> list[str]:
        return reports.command(one, Path("reports/h200"), "cuda", 61.4)[2:]

    own = ["--output", "reports/h200", "--seconds", "61"]
    assert arguments(DueReport("scan_kernel", STALE, [], False)) == ["pytest_ecornn.suites.published.scan_kernel", *own]
    assert arguments(DueReport("scan_kernel", FRESH, ["peers"], True))[5:] == ["--resume", "--parts", "peers"]
    limited = ["--ecornn-seconds=61", "--ecornn-report"]
    assert arguments(DueReport(RUN, None, [], True))[-4:] == [*limited, "reports/h200", "--ecornn-resume"]
    of_set = arguments(DueReport("persistent", STALE, [], False))
    assert of_set[-5:] == ["--ecornn-cases=persistent", "--ecornn-only=persistent_gpu", *limited, "reports/h200/persistent"]


# The command.


# Of a run in a process of its own: ceilings are not measured, and after a first row it is interrupted where a file says so.
PLUGIN = """
import os, pathlib, signal
from pytest_ecornn.measurement import roofline
roofline.measure_ceilings = lambda dtypes, device: roofline.Ceilings({1: 1e6}, {1: 1e6}, dict.fromkeys(dtypes, 1e6))

def pytest_runtest_teardown(item):
    if (file := pathlib.Path(__file__).with_name("interrupt")).exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a card of which a run of one case is the only report."""
    (tmp_path / "quick_rows.py").write_text(PLUGIN)
    options = ("-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-p", "quick_rows")
    case = ("--ecornn-bench", "--ecornn-budget", "0.1", "--ecornn-case", CASE, "--ecornn-only", "sequential")
    monkeypatch.setitem(reports.REPORTS, "cpu", {RUN: (*options, *case)})
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "reports/cpu"


def command(folder: Path, *arguments: str) -> int:
    return main(["--device", "cpu", "--results", str(folder.parent), *arguments])


def test_a_run_that_is_interrupted_goes_on_with_its_rows_and_is_then_left(
    few: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(staleness, "of_report", lambda path: FRESH if path.exists() else None)
    (few.parents[1] / "interrupt").touch()
    assert command(few) == 0
    assert "report: missing; 540 s are left\n" in capfd.readouterr().out
    first = journal.read(few / journal.NAME)[1]
    assert first
    assert command(few, "--seconds", "100") == 0
    assert "report: goes on; 100 s are left\n" in capfd.readouterr().out
    rows = json.loads((few / "report.json").read_text())["rows"]
    assert len(rows) > len(first)
    assert all(row.as_dict() in rows for row in first)
    assert {path.name for path in few.iterdir()} >= {"report.html", "report.md", "report.json"}
    assert not (few / journal.NAME).exists()
    assert command(few) == 0
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("at_interrupt", "code"), [("pass", 0), ("sys.exit(3)", 3), ("time.sleep(60)", -9)])
def test_what_runs_longer_is_interrupted_then_killed(
    at_interrupt: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handled = f"try:\n time.sleep(60)\nexcept KeyboardInterrupt:\n {at_interrupt}\n raise"
    program = f"import sys, time\n{handled}"
    monkeypatch.setattr(reports, "command", lambda one, folder, device, seconds: [sys.executable, "-c", program])
    monkeypatch.setattr(reports, "_GRACE_S", 2.0)
    begun = time.monotonic()
    assert reports.measure(DueReport("scan_kernel", STALE, [], False), tmp_path, "cpu", 2.0) == code
    assert time.monotonic() - begun < 30


def test_rows_that_cannot_stand_beside_new_ones_are_measured_anew(few: Path, capfd: pytest.CaptureFixture[str]) -> None:
    few.mkdir(parents=True)
    (few / journal.NAME).write_text('{"schema_version": 0}\n')
    assert command(few) == 0
    begun = [line for line in capfd.readouterr().out.splitlines() if line.endswith("are left")]
    assert [line.partition(";")[0] for line in begun] == ["report: goes on", "report: missing"]
    assert (few / "report.json").exists()


def test_time_is_shared_by_reports_and_what_it_does_not_reach_is_said(
    few: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(reports.REPORTS, "cpu", {"selection": (), RUN: ()})
    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(reports, "measure", lambda one, folder, device, left: asked.append((one.name, left)) or 3)
    assert command(few, "--seconds", "40") == 1
    assert [name for name, _ in asked] == ["selection"]
    assert "report: missing; no time is left\n" in capsys.readouterr().out


def test_a_suite_is_measured_on_a_cpu_and_goes_on(
    few: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import sys; from dataclasses import replace; from pytest_ecornn.suites.published import selection as s;"
        "from pytest_ecornn.suites.published.selection_parts import problems as p, selection_tables as t; t.ROUNDS = 3;"
        "s.selected = lambda *a: [replace(o, steps=2) for o in p.drawn_scans(1, 1)]; s.main(sys.argv[1:])"
    )
    scans = [replace(one, steps=2) for one in problems.drawn_scans(1, 1)]
    monkeypatch.setitem(reports.REPORTS, "cpu", {"selection": ("--device", "cpu", "--sets", "scans")})
    command_of = reports.command

    def changed(*given: Any) -> list[str]:
        python, _, _, *options = command_of(*given)
        return [python, "-c", program, *options]

    monkeypatch.setattr(reports, "command", changed)
    monkeypatch.setattr(staleness, "of_report", lambda path: FRESH)
    assert command(few, "selection", "--seconds", "100") == 0
    report = stored.load(few / "selection.json")
    assert [row.problem for row in report.rows["problems"]] == scans
    report.rows["problems"][0] = SelectionRow(scans[0], refusals={"all": NOT_REACHED})
    report.write(few)
    assert command(few, "--seconds", "100") == 0
    assert "selection: goes on" in capfd.readouterr().out
    assert stored.plan("selection").lacking(few / "selection.json") == []
    assert command(few) == 0
    assert "selection" not in capfd.readouterr().out


def test_the_list_has_every_stored_report_with_its_age_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--results", str(ROOT / "reports"), "--list"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ": missing " not in line]
    assert len(lines) == len(stored.reports(ROOT / "reports"))
    assert all("measured at commit " in line or "not in the history" in line for line in lines)
    for name in ("h200/scan/report", "cpu/report", "cpu/selection"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).with_suffix(".json").write_text("{}")
        (tmp_path / name).with_suffix(".md").touch()
    assert main(["--results", str(tmp_path), "--list"]) == 0
    *ages, of_cpu, missing = capsys.readouterr().out.splitlines()
    assert len(ages) == 3
    assert of_cpu == "cpu: missing streaming"
    assert missing == f"h200: missing {', '.join(name for name in reports.REPORTS['cuda'] if name != 'scan')}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cpu", "sparse"], "expected names of report, selection, streaming, got sparse"),
        (["speed"], "got speed"),
        ([], "torch finds no CUDA device on this machine"),
        (["--device", "cpu", "--seconds", "-1"], "--seconds: expected a number over 0, got -1"),
    ],
)
def test_what_cannot_be_measured_is_a_usage_error(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available() and not arguments:
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


def test_without_a_clone_there_is_no_commit_to_record(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.machine, "own_root", lambda: None)
    with pytest.raises(SystemExit, match="2"):
        command(few)
