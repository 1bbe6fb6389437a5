"""What implementations do not support: asked once for all workers, one test item each, and never dropped in silence."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.run.support import Support
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign, only

MIN_CASE = "mingru-T6-B3-H8-float32"
BOTH = ("--ecornn-case", samples.CASE, "--ecornn-case", MIN_CASE)
ASKS = "    def unsupported(self, case, device):\n"
RAISES = samples.RIGHT.replace(ASKS, f"{ASKS}        raise ArithmeticError('no answer')\n")
EXITS = samples.RIGHT.replace(ASKS, f"{ASKS}        import os\n        os.abort()\n")
# Each process that asks gets another answer, as from one that looks for free memory.
_ODD = "        import os\n        if os.getpid() % 2:\n            return 'an odd process'\n"
WAVERS = samples.RIGHT.replace(ASKS, f"{ASKS}{_ODD}")
MINE = ("--ecornn-implementations", "mine.py")
THREE = (*MINE, *only("mine", "sequential", "cudnn"), "--ecornn-case", samples.CASE)


def reason_of_mine_alone(foreign: Foreign) -> str:
    """That of the one of three whose row failed."""
    rows = foreign.rows()
    statuses = [rows[f"{name}-{samples.CASE}"]["status"] for name in ("mine", "sequential", "cudnn")]
    assert statuses == ["failed", "passed", "skipped"]
    return str(rows[f"mine-{samples.CASE}"]["reason"])


def test_what_an_implementation_cannot_run_is_one_line_in_terminal_report_and_junit(foreign: Foreign) -> None:
    foreign.write("mine.py", samples.RIGHT)
    options = [*MINE, *only("mine", "scan_cpu", "cudnn"), *BOTH, "--junitxml", "junit.xml"]
    done = foreign.run("--ecornn-bench", *options, *QUICK, check=0)
    lines = [line for line in done.stdout.splitlines() if "unsupported: " in line and line.startswith("[")]
    assert [line.partition("] ")[2] for line in lines] == [
        "cudnn: 4 of 4 rows unsupported: cuDNN runs on a CUDA device",
        "mine: 2 of 4 rows unsupported: runs a plain LSTM in float32",
        "scan_cpu: 2 of 4 rows unsupported: scan_cpu runs mingru and minlstm only: other cells are not linear in their state",
    ]
    assert "8 rows unsupported, an item for each of 3 implementations" in done.stdout
    assert "13 rows: 5 passed, 8 skipped" in done.stdout
    cases, report = foreign.junit(), foreign.report()
    own = [f"[mine-{samples.CASE}]", f"[scan_cpu-{MIN_CASE}]"]
    ran = [*(f"test_benchmark{name}" for name in own), f"test_control[torch_cpu-{samples.CASE}]"]
    ran += [f"test_properties{name}" for name in own]
    assert sorted(cases) == [*ran, *(f"test_unsupported[{name}]" for name in ("cudnn", "mine", "scan_cpu"))]
    (skipped,) = cases["test_unsupported[cudnn]"].iter("skipped")
    assert skipped.get("message") == "cudnn: 4 of 4 rows unsupported: cuDNN runs on a CUDA device"
    properties = {one.get("name"): one.get("value") for one in cases["test_unsupported[cudnn]"].iter("property")}
    assert (properties["ecornn_unsupported"], properties["ecornn_selected"]) == ("4", "4")
    assert report["run"]["skipped"]["cudnn"] == {"cuDNN runs on a CUDA device": 4}
    assert Counter(row["status"] for row in report["rows"]) == {"passed": 5, "skipped": 8}
    markdown = (foreign.path / "reports/local/report.md").read_text()
    assert "| cudnn | 4 of 4 | 100 % | cuDNN runs on a CUDA device |" in markdown
    assert "| mine | 2 of 4 | 50 % | runs a plain LSTM in float32 |" in markdown


def test_a_required_implementation_fails_for_what_it_does_not_support(foreign: Foreign) -> None:
    options = ["--ecornn-require", "scan_cpu", "--ecornn-only", "scan_cpu", *BOTH, "--junitxml", "junit.xml"]
    done = foreign.run("--ecornn-verify", *options, check=1)
    reason = "scan_cpu is required, but skipped: scan_cpu runs mingru and minlstm only"
    assert f"scan_cpu: 2 of 4 rows unsupported: {reason}" in done.stdout
    assert "1 failed, 2 passed" in done.stdout
    assert f"failed: scan_cpu {samples.CASE} (fixed) and 1 other row" in done.stdout
    command = rf'^again: pytest --ecornn-verify --ecornn-only scan_cpu --ecornn-case "{samples.CASE}" --ecornn-require scan_cpu'
    assert re.search(command, done.stdout, re.M)
    (failure,) = foreign.junit()["test_unsupported[scan_cpu]"].iter("failure")
    assert reason in str(failure.get("message"))
    assert Counter((row["kind"], row["status"]) for row in foreign.report()["rows"]) == {
        (kind, status): 1 for kind in ("fixed", "properties") for status in ("passed", "failed")
    }


def test_selection_applies_to_rows_that_are_not_supported(foreign: Foreign) -> None:
    options = ["--ecornn-verify", "--ecornn-require", "scan_cpu", *BOTH]
    assert "4 passed" in foreign.run(*options, "-k", "mingru and (sequential or scan_cpu)", check=0).stdout
    done = foreign.run(*options, "-k", "fixed and lstm and (scan_cpu or cudnn)", check=1)
    assert "1 failed, 1 skipped" in done.stdout
    assert "cudnn: 1 of 1 rows unsupported" in done.stdout


def test_one_that_raises_instead_of_answering_fails_by_its_own_rows(foreign: Foreign) -> None:
    foreign.write("mine.py", RAISES)
    baselines = ("--ecornn-baseline", "mine", "--ecornn-baseline", "sequential")
    foreign.run("--ecornn-bench", *THREE, *baselines, *QUICK, check=1)
    assert "got ArithmeticError at mine.py" in reason_of_mine_alone(foreign)


def test_workers_agree_on_what_an_implementation_answers_differently_each_time(foreign: Foreign) -> None:
    foreign.write("mine.py", WAVERS)
    done = foreign.run("--ecornn-verify", *THREE, "-n", "2", *QUICK)
    assert "Different tests were collected" not in done.stdout
    assert done.returncode in (0, 1), done.stdout[-3000:]
    assert done.stdout.count("cudnn: 2 of 2 rows unsupported") == 1
    assert foreign.rows()[f"sequential-{samples.CASE}"]["status"] == "passed"


def test_one_that_ends_its_process_when_asked_costs_its_own_rows(foreign: Foreign) -> None:
    foreign.write("mine.py", EXITS)
    foreign.run("--ecornn-bench", *THREE, "--ecornn-isolate", *QUICK, check=1)
    assert re.search(f"mine on {samples.CASE}: .*crashed \\(signal 6\\)", reason_of_mine_alone(foreign))


def test_a_first_run_has_few_items(foreign: Foreign) -> None:
    done = foreign.run_here("--ecornn-bench", "--collect-only", "-q", check=0)
    names = [line for line in done.stdout.splitlines() if "::test_" in line]
    grouped = [line for line in names if "::test_unsupported[" in line]
    assert len(names) < 160
    assert "fused_cpu-" in str(names)
    assert "fused_cpu_int8" not in str(names), "what rounds weights is named, or does not run"
    assert "torch_compile_cpu" not in str(names), "what compiles for long too"
    assert f"rows unsupported, an item for each of {len(grouped)} implementations" in done.stdout


def test_each_implementation_is_asked_once_a_run(tmp_path: Path) -> None:
    implementation, asked = discover([])["scan_cpu"], list[str]()
    cases, bases = [Case.parse(samples.CASE), Case.parse(MIN_CASE)], [Case.parse("gru-T4-B2-H8-float32")]

    def support() -> Support:
        return Support(tmp_path, cases, bases, asked.append)

    refusals = [support().refusal(implementation, case) for case in cases]
    assert [bool(reason) for reason in refusals] == [True, False]
    assert support().refusal(implementation, bases[0], is_drawn=True)
    assert asked == ["scan_cpu", ""]


def test_an_answer_counts_though_random_numbers_were_drawn_for_it(tmp_path: Path) -> None:
    path, case = tmp_path / "mine.py", Case.parse(MIN_CASE)
    path.write_text(samples.RIGHT.replace(ASKS, f"{ASKS}        torch.nn.LSTM(1, 1)\n"))
    mine = discover([path])["mine"]
    before = torch.get_rng_state()
    assert Support(tmp_path, [case], [], lambda name: None).refusal(mine, case) == "runs a plain LSTM in float32"
    assert torch.equal(torch.get_rng_state(), before)


def test_one_that_was_begun_to_be_asked_and_gave_no_answer_counts_as_supporting_all(tmp_path: Path) -> None:
    (tmp_path / "support-cudnn.begun").touch()
    support = Support(tmp_path, [Case.parse(samples.CASE)], [], print)
    assert support.refusal(discover([])["cudnn"], Case.parse(samples.CASE)) == ""
