"""`--ecornn-replicates`: timed rows in fresh processes, and the gate that uses them."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_ecornn import load_report
from pytest_ecornn.results.rows import Row
from tests.helpers import samples
from tests.helpers.foreign import QUICK, QUIET, Foreign

RUN = (
    "--ecornn-bench",
    "--ecornn-implementations",
    "right.py",
    "--ecornn-only",
    "right",
    "--ecornn-case",
    samples.CASE,
    *QUICK,
)
DELAYED = (
    samples.RIGHT.replace("            outputs = []\n", "            outputs = []\n            delay()\n")
    + """

import os
import time

CALLS = []


def delay():
    end = time.perf_counter() + float(os.environ.get("DELAY", "0.002")) * (1 + os.getpid() % 7 / 100)
    while time.perf_counter() < end:
        pass
"""
)
DIES_THEN_FAILS = samples.RIGHT.replace(
    "        return layer\n",
    """        import os
        from pathlib import Path
        if "ECORNN_REPLICATED_ROWS" in os.environ:
            assert not Path("died").exists()
            Path("died").touch()
            os.kill(os.getpid(), 9)
        return layer
""",
)


def timed_row(folder: Path) -> Row:
    (row,) = [row for row in load_report(folder).rows if row.kind == "benchmark"]
    return row


def test_a_row_is_timed_in_so_many_processes(foreign: Foreign) -> None:
    foreign.write("right.py", DELAYED)
    done = foreign.run(*RUN, "--ecornn-replicates", "3", check=0)
    row = timed_row(foreign.path / "reports/local")
    assert row.timing is not None
    (against,) = row.timing.against
    assert len(set(against.replicates)) == 3
    assert len(row.timing.samples_us) == len(against.samples_us)
    assert "1 row once more, in further process 2 of 2" in done.stdout
    assert "timed in 3 processes" in row.notes
    assert "| processes a row | 3 |" in (foreign.path / "reports/local/report.md").read_text()


def test_a_process_that_dies_costs_its_figures_and_one_that_fails_the_row(foreign: Foreign) -> None:
    foreign.write("right.py", DIES_THEN_FAILS)
    done = foreign.run(*RUN, "--ecornn-replicates", "3", check=1)
    assert "WARNING: a further process timed 0 of 1 rows, exit code -9" in done.stdout
    assert "FAILED: in a fresh process: right on lstm-T6-B3-H8-float32" in done.stdout
    assert timed_row(foreign.path / "reports/local").status == "failed"


def test_the_gate_has_as_many_processes_measure_what_looks_slower(foreign: Foreign) -> None:
    foreign.write("quiet.py", QUIET)
    foreign.write("right.py", DELAYED)
    foreign.run(*RUN, "-p", "quiet", "--ecornn-replicates", "3", "--ecornn-report", "then", check=0)
    foreign.write("right.py", DELAYED.replace('"0.002"', '"0.02"'))
    done = foreign.run(*RUN, "-p", "quiet", "--ecornn-compare", "then/report.json", check=None)
    assert "1 row once more, in further process 3 of 3" in done.stdout
    (found,) = json.loads((foreign.path / "reports/local/report.json").read_text())["comparison"]["findings"]
    assert found["measured"] == 3
    is_surely_slower = found["change"]["low"] > 1.05  # beside other tests it may be unclear
    assert (found["verdict"], done.returncode) == (("slower", 1) if is_surely_slower else ("unclear", 0))


def test_two_processes_or_no_timing_are_refused(foreign: Foreign) -> None:
    done = foreign.run("--ecornn-bench", "--ecornn-replicates", "2", check=4)
    assert "--ecornn-replicates expected at least 3 processes, or 1, got 2" in done.stderr
    done = foreign.run("--ecornn-verify", "--ecornn-replicates", "5", check=4)
    assert "--ecornn-replicates repeats timed rows: expected --ecornn-bench beside it" in done.stderr
