"""The gate as a CI job runs it: a report is made, and the same again or something worse is compared with it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from pytest_ecornn.suites.acceptance import SLOWED
from tests.helpers import samples
from tests.helpers.foreign import QUIET, Foreign

# The plain loop is its own best anchor: a busy machine slows both alike, above all where they have one thread.
OPTIONS = (
    "--ecornn-bench", "--ecornn-implementations", "mine.py", "--ecornn-only", "mine", "--ecornn-baseline", "sequential",
    "--ecornn-case", samples.CASE, "--ecornn-budget", "1", "--ecornn-pairs", "15",
)  # fmt: skip
COMPARE = ("--ecornn-compare", "stored.json", "--ecornn-fail-slower")


def quiet(foreign: Foreign) -> Foreign:
    """With the implementation as it was."""
    foreign.write("conftest.py", QUIET)
    foreign.write("mine.py", SLOWED.replace("SHARE", "0"))
    return foreign


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of the implementation as it was."""
    foreign = quiet(Foreign(tmp_path_factory.mktemp("stored")))
    foreign.run(*OPTIONS, check=0)
    return json.dumps(foreign.report())


@pytest.fixture
def foreign(foreign: Foreign, stored: str) -> Foreign:
    foreign.write("stored.json", stored)
    return quiet(foreign)


def test_the_same_again_passes(foreign: Foreign) -> None:
    done = foreign.run(*OPTIONS, *COMPARE, "mine=50%", check=0)
    (found,) = foreign.report()["comparison"]["findings"]
    assert (found["anchor"], found["limit"], found["verdict"] != "slower") == ("sequential", 0.5, True)
    assert "compared with stored.json of" in done.stdout
    assert "gate failed" not in done.stdout


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "with workers"])
def test_a_slower_implementation_fails_after_it_was_measured_again(
    foreign: Foreign, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(foreign.path / "summary.md"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    slowed = foreign.write("mine.py", SLOWED.replace("SHARE", "3").replace("perf_counter", "process_time")).read_text()
    done = foreign.run(*OPTIONS, *COMPARE, "20%", *workers, check=1)
    (found,) = foreign.report()["comparison"]["findings"]
    assert (found["verdict"], found["measured"]) == ("slower", 4)
    assert 1.2 < found["change"]["low"] < found["change"]["ratio"] < 20
    assert f"looks slower, measured again: mine {samples.CASE}" in done.stdout
    assert "gate failed: 1 slower than their limit" in done.stdout
    for shown in ("summary.md", "reports/local/comment.md"):
        assert (foreign.path / shown).read_text().startswith("## Recurrent layers: 1 slower than their limit\n\n| Case |")
    (annotation,) = (line for line in done.stdout.splitlines() if line.startswith("::error"))
    line = 1 + slowed[: slowed.index("\nclass ") + 1].count("\n")
    assert annotation.startswith(f"::error file=mine.py,line={line},title=mine slower%3A {samples.CASE}::as called: +")
    assert "## Compared with the run of" in (foreign.path / "reports/local/report.md").read_text()


def test_a_row_that_is_no_longer_right_fails_and_is_shown(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    foreign.write("mine.py", samples.WRONG)
    done = foreign.run(*OPTIONS, *COMPARE, "50%", check=1)
    assert f"{samples.CASE} mine: passed then, failed now" in done.stdout
    assert foreign.report()["comparison"]["problems"] == ["1 passed then and not now", "no row could be judged"]
    assert "gate failed: 1 passed then and not now" in done.stdout
    (annotation,) = (line for line in done.stdout.splitlines() if line.startswith("::error"))
    assert annotation.startswith(f"::error file=mine.py,line=5,title=mine failed%3A {samples.CASE}::")


def test_an_unclear_row_fails_a_strict_gate_after_another_measurement(foreign: Foreign, stored: str) -> None:
    """Times stored with a spread of 1 to 20 keep every comparison unclear."""
    data = json.loads(stored)
    for row in data["rows"]:
        for against in row["timing"]["against"] if row["timing"] else ():
            against["samples_us"] = [us * (20.0 if n % 2 else 1.0) for n, us in enumerate(against["samples_us"])]
    foreign.write("stored.json", json.dumps(data))
    foreign.run(*OPTIONS, *COMPARE, "50%", check=0)
    assert foreign.report()["comparison"]["findings"][0]["verdict"] == "unclear"
    foreign.write("pytest.ini", "[pytest]\necornn_strict = true\n")
    done = foreign.run(*OPTIONS, *COMPARE, "50%", check=1)
    assert "gate failed: 1 undecided, by --ecornn-strict" in done.stdout
    assert f"measured again: mine {samples.CASE}" in done.stdout


def _with(data: dict[str, Any], **changes: Any) -> str:
    data["run"]["machine"].update(changes)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: _with(data, cpu="Z80"), "is of another kind of machine (cpu: Z80 and "),
        (lambda data: _with(data, cores=10_000), "is of another kind of machine (cores: 10000 and "),
        (lambda data: json.dumps(data)[:-9], "expected JSON"),
        (lambda data: json.dumps({**data, "schema_version": 99}), "expected an object with schema_version 1, got 99"),
        (lambda data: json.dumps({**data, "rows": []}), "has a time of no row of this run"),
    ],
    ids=["another machine", "other cores", "cut short", "another schema", "no rows"],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    foreign: Foreign, stored: str, change: Any, message: str
) -> None:
    foreign.write("stored.json", change(json.loads(stored)))
    done = foreign.run_here(*OPTIONS, *COMPARE, "50%", check=4)
    assert message in done.stderr
    assert not (foreign.path / "reports").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ecornn-bench", "--ecornn-compare", "absent.json"], "absent.json: cannot be read"),
        (["--ecornn-verify", "--ecornn-compare", "stored.json"], "expected --ecornn-bench beside it"),
        (["--ecornn-bench", "--ecornn-fail-slower", "5%"], "expected --ecornn-compare FILE beside it"),
        (["--ecornn-bench", "--ecornn-strict"], "--ecornn-strict expected --ecornn-compare FILE beside it"),
        ([*OPTIONS, *COMPARE, "5"], "expected a percentage over 0, such as 5%"),
        ([*OPTIONS, *COMPARE, "mnie=5%"], "unknown name 'mnie': expected one of"),
        (["--ecornn-bench", "--ecornn-pairs", "0"], "--ecornn-pairs must be a number over 0, got 0"),
    ],
)
def test_what_the_gate_cannot_use_is_a_usage_error(foreign: Foreign, arguments: list[str], message: str) -> None:
    done = foreign.run_here(*arguments, check=4)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    assert message in line


