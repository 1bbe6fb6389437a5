"""The plugin as its users run it: in a foreign directory, from the command line, each run a process of its own."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results.journal import read
from tests.helpers import samples
from tests.helpers.foreign import BRIEFLY, QUICK, Foreign, environment, only
from tests.helpers.reporting.outputs import csv_of

CASE = ("--ecornn-case", samples.CASE)
MINE = ("--ecornn-implementations", "mine.py", "--ecornn-only", "mine")


def case_of(reason: str) -> tuple[str, str]:
    """The options that name the case of the command that a failure ends with."""
    case = re.search(r'again: pytest .*?--ecornn-case "([^"]*)"', reason)
    assert case is not None
    return "--ecornn-case", case[1]


def test_the_right_one_has_times_and_an_answer_in_every_output_and_the_wrong_one_is_not_timed(foreign: Foreign) -> None:
    right, wrong = foreign.write("right.py", samples.RIGHT), foreign.write("wrong.py", samples.WRONG)
    paths = ["--ecornn-implementations", str(right), "--ecornn-implementations", str(wrong)]
    done = foreign.run("--ecornn-bench", *paths, *CASE, *BRIEFLY, "--junitxml", "junit.xml", check=1)
    rows = foreign.rows()
    assert rows[f"right-{samples.CASE}"]["timing"]["time_us"] > 0
    assert rows[f"right-{samples.CASE}"]["timing"]["against"][0]["baseline"] == "torch_cpu"
    failed = rows[f"wrong-{samples.CASE}"]
    assert (failed["status"], failed["timing"]) == ("failed", None)
    assert "noise floor: torch_cpu against itself" in done.stdout
    assert "is over its limit" in failed["reason"]
    assert case_of(done.stdout) == CASE
    markdown = (foreign.path / "reports/local/report.md").read_text()
    assert "wrong" in markdown
    assert "torch.nn has no" not in markdown
    in_junit = foreign.junit()[f"test_benchmark[sequential-{samples.CASE}]"].iter("property")
    properties = {one.get("name"): one.get("value") or "" for one in in_junit}
    assert float(properties["ecornn_time_us"]) > 0
    assert "[" in properties["ecornn_ratio_to_torch_cpu"]
    assert csv_of(foreign.path / "reports/local")[0]["time_us"]
    (line,) = re.findall(rf"^\| {samples.CASE} \| (.*) \|$", markdown.partition("How sure this is:")[0], re.M)
    answer = unescape(re.sub(r"\*\*|\\|\|", "", line))
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert " ".join([samples.CASE, *answer.split()]) in shown
    assert any(line.startswith("1 case: 1 ") for line in shown)
    assert any(line.startswith("confidence of intervals: 99% of a time") for line in shown)
    assert "budget: 0.1 s a row, at least 8 pairs" in shown


def test_a_broken_property_fails_by_itself_and_its_command_fails_again(foreign: Foreign) -> None:
    late = samples.RIGHT.replace("(gates + h @ w_hh.T", "(gates + 1e-9 * torch.rand(1) + h @ w_hh.T")
    foreign.write("mine.py", late)
    options = [*QUICK, "--ecornn-profile", "quick", "-k", "properties and mine-lstm-float32"]
    foreign.run("--ecornn-verify", *MINE, *options, check=1)
    (row,) = (one for one in foreign.rows().values() if one["kind"] == "properties")
    assert "globals_unchanged is broken: settings that the whole process shares are left as they were" in row["reason"]
    for kind, status in (("properties", 1), ("fixed", 0)):
        foreign.run("--ecornn-verify", *MINE, *case_of(row["reason"]), "-k", kind, check=status)


def test_a_row_below_its_floor_is_invalid(foreign: Foreign) -> None:
    slow = "roofline.Ceilings({1: 1e-6}, {1: 1e-6}, dict.fromkeys(dtypes, 1e-6))"
    foreign.write(
        "conftest.py",
        f"from pytest_ecornn.measurement import roofline\nroofline.measure_ceilings = lambda dtypes, device: {slow}\n",
    )
    foreign.run("--ecornn-bench", *CASE, "--ecornn-only", "sequential", *QUICK, check=1)
    row = foreign.rows()[f"sequential-{samples.CASE}"]
    assert (row["status"], row["timing"]) == ("failed", None)
    assert re.fullmatch(
        rf"sequential on {samples.CASE}: [\d.e+]+ us by wall clock, but this machine needs at least [\d.e+]+ us: "
        "a row below its floor is invalid\n"
        rf'again: pytest --ecornn-bench --ecornn-only sequential --ecornn-case "{samples.CASE}".*',
        row["reason"],
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ecornn-only", "sequentail"], "unknown implementation 'sequentail': expected one of"),
        (["--ecornn-baseline", "cudnn9"], "unknown implementation 'cudnn9'"),
        (["--ecornn-require", "nobody"], "unknown implementation 'nobody'"),
        (["--ecornn-cases", "all"], "unknown case set 'all' (a file's name ends in .csv): expected one of smoke"),
        (["--ecornn-case", "lstm-T4-B2-H8-float31"], "cannot read 'float31'"),
        (["--ecornn-case", "elman-T4-B2-H8-float32"], "unknown cell 'elman'"),
        (["--ecornn-device", "tpu"], "unknown device 'tpu'"),
        (["--ecornn-budget", "-1"], "--ecornn-budget must be a number of seconds over 0"),
        (["--ecornn-seconds", "0"], "--ecornn-seconds must be a number of seconds over 0, got 0"),
        (["--ecornn-implementations", "absent.py"], "absent.py: no such file or folder"),
        (["--ecornn-report", "file/report", *CASE], "cannot be written"),
        (["--ecornn-resume", *CASE], "journal.jsonl, line 2: expected a JSON object"),
        (["--ecornn-report", ""], "--ecornn-report: expected a path, got an empty one"),
        (["--ecornn-state-dict", ""], "--ecornn-state-dict: expected a path, got an empty one"),
        (["--ecornn-compare", ""], "--ecornn-compare: expected a path, got an empty one"),
        (["--ecornn-implementations", ""], "--ecornn-implementations: expected a path, got an empty one"),
    ],
)
def test_what_cannot_be_used_is_a_usage_error_of_one_line_and_an_earlier_journal_is_kept(
    foreign: Foreign, arguments: list[str], message: str
) -> None:
    foreign.write("file", "")
    journal = foreign.write("reports/local/journal.jsonl", '{"schema_version": 1}\nnot json\n')
    done = foreign.run_here("--ecornn-bench", *arguments, check=4)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("ERROR"))
    assert message in line
    assert "not json" in journal.read_text()


def test_only_is_exact(foreign: Foreign) -> None:
    done = foreign.run("--ecornn-verify", "--ecornn-only", "sequential", "--collect-only", "-q", *CASE)
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    assert [line for line in tests if f"[sequential-{samples.CASE}]" not in line] == []


def test_a_missing_gpu_is_a_reasoned_skip_and_no_success_where_nothing_else_ran(foreign: Foreign) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    foreign.run("--ecornn-bench", "--ecornn-device", "cuda", "--ecornn-cases", "smoke", "-k", "sequential and rnn", check=5)
    assert {row["reason"] for row in foreign.rows().values()} == {"no CUDA device on this machine"}
    cases = f"{samples.CASE}-cuda"
    done = foreign.run(
        "--ecornn-verify", "--ecornn-only", "torch_cpu", "--ecornn-device", "cuda", "--ecornn-case", cases, check=5
    )
    skipped = "2 rows skipped (no CUDA device on this machine), of --ecornn-only torch_cpu"
    assert f"ERROR: nothing was verified: {skipped}" in done.stdout
    assert f"nothing was verified of torch_cpu: it runs {samples.CASE}: pytest --ecornn-verify" in done.stdout


TWO_CASES = ("--ecornn-case", samples.CASE, "--ecornn-case", "mingru-T20-B2-H16-float32-projected")


def statuses(foreign: Foreign, *arguments: str, fresh: bool = False) -> dict[str, str]:
    """Of each row of a run."""
    foreign.run("--ecornn-bench", *TWO_CASES, *QUICK, *arguments, check=0, fresh=fresh)
    return {name: row["status"] for name, row in foreign.rows().items()}


@pytest.mark.test_all
def test_workers_that_are_new_processes_give_the_same_rows_as_one(foreign: Foreign) -> None:
    assert statuses(foreign) == statuses(foreign, "-n", "2", fresh=True)


def test_workers_give_the_same_rows_as_one_process(foreign: Foreign) -> None:
    assert statuses(foreign) == statuses(foreign, "-n", "2")
    compare = [str(Path(sys.executable).parent / "pytest-benchmark"), "compare", "reports/local/benchmark.json"]
    table = subprocess.run(compare, cwd=foreign.path, capture_output=True, text=True, check=True)
    # Of auto, fused_cpu, sequential, torch_cell_loop and torch_cpu.
    assert f"benchmark '{samples.CASE}': 5 tests" in table.stdout
    assert "sequential" in table.stdout


def test_a_process_that_dies_costs_its_own_row_alone(foreign: Foreign) -> None:
    text = samples.RIGHT.replace("outputs = []", "import ctypes; ctypes.CDLL(None)._exit(3)", 1)
    foreign.write("mine.py", text)
    foreign.run("--ecornn-bench", *MINE[:2], *CASE, *QUICK, "-n", "2", check=1)
    rows = foreign.rows()
    assert rows[f"mine-{samples.CASE}"]["status"] == "failed"
    assert "crashed" in rows[f"mine-{samples.CASE}"]["reason"]
    assert rows[f"sequential-{samples.CASE}"]["status"] == "passed"


def test_a_killed_run_resumes_and_repeats_no_finished_row(foreign: Foreign) -> None:
    cases = [a for n in (4, 5, 6, 7) for a in ("--ecornn-case", f"lstm-T{n}-B3-H8-float32")]
    cases += only("scan_cpu", "sequential", "torch_cpu")
    journal = foreign.path / "reports/local/journal.jsonl"
    command = foreign.command("--ecornn-bench", *cases, *QUICK)
    process = subprocess.Popen(command, cwd=foreign.path, env=environment(), stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while time.monotonic() < until and not (journal.exists() and len(journal.read_bytes().splitlines()) > 4):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {row.key: row for row in read(journal)[1]}
    assert before
    with journal.open("a") as file:
        file.write('{"kind": "bench')  # a line cut short
    done = foreign.run("--ecornn-bench", *cases, *QUICK, "--ecornn-resume", check=0)
    after = {row.key: row for row in read(journal)[1]}
    assert len(after) == 25  # with as many of properties, and the control
    assert all(after[key] == row for key, row in before.items())
    assert "25 rows" in done.stdout


SLOWLY = ("-p", "slowly")


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one-process", "two-workers"])
def test_a_run_begins_no_row_after_its_time_and_resumes(foreign: Foreign, workers: tuple[str, ...]) -> None:
    cases = [a for n in (4, 5, 6, 7) for a in ("--ecornn-case", f"lstm-T{n}-B3-H8-float32")]
    options = [
        "--ecornn-bench",
        *cases,
        *only("sequential", "cudnn"),
        *QUICK,
        *SLOWLY,
        *workers,
    ]  # cudnn refuses all in one test
    foreign.write("slowly.py", "import time\ndef pytest_runtest_teardown(): time.sleep(1)\n")

    def rows() -> dict[tuple[str, str, str], dict[str, Any]]:
        return {key: row for key, row in foreign.rows_by_key().items() if row["implementation"] != "cudnn"}

    done = foreign.run(*options, "--ecornn-seconds", "3", check=2)
    assert (match := re.search(r"WARNING: the 3 s are over, and (\d+) rows? not reached", done.stdout)), done.stdout
    assert "--ecornn-resume goes on from there" in done.stdout
    assert not re.search(r"\d error|ERROR", done.stdout)
    before = rows()
    assert 1 <= len(before) == 9 - int(match[1])  # four of cases, four of properties, the control
    assert foreign.report()["run"]["settings"]["rows not reached"] == int(match[1])
    done = foreign.run(*options, "--ecornn-seconds", "60", "--ecornn-resume", check=0)
    assert len(rows()) == 9
    assert "not reached" not in done.stdout
    assert "rows not reached" not in foreign.report()["run"]["settings"]
    assert all(rows()[name] == row for name, row in before.items())


def test_a_run_whose_time_is_over_still_fails_where_a_row_did(foreign: Foreign) -> None:
    foreign.write("mine.py", samples.RIGHT.replace("outputs = []", "raise RuntimeError; outputs = []", 1))
    foreign.write("slowly.py", "import time\ndef pytest_runtest_teardown(): time.sleep(1)\n")
    done = foreign.run("--ecornn-verify", *MINE, *CASE, *QUICK, *SLOWLY, "--ecornn-seconds", "1", check=1)
    assert "the 1 s are over" in done.stdout


def test_a_cell_comes_by_the_hook_as_its_documentation_shows(foreign: Foreign) -> None:
    from pytest_ecornn import hookspecs

    text = (inspect.getdoc(hookspecs.pytest_ecornn_cells) or "").partition("in conftest.py::")[2]
    foreign.write("conftest.py", textwrap.dedent(text))
    case = "peephole_lstm-T5-B2-H6-L2-float32-bidirectional-ragged-state-density0.5-training"
    done = foreign.run("--ecornn-verify", "--ecornn-case", case, "--ecornn-require", "sequential", check=0)
    assert "4 passed" in done.stdout  # the case and its properties, by sequential and auto


def test_an_implementation_comes_by_the_hook_and_by_an_ini_value(foreign: Foreign) -> None:
    foreign.write("hooked.py", samples.RIGHT)
    foreign.write("kernels/from_ini.py", samples.RIGHT)
    foreign.write("pytest.ini", "[pytest]\necornn_implementations = kernels\n")
    foreign.write(
        "conftest.py",
        "from pathlib import Path\n"
        "def pytest_ecornn_implementations(config):\n    return [Path(__file__).parent / 'hooked.py']\n",
    )
    foreign.run("--ecornn-verify", "--ecornn-case", samples.CASE, check=0)
    assert {f"hooked-{samples.CASE}", f"from_ini-{samples.CASE}"} <= foreign.rows().keys()


def test_an_implementation_comes_by_an_entry_point(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign.write("installed_kernel.py", samples.RIGHT)
    info, entry = "installed_kernel-1.dist-info", "[pytest_ecornn.implementations]\ninstalled_kernel = installed_kernel\n"
    foreign.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: installed-kernel\nVersion: 1\n")
    foreign.write(f"{info}/entry_points.txt", entry)
    monkeypatch.setenv("PYTHONPATH", str(foreign.path))
    foreign.run("--ecornn-verify", "--ecornn-case", samples.CASE, "--ecornn-only", "installed_kernel", check=0)


def test_collecting_leaves_an_earlier_journal_alone(foreign: Foreign) -> None:
    journal = foreign.write("reports/local/journal.jsonl", "precious")
    done = foreign.run("--collect-only", "-q", "--ecornn-bench", "--ecornn-cases", "full", check=0)
    assert journal.read_text() == "precious"
    assert done.stdout.count("test_benchmark[") >= 6_000
    assert re.search(r"^\d{5} rows unsupported, an item for each of \d+ implementations$", done.stdout, re.M)


def test_two_baselines_give_two_ratios(foreign: Foreign) -> None:
    foreign.write("mine.py", samples.RIGHT)
    baselines = ["--ecornn-baseline", "sequential", "--ecornn-baseline", "torch_cpu"]
    foreign.run("--ecornn-bench", *MINE[:2], *baselines, *CASE, *QUICK, check=0)
    against = [one["baseline"] for one in foreign.rows()[f"mine-{samples.CASE}"]["timing"]["against"]]
    assert against == ["sequential", "torch_cpu"]


def test_a_repository_path_to_the_suites_means_the_shipped_ones() -> None:
    root = Path(__file__).parents[2]
    arguments = ["--ecornn-verify", "--ecornn-case", samples.CASE, "--ecornn-only", "sequential", "--collect-only", "-q"]
    done = Foreign(root).run("suites/test_equivalence.py", *arguments, check=0)
    assert f"pytest_ecornn/suites/test_equivalence.py::test_fixed_case[sequential-{samples.CASE}]" in done.stdout


def test_a_users_package_named_as_the_suites_folder_stays_the_users(foreign: Foreign) -> None:
    foreign.write("suites/__init__.py", "OWN = 3\n")
    foreign.write("suites/test_own.py", "import suites\n\ndef test_own():\n    assert suites.OWN == 3\n")
    options = ["--ecornn-verify", "--ecornn-case", samples.CASE, "--ecornn-only", "sequential", "-k", "fixed or own"]
    for arguments in (["suites"], ["pytest_ecornn/suites/test_equivalence.py", "suites"]):
        done = foreign.run(*options, *arguments, check=0)
        assert "2 passed" in done.stdout


def test_drawn_refusals_of_build_are_counted_and_do_not_hide_the_rest(foreign: Foreign) -> None:
    text = samples.RIGHT.replace("from pytest_ecornn import", "from pytest_ecornn import Unsupported,").replace(
        "        def layer(",
        "        if case.has_state:\n            raise Unsupported('begins at zero')\n        def layer(",
        1,
    )
    foreign.write("mine.py", text)
    foreign.run("--ecornn-verify", *MINE, "--ecornn-profile", "quick", "-k", "drawn and mine-lstm-float32", check=0)
    (row,) = foreign.rows().values()
    assert (row["status"], row["refused"] > 0, row["examples"] > 0) == ("passed", True, True)
