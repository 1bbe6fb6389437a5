"""Failures that --ecornn-xfail expects fail no run, as long as they are there."""

from __future__ import annotations

import pytest

from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign, only

RUN = ("--ecornn-verify", "--ecornn-implementations", "kernels", "--ecornn-case", samples.CASE, "-k", "fixed_case", *QUICK[2:])
XFAIL = ("--ecornn-xfail", "known.txt")


@pytest.fixture
def foreign(foreign: Foreign) -> Foreign:
    foreign.write("kernels/mine_right.py", samples.RIGHT)
    foreign.write("kernels/mine_wrong.py", samples.WRONG)
    foreign.write("known.txt", f"mine_wrong {samples.CASE} gates swapped, see #12\n")
    return foreign


def test_an_expected_failure_is_xfailed_and_said_everywhere(foreign: Foreign) -> None:
    run = (*RUN, *only("mine_right", "mine_wrong"), *XFAIL)
    done = foreign.run(*run, "--junitxml", "junit.xml", check=0)
    assert "1 xfailed" in done.stdout
    assert "failed: expected: gates swapped, see #12" in done.stdout
    row = foreign.rows()[f"mine_wrong-{samples.CASE}"]
    assert row["status"] == "failed"
    assert row["reason"].startswith("expected: gates swapped, see #12\nmine_wrong is wrong on")
    for name in ("report.md", "report.html"):
        assert "expected: gates swapped, see #12" in (foreign.path / "reports/local" / name).read_text()
    (skipped,) = foreign.junit()[f"test_fixed_case[mine_wrong-{samples.CASE}]"].iter("skipped")
    assert skipped.get("type") == "pytest.xfail"
    assert "1 xfailed" in foreign.run(*run, "--ecornn-resume", check=0).stdout
    assert "1 failed, 1 passed" in foreign.run(*run, "--runxfail", check=1).stdout
    assert "1 xfailed" in foreign.run(*run, "-n", "1", check=0).stdout
    for changed in ((), XFAIL):
        foreign.write("known.txt", f"mine_wrong {samples.CASE} another reason\n")
        done = foreign.run(*RUN, *only("mine_right", "mine_wrong"), *changed, "--ecornn-resume", check=4)
        assert f"(xfail: mine_wrong {samples.CASE} gates swapped, see #12 and " in done.stderr


def test_a_row_that_passes_where_it_is_to_fail_fails_the_run(foreign: Foreign) -> None:
    foreign.write(
        "known.txt", f"mine_* lstm-* gates swapped\nmine_wrong gru-* not yet\nmine_right properties:{samples.CASE} x\n"
    )
    done = foreign.run(*RUN[:-4], *QUICK[2:], *only("mine_right", "mine_wrong"), *XFAIL, "-x", check=1)
    assert "WARNING" not in done.stdout, "a run that was cut short warns of no line"
    foreign.run(*RUN, *only("mine_right", "mine_wrong"), *XFAIL, check=1)
    rows = foreign.rows()
    said = f"mine_right on {samples.CASE}: expected to fail, as known.txt says: gates swapped, but passed: take the line out"
    assert rows[f"mine_right-{samples.CASE}"]["reason"] == said
    assert rows[f"mine_wrong-{samples.CASE}"]["reason"].startswith("expected: gates swapped\n")


def test_a_line_that_no_row_matches_is_named_at_the_end(foreign: Foreign) -> None:
    foreign.write("known.txt", f"mine_wrong {samples.CASE} gates swapped\nmine_wrong gru-* not yet\n")
    run = ("--ecornn-bench", *RUN[1:5], *QUICK, *only("mine_wrong"), *XFAIL)
    warning = "WARNING: known.txt: no row of this run is mine_wrong gru-*: not yet"
    assert warning in foreign.run(*run, check=0).stdout
    assert "WARNING: known.txt" not in foreign.run(*run, "--ecornn-shard", "1/1", check=0).stdout


def test_a_death_may_be_expected(foreign: Foreign) -> None:
    dies = samples.RIGHT.replace("outputs = []", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 1)
    foreign.write("kernels/mine_wrong.py", dies)
    done = foreign.run(*RUN, *only("mine_wrong"), *XFAIL, "--ecornn-isolate", check=0)
    assert "1 xfailed" in done.stdout
    assert foreign.rows()[f"mine_wrong-{samples.CASE}"]["reason"].startswith("expected: gates swapped, see #12\nmine_wrong on")


def test_a_wrong_file_is_a_usage_error(foreign: Foreign) -> None:
    foreign.write("known.txt", "mine_wrong\n")
    path = foreign.path / "known.txt"
    for name, error in {
        "known.txt": f"{path}, line 1: expected IMPLEMENTATION CASE REASON, got 'mine_wrong'",
        "absent.txt": f"{foreign.path}/absent.txt: cannot be read (No such file or directory)",
    }.items():
        assert f"ERROR: --ecornn-xfail: {error}" in foreign.run_here("--ecornn-verify", "--ecornn-xfail", name, check=4).stderr
    assert "--ecornn-xfail expected --ecornn-verify or" in foreign.run_here(*XFAIL, check=4).stderr
