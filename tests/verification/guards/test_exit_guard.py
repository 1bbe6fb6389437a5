"""An implementation that would end the process costs its own row, and the run goes on to its report."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType

import pytest

from pytest_ecornn.verification.guards.exit_guard import ExitGuard, ProcessExit
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign

CALL, UNSUPPORTED = "            w_ih, w_hh,", "        if case.cell !="
THREAD = "import os, threading; t = threading.Thread(target=os._exit, args=(0,)); t.start(); t.join()"
SWALLOWED = "\n            try: import os; os._exit(0)\n            except BaseException: pass\n"
CHILD = "import os; child = os.fork(); os._exit(0) if child == 0 else os.waitpid(child, 0)"
# The source of each, and how its row's reason goes on after the name and the case; none where it is right.
EXITS = {
    "by_exec": (samples.RIGHT.replace(CALL, f"            import os; os.execl('/bin/true', 'true')\n{CALL}"), "os.execv("),
    "by_name": ("from os import _exit\n" + samples.RIGHT.replace(CALL, f"            _exit(0)\n{CALL}"), "os._exit(0)"),
    "in_a_thread": (samples.RIGHT.replace(CALL, f"            {THREAD}\n{CALL}"), "os._exit(0)"),
    "in_call": (samples.RIGHT.replace(CALL, f"            import os; os._exit(0)\n{CALL}"), "os._exit(0)"),
    "in_child": (samples.RIGHT.replace(CALL, f"            {CHILD}\n{CALL}"), ""),
    "in_unsupported": (samples.RIGHT.replace(UNSUPPORTED, f"        import os; os._exit(0)\n{UNSUPPORTED}"), "os._exit(0)"),
    "swallowed": (samples.RIGHT.replace(CALL, f"{SWALLOWED}{CALL}"), "os._exit(0)"),
}


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    foreign = Foreign(tmp_path)
    (tmp_path / "kernels").mkdir()
    for name, (text, _) in EXITS.items():
        foreign.write(f"kernels/{name}.py", text)
    return foreign


def test_an_exit_in_a_layer_is_a_failed_row_and_the_run_ends_with_its_reports(foreign: Foreign) -> None:
    only = [argument for name in (*EXITS, "sequential") for argument in ("--ecornn-only", name)]
    options = ["--ecornn-implementations", "kernels", *only, "--ecornn-case", samples.CASE, "--junitxml", "junit.xml"]
    foreign.run("--ecornn-verify", *options, "-k", "fixed", check=1)
    rows = foreign.rows()
    for name, (_, call) in EXITS.items():
        row = rows[f"{name}-{samples.CASE}"]
        assert row["status"] == ("failed" if call else "passed"), name
        if call:
            assert f"{call}" in row["reason"].partition("\nagain: ")[0]
            assert "was called" in row["reason"]
    assert rows[f"sequential-{samples.CASE}"]["status"] == "passed"
    (suite,) = ElementTree.parse(foreign.path / "junit.xml").iter("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == (str(len(EXITS) + 1), str(len(EXITS) - 1))


def test_a_baseline_that_exits_leaves_its_candidates_row(foreign: Foreign) -> None:
    options = ["--ecornn-implementations", "kernels", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE]
    baselines = ["--ecornn-baseline", "in_call", "--ecornn-baseline", "swallowed"]
    foreign.run("--ecornn-bench", *options, *baselines, *QUICK, "-k", "test_benchmark", check=0)
    notes = foreign.rows()[f"sequential-{samples.CASE}"]["notes"]
    assert "not compared with in_call: it raised ProcessExit" in notes
    assert "not compared with swallowed: it called os._exit(0)" in notes


def test_what_ends_a_process_on_its_users_behalf_is_let_through() -> None:
    """pytest-timeout's thread, a worker's own end, and children; the functions are as before when all guards have ended."""
    text = (
        "import os, sys\nfrom pytest_ecornn.run import process\n"
        "from pytest_ecornn.verification.guards.exit_guard import ExitGuard\n"
        "with ExitGuard(), ExitGuard():\n    exec(sys.argv[1])\n"
    )
    for call, status in (
        ("exec('import os; os._exit(7)', {'__name__': 'pytest_timeout'})", 7),
        ("process.exit_now(8)", 8),
        ("os._exit(9) if os.fork() == 0 else sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))", 9),
    ):
        assert subprocess.run([sys.executable, "-c", text, call]).returncode == status


def test_a_function_that_outlasts_its_guard_still_ends_nothing() -> None:
    before = os._exit
    with ExitGuard() as outer:
        with ExitGuard() as inner, pytest.raises(ProcessExit, match=r"os\._exit\(4\) was called"):
            os._exit(4)
        fetched = os._exit
    assert (outer.calls, inner.calls) == ([], ["os._exit(4)"])
    assert (os._exit, isinstance(fetched, FunctionType)) == (before, True)
    with ThreadPoolExecutor() as pool:
        assert isinstance(pool.submit(fetched, 0).exception(), ProcessExit)
