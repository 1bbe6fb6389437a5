"""What surrounds a run: other runs, killed runs, planted files, caches, terminals and other machines."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest._io import TerminalWriter

from pytest_ecornn.run.hooks import screen
from pytest_ecornn.system.locking import MachineLock
from tests.helpers import samples
from tests.helpers.foreign import BRIEFLY, QUICK, Foreign, environment
from tests.helpers.reporting_samples import row, sample_rows

_OTHER_CASE = "lstm-T5-B3-H8-float32"
_CASE = ("--ecornn-case", samples.CASE)
_BUILD = "    def build(self, case, weights):\n"
# Its `build` writes the number of its process into the file "begun", and ends when the file "go" is there.
_WAIT = """
        import os, pathlib, time
        pathlib.Path("begins").write_text(str(os.getpid()))
        os.rename("begins", "begun")
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
"""
_WAITING = samples.RIGHT.replace(_BUILD, _BUILD + _WAIT)


pytestmark = pytest.mark.usefixtures("own_folders")


def wait_until(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"expected {path.name} within 60 s"
        time.sleep(0.01)


@contextmanager
def waiting_run(foreign: Foreign) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A run in the midst of its first row, and the number of its process."""
    path = foreign.write("waiting.py", _WAITING)
    options = ["--ecornn-verify", "--ecornn-implementations", str(path), "--ecornn-only", "waiting", *_CASE, *QUICK]
    process = subprocess.Popen(foreign.command(*options), cwd=foreign.path, env=environment(), stdout=subprocess.DEVNULL)
    begun = foreign.path / "begun"
    try:
        wait_until(begun)
        yield process, int(begun.read_text())
    finally:
        if begun.exists() and process.poll() is None:
            os.kill(int(begun.read_text()), signal.SIGKILL)
        process.kill()
        process.wait()


def test_a_second_run_with_the_same_report_folder_is_refused_and_the_first_goes_on(foreign: Foreign) -> None:
    with waiting_run(foreign) as (first, pid):
        done = foreign.run_here("--ecornn-verify", "--ecornn-only", "sequential", "--ecornn-case", _OTHER_CASE, check=4)
        assert f"expected a report folder that no other run writes into, but process {pid} does" in done.stderr
        assert "choose another --ecornn-report" in done.stderr
        (foreign.path / "go").touch()
        assert first.wait(60) == 0
    assert foreign.rows().keys() == {f"waiting-{samples.CASE}"}
    assert [path.name for path in (foreign.path / "reports/local").glob(".*")] == []


def test_a_resume_repeats_no_row_not_even_a_failed_one_and_looks_at_its_own_sources_and_cases(foreign: Foreign) -> None:
    mine = foreign.write("mine.py", samples.WRONG)
    options = ["--ecornn-verify", "--ecornn-implementations", str(mine), "--ecornn-only", "mine", *BRIEFLY]
    foreign.run(*options, *_CASE, check=1)
    before = foreign.rows()
    foreign.write("notes.py", "# unrelated")
    (foreign.path / ".#mine.py").symlink_to("user@host.1234:56")  # Emacs's lock
    (foreign.path / "folder.py").mkdir()
    foreign.run(*options, *_CASE, "--ecornn-resume", check=1)
    assert foreign.rows() == before
    journal = (foreign.path / "reports/local/journal.jsonl").read_text()
    done = foreign.run_here(*options, "--ecornn-case", _OTHER_CASE, "--ecornn-resume", check=4)
    assert f"cases: {samples.CASE} and {_OTHER_CASE}" in done.stderr
    assert "repeat the options of the interrupted run, or run without --ecornn-resume" in done.stderr
    assert (foreign.path / "reports/local/journal.jsonl").read_text() == journal
    for name, text in (("_shared.py", ""), ("mine.py", samples.RIGHT)):
        foreign.write(name, text)
        assert "mine has changed" in foreign.run_here(*options, *_CASE, "--ecornn-resume", check=4).stderr
        (foreign.path / "_shared.py").unlink(missing_ok=True)


