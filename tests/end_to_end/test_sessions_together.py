"""The user's own tests and the shipped suites in one session, and pytest-benchmark beside both: neither hides the other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign

CASE = ("--ecornn-only", "sequential", "--ecornn-case", samples.CASE)
VERIFY, BENCH = ("--ecornn-verify", *CASE), ("--ecornn-bench", *CASE, *QUICK)
SUITES = "pytest_ecornn.suites"


@pytest.fixture
def foreign(foreign: Foreign) -> Foreign:
    foreign.write(
        "t/test_own.py", "def test_own():\n    pass\n\ndef test_own_benchmark(benchmark):\n    benchmark(sum, (1, 2))\n"
    )
    return foreign


def kinds(foreign: Foreign) -> dict[str, str]:
    """The status of each kind of row."""
    return {row["kind"]: row["status"] for row in foreign.report()["rows"]}


def numbers(done: Any) -> str:
    """pytest's last line without its seconds."""
    return str(done.stdout.splitlines()[-1]).strip("= ").partition(" in ")[0]


def test_a_path_adds_the_users_tests_to_ours(foreign: Foreign) -> None:
    done = foreign.run(*VERIFY, "--ecornn-require", "sequential", "t", check=0)
    assert (numbers(done), kinds(foreign)) == ("4 passed", {"fixed": "passed", "properties": "passed"})
    foreign.write("t/test_own.py", "def test_own():\n    assert False\n")
    done = foreign.run(*VERIFY, "t/test_own.py::test_own", "-n", "2", check=1)
    assert numbers(done) == "1 failed, 2 passed"
    assert "FAILED t/test_own.py::test_own" in done.stdout


def test_paths_of_the_ini_file_add_ours_too(foreign: Foreign) -> None:
    foreign.write("pytest.ini", "[pytest]\naddopts = t\n")
    assert numbers(foreign.run(*VERIFY, check=0)) == "4 passed"


def test_a_path_into_the_suites_chooses_among_them(foreign: Foreign) -> None:
    done = foreign.run(*VERIFY, "--pyargs", f"{SUITES}.test_properties", "t", check=0)
    assert (numbers(done), kinds(foreign)) == ("3 passed", {"properties": "passed"})


def test_the_whole_package_of_suites_can_be_named(foreign: Foreign) -> None:
    done = foreign.run(*VERIFY, "--pyargs", SUITES, check=0)
    assert (numbers(done), kinds(foreign)) == ("2 passed", {"fixed": "passed", "properties": "passed"})


def test_a_self_check_runs_beside_the_users_tests_too(foreign: Foreign) -> None:
    done = foreign.run_here("--ecornn-selfcheck", "t", "--collect-only", "-q", check=0)
    assert "t/test_own.py::test_own\n" in done.stdout
    assert "test_selfcheck.py::test_planted[" in done.stdout


def test_a_setting_that_collects_nothing_of_ours_fails_the_run(foreign: Foreign) -> None:
    foreign.write("pytest.ini", "[pytest]\npython_functions = check_*\n")
    foreign.write("t/test_own.py", "def check_own():\n    pass\n")
    done = foreign.run(*VERIFY, "t", check=1)
    assert "ERROR: no row ran: expected pytest to collect the shipped suites" in done.stdout


def test_the_table_of_pytest_benchmark_shows_the_users_benchmarks_alone(foreign: Foreign) -> None:
    done = foreign.run(*BENCH, "--pyargs", SUITES, "t", check=0)
    assert {"benchmark", "control"} <= kinds(foreign).keys()
    table = done.stdout.partition("- benchmark: 1 tests")[2]
    assert "test_own_benchmark" in table
    assert "test_benchmark[" not in table
    assert "noise floor" in done.stdout
    assert "- benchmark" not in foreign.run(*BENCH, check=0).stdout


@pytest.mark.parametrize("option", ["--benchmark-skip", "--benchmark-only", "--benchmark-disable"])
def test_options_of_pytest_benchmark_are_for_the_users_benchmarks(foreign: Foreign, option: str) -> None:
    foreign.write("pytest.ini", f"[pytest]\naddopts = {option}\n")
    done = foreign.run(*BENCH, "--ecornn-require", "sequential", "t", check=0)
    assert set(kinds(foreign).items()) >= {("benchmark", "passed"), ("control", "passed")}
    assert ("1 skipped" in done.stdout) == (option != "--benchmark-disable")


def test_without_pytest_benchmark_rows_are_verified_and_none_is_timed(foreign: Foreign) -> None:
    foreign.run(*VERIFY, "-p", "no:benchmark", check=0)
    done = foreign.run_here("--ecornn-bench", *CASE, "-p", "no:benchmark", check=4)
    assert "--ecornn-bench expected pytest-benchmark, but it is not loaded: leave out -p no:benchmark" in done.stderr
