"""What ends a process costs one row, or is an error with the name of the file that was imported; Ctrl-C ends the run."""

from __future__ import annotations

import pytest

from tests.helpers import samples
from tests.helpers.foreign import Foreign

OTHER_CASE = "lstm-T5-B3-H8-float32"


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "RaisedInterrupt: code raised KeyboardInterrupt, and nobody pressed Ctrl-C"),
        ("raise RuntimeError('r\\x1b[31m')", r"RuntimeError: r\x1b[31m"),
    ],
    ids=["exit", "interrupt", "an error with escapes"],
)
def test_what_ends_an_import_is_an_error_of_one_line_with_the_file(foreign: Foreign, line: str, raised: str) -> None:
    mine = foreign.write("mine.py", f"{line}\n{samples.RIGHT}")
    done = foreign.run_here("--ecornn-verify", "--ecornn-implementations", "mine.py", "--ecornn-case", samples.CASE, check=4)
    (error,) = (text for text in done.stderr.splitlines() if text.strip())
    assert error.startswith(f"ERROR: {mine}: importing it raised {raised}")
    assert "mend the module" in error
    assert "\x1b" not in error


def only_on_case(line: str) -> str:
    """A right layer, save that `line` runs in a call of T 6, the shared case."""
    return samples.RIGHT.replace("outputs = []", f"if case.steps == 6: {line}\n            outputs = []", 1)


NAMED = ("--ecornn-implementations", "kernels", "--ecornn-case", samples.CASE)
VERIFY = ("--ecornn-verify", *NAMED, "--ecornn-case", OTHER_CASE, "-k", "fixed and mine")


def test_a_raised_interrupt_and_a_death_cost_a_row_each_and_a_resumed_run_repeats_none(foreign: Foreign) -> None:
    foreign.write("kernels/mine_interrupts.py", only_on_case("raise KeyboardInterrupt"))
    foreign.write("kernels/mine_dies.py", only_on_case("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    foreign.run(*VERIFY, "--ecornn-isolate", check=1)
    rows = foreign.rows()
    assert {row["kind"] for row in rows.values()} == {"fixed"}
    assert {name for name, row in rows.items() if row["status"] == "failed"} == {
        f"mine_interrupts-{samples.CASE}", f"mine_dies-{samples.CASE}",
    }  # fmt: skip
    assert "RaisedInterrupt at mine_interrupts.py" in rows[f"mine_interrupts-{samples.CASE}"]["reason"]
    assert "was killed (signal 9)" in rows[f"mine_dies-{samples.CASE}"]["reason"]
    done = foreign.run(*VERIFY, "--ecornn-isolate", "--ecornn-resume", check=1)
    assert "node down" not in done.stdout
    assert foreign.rows() == rows


def test_an_interrupted_first_row_warns_of_nothing(foreign: Foreign) -> None:
    foreign.write("kernels/mine.py", only_on_case("import os, signal; os.kill(os.getpid(), signal.SIGINT)"))
    done = foreign.run("--ecornn-bench", *NAMED, "--ecornn-only", "mine", check=2)
    assert "KeyboardInterrupt" in done.stdout
    assert "warning" not in done.stdout.lower()


def test_a_raised_interrupt_costs_a_row_and_a_signal_ends_the_run(foreign: Foreign) -> None:
    foreign.write("kernels/mine_a.py", only_on_case("raise KeyboardInterrupt"))
    foreign.write("kernels/mine_b.py", only_on_case("import os, signal; os.kill(os.getpid(), signal.SIGINT)"))
    done = foreign.run(*VERIFY, check=2)
    assert {name: row["status"] for name, row in foreign.rows().items()} == {f"mine_a-{samples.CASE}": "failed"}
    assert "kept: 1 of 1 finished row" in done.stdout


REFUSALS_FIRST = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    yield
    items.sort(key=lambda item: type(item).__name__ != "UnsupportedItem")
"""


def test_a_case_that_an_interrupted_run_has_not_reached_is_refused_by_nobody(foreign: Foreign) -> None:
    """Among several workers refusals may be reported first."""
    foreign.write("conftest.py", REFUSALS_FIRST)
    foreign.write("kernels/mine.py", only_on_case("import os, signal; os.kill(os.getpid(), signal.SIGINT)"))
    refusing = samples.RIGHT.replace("if case.cell", "if case.steps == 6 or case.cell", 1)
    foreign.write("kernels/mine_refuses.py", refusing)
    cases = ("--ecornn-implementations", "kernels", "--ecornn-case", OTHER_CASE, "--ecornn-case", samples.CASE)
    only = ("--ecornn-only", "mine", "--ecornn-only", "mine_refuses", "-k", "test_benchmark")
    done = foreign.run("--ecornn-bench", *cases, *only, check=2)
    assert {row["case"] for row in foreign.rows().values()} == {OTHER_CASE}
    assert "refused by every implementation" not in done.stdout
