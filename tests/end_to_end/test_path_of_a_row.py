"""docs/architecture.md lists the files that a row goes through, as the stacks of a run show them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign

ROOT = Path(__file__).parents[2]
# Writes which files of the package stand on the stack of a timed block, a comparison, a line of the journal and a report.
STACKS = """
import pathlib, traceback
from pytest_ecornn import reporting
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.results.journal import Journal
from pytest_ecornn.verification import comparison

def stacked(owner, name):
    function = getattr(owner, name)
    def noting(*arguments, **named):
        files = (frame.filename for frame in traceback.extract_stack())
        with open("stacks.txt", "a") as stacks:
            stacks.writelines(f"{name} {file}\\n" for file in files if "pytest_ecornn" in file)
        return function(*arguments, **named)
    setattr(owner, name, noting)

for owner, name in (WallTimer, "time"), (comparison, "check_tensor"), (Journal, "add"), (reporting.json_report, "render"):
    stacked(owner, name)
"""
# What a file of the path hands to: one thing each, which its name says.
DETAILS = ("measurement/clocks.py", "measurement/kept.py", "measurement/noise/")


def test_the_path_of_a_row_is_nine_files(foreign: Foreign) -> None:
    section = (ROOT / "docs/architecture.md").read_text().partition("## The path of a row")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\S+\.py)` \| `([\w.]+)`", section, re.M)
    assert len(listed) == 9
    for file, name in listed:
        assert re.search(rf"(class|def) {name.rpartition('.')[2]}\b", (ROOT / "pytest_ecornn" / file).read_text()), name
    foreign.write("conftest.py", STACKS)
    case = ("--ecornn-case", samples.CASE, "--ecornn-only", "scan_cpu", "--ecornn-only", "sequential", "-k", "benchmark")
    foreign.run("--ecornn-bench", *case, *QUICK, check=0)
    lines = (foreign.path / "stacks.txt").read_text().splitlines()
    assert {line.partition(" ")[0] for line in lines} == {"time", "check_tensor", "add", "render"}
    files = {line.rpartition("pytest_ecornn/")[2] for line in lines}
    assert {file for file in files if not file.startswith(DETAILS)} == {file for file, _ in listed} - {"results/rows.py"}