def test_a_run_that_waits_for_the_machine_says_for_whom_and_removes_what_a_killed_one_left(foreign: Foreign) -> None:
    with waiting_run(foreign) as (killed, pid):
        os.kill(pid, signal.SIGKILL)
        killed.wait()
    temporary = Path(os.environ["TMPDIR"])
    left = [path for path in temporary.glob("pytest-ecornn-*") if path.is_dir()]
    assert len(left) == 1
    unrelated = temporary / "pytest-ecornn-clone"
    unrelated.mkdir()
    lock = MachineLock(temporary / f"pytest-ecornn-{os.getuid()}.lock")
    command = foreign.command("--ecornn-verify", "--ecornn-only", "sequential", *_CASE, *QUICK)
    with lock.exclusive(), lock.turn():
        process = subprocess.Popen(command, cwd=foreign.path, env=environment(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = next(line for line in process.stdout if "waiting" in line or "passed" in line)
        assert said.startswith(f"waiting for the machine: process {os.getpid()}, of another run, uses it")
        assert re.search(r"(60|5\d) s more at most, then rows go on beside it", said)
        assert str(lock.path) in said
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert not left[0].exists()
    assert [path for path in temporary.glob("pytest-ecornn-*") if path.is_dir()] == [unrelated]


def test_a_run_among_verification_that_never_ends_is_timed_beside_it_and_says_so(foreign: Foreign) -> None:
    foreign.write(
        "hasty.py", "from pytest_ecornn.system import locking\nlocking.Patience.__init__.__defaults__ = (None, 2.0)\n"
    )
    lock = MachineLock(Path(os.environ["TMPDIR"]) / f"pytest-ecornn-{os.getuid()}.lock")
    options = ("--ecornn-only", "sequential", *_CASE, *QUICK, "-p", "hasty")
    with lock.shared():
        done = foreign.run("--ecornn-bench", *options, check=0)
    assert f"process {os.getpid()}, of another run, uses it; " in done.stdout
    timed = [row["beside"] for row in foreign.report()["rows"] if row["timing"]]
    assert timed == [f"timed beside process {os.getpid()} of another run, after waits of 60 s in all"] * len(timed)
    with lock.exclusive(), lock.turn():
        assert foreign.run("--ecornn-verify", *options, check=0)


def test_what_stands_in_the_locks_place_is_named_and_no_implementation_blamed(foreign: Foreign) -> None:
    path = Path(os.environ["TMPDIR"]) / f"pytest-ecornn-{os.getuid()}.lock"
    path.symlink_to("elsewhere")
    done = foreign.run_here("--ecornn-verify", "--ecornn-only", "sequential", *_CASE, check=4)
    assert f"{path}: expected a file to lock, got a symbolic link" in done.stderr
    assert "set TMPDIR to a folder of your own" in done.stderr
    assert "no implementation is at fault" in done.stderr


def test_nothing_is_left_that_was_not_asked_for(foreign: Foreign) -> None:
    foreign.write(
        "few.py", "from pytest_ecornn.run import exploration\nexploration.PROFILES['quick'] = exploration.Profile(1, 0)\n"
    )
    options = ["--ecornn-only", "sequential", "-k", "drawn and rnn_tanh-float32", "--ecornn-profile", "quick", "-p", "few"]
    foreign.run("--ecornn-verify", *options, check=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECORNN_CACHE_DIR", "/dev/null/absent")  # no folder can be made there
        foreign.run("--ecornn-verify", *options, "-W", "error", check=0)
    foreign.run("--ecornn-selfcheck", "-k", "no_such_item", check=5)
    assert {path.name for path in foreign.path.iterdir()} - {"__pycache__"} == {"few.py", "reports"}


def test_scan_cpu_stores_its_kernels_in_the_cache_folder(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    case = ("--ecornn-case", "mingru-T4-B2-H8-float32-projected", "-k", "fixed", *QUICK)
    options = ["--ecornn-verify", "--ecornn-only", "scan_cpu", "--ecornn-require", "scan_cpu", *case]
    foreign.run(*options, check=0)
    assert list((Path(os.environ["ECORNN_CACHE_DIR"]) / "cpu").glob("forward-mingru-float32-float32-*.o"))
    monkeypatch.setenv("ECORNN_CACHE_DIR", "/dev/null/absent")
    foreign.run(*options, check=0)


def test_another_arm_processor_is_another_kind_of_machine(foreign: Foreign) -> None:
    foreign.write(
        "arm.py",
        "import os\nfrom pathlib import Path\nfrom pytest_ecornn.system import machine\nread = machine._read\n"
        "text = f'processor : 0\\nCPU implementer\\t: 0x41\\nCPU part\\t: {os.environ[\"PART\"]}\\n'\n"
        "machine._read = lambda path: text if path == Path('/proc/cpuinfo') else read(path)\n",
    )
    options = ["--ecornn-bench", "--ecornn-only", "sequential", *_CASE, *QUICK, "-p", "arm"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PART", "0xd0c")
        foreign.run(*options, "--ecornn-report", "stored", check=0)
        patch.setenv("PART", "0xd40")
        done = foreign.run(*options, "--ecornn-compare", "stored/report.json", check=4)
    assert "is of another kind of machine (cpu: " in done.stderr
    assert "part 0xd0c" in done.stderr
    assert "part 0xd40" in done.stderr


@dataclass
class Reporter:
    """As much of pytest's terminal reporter as the summary uses. `isatty` is a bool, as it is before pytest 8.4.2."""

    width: int
    encoding: str = "utf-8"
    isatty: bool = True

    def __post_init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tw = TerminalWriter(io.TextIOWrapper(self._bytes, encoding=self.encoding))
        self._tw.fullwidth, self._tw.hasmarkup, self.write = self.width, False, self._tw.write

    def section(self, title: str, **_: object) -> None:
        self._tw.line(title)

    @property
    def lines(self) -> list[str]:
        self._tw.flush()
        return self._bytes.getvalue().decode(self.encoding).splitlines()


@pytest.mark.parametrize(
    ("width", "encoding", "is_terminal"),
    [(40, "utf-8", True), (80, "utf-8", True), (80, "latin-1", True), (200, "utf-8", False)],
)
def test_the_summary_can_be_read_on_any_terminal(width: int, encoding: str, is_terminal: bool) -> None:
    reporter = Reporter(width, encoding, is_terminal)
    screen.write_summary(reporter, sample_rows(), {}, None, ["report.md"])
    lines = reporter.lines
    assert "report.md" in lines
    assert not [line for line in lines if "\\u" in line or len(line) > width]
    assert any("blocked_cpu" in line for line in lines)
    assert any("2.31 ms" in line for line in lines)
    assert not [line for line in lines if 0 < len(line.strip()) < 3], "a column of single letters"
    assert any("verdict: faster" in line for line in lines) == (width == 40)


def test_a_case_that_was_skipped_by_all_is_counted_and_has_no_line() -> None:
    reporter, case = Reporter(120), "gru-T9-B2-H7-float32"
    screen.write_summary(reporter, [*sample_rows(), row("scan_cpu", case, status="skipped", reason="no gru")], {}, None, [])
    assert not [line for line in reporter.lines if case in line]
    assert any("5 cases: " in line and "1 refused by every implementation" in line for line in reporter.lines)


def test_the_summary_on_a_stream_of_ascii_is_a_table_of_lines(foreign: Foreign) -> None:
    foreign.write("ascii_stream.py", "import sys\nsys.stdout.reconfigure(encoding='ascii')\n")
    options = ["--ecornn-only", "sequential", *_CASE, *QUICK, "-p", "ascii_stream"]
    done = foreign.run("--ecornn-bench", *options, check=0)
    assert "\\u" not in done.stdout
    assert re.search(r"^-+\+-+\+[-+]+$", done.stdout, re.MULTILINE)