def test_limits_of_the_ini_file_count_and_bad_ones_are_named(foreign: Foreign) -> None:
    foreign.write("pytest.ini", "[pytest]\necornn_fail_slower =\n    7%\n    mine:lstm = 60 %\n")
    foreign.run(*OPTIONS, *COMPARE[:2], check=0)
    assert foreign.report()["comparison"]["findings"][0]["limit"] == pytest.approx(0.6)
    foreign.write("pytest.ini", "[pytest]\necornn_fail_slower = fast\n")
    assert "ecornn_fail_slower: expected a percentage" in foreign.run_here(*OPTIONS, *COMPARE[:2], check=4).stderr


def test_an_unwritable_summary_is_an_error_and_the_report_is_there(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", os.fspath(foreign.path))
    done = foreign.run(*OPTIONS, *COMPARE, "60%", check=1)
    assert "cannot be written" in done.stdout
    assert foreign.report()["comparison"]["problems"] == []


BUSY = """
from pytest_ecornn.measurement.noise.watch import Watch
from pytest_ecornn.results.rows import Disturbance
Watch.disturbance = lambda self: Disturbance(1.0, 2, 1.0, 0.0, 0.0, 0.0, 0.0, 20, 15)
"""


def test_a_report_that_no_gate_can_use_is_stored_with_a_warning(foreign: Foreign) -> None:
    foreign.write("conftest.py", QUIET + BUSY)
    done = foreign.run(*OPTIONS, check=0)
    warning = (
        "WARNING: no gate can use this report, as no row can be judged by it: 75% of blocks disturbed: other processes took"
    )
    assert warning in done.stdout
    foreign.write("stored.json", json.dumps(foreign.report()))
    foreign.write("conftest.py", QUIET)
    done = foreign.run(*OPTIONS, *COMPARE, "50%", check=1)
    assert "gate failed: no row could be judged" in done.stdout
    assert "WARNING" not in done.stdout
