"""What ends or spoils a process: how it is told, how a row's time and memory are limited, and what a full disk leaves."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_ecornn.results.journal import Journal, JournalError, read
from pytest_ecornn.system import faults, machine, memory
from pytest_ecornn.system.deadline import GRACE_SECONDS, Timeout
from pytest_ecornn.system.last_words import CrashReport, CurrentWork
from pytest_ecornn.system.locking import MachineLock
from tests.helpers.reporting_samples import CASES, row


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGSEGV, "crashed (signal 11): Segmentation fault"),
        (-signal.SIGKILL, "was killed (signal 9): by hand, or by the system because memory ran out"),
        (0, "exited (status 0)"),
        (None, "ended its process"),
    ],
)
def test_an_exit_status_in_words(status: int | None, words: str) -> None:
    assert faults.exit_reason(status) == words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "ran out of memory: MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "ran out of memory: CUDA out of memory. Tried"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "ran out of memory: DefaultCPUAllocator: can't allocate memory",
        ),
        (RuntimeError("shapes do not match"), ""),
    ],
)
def test_memory_that_ran_out_is_told_from_other_errors(error: Exception, words: str) -> None:
    assert faults.unrecoverable_reason(error, "cpu") == words


def test_a_context_is_poisoned_while_waiting_for_its_device_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize(device: str) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    assert faults.sticky_cuda_error("cuda") == ""  # nothing runs there yet
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert faults.sticky_cuda_error("cpu") == ""
    assert (
        faults.unrecoverable_reason(None, "cuda:1")
        == "CUDA context is poisoned: CUDA error: an illegal memory access was encountered"
    )


def test_what_is_available_is_less_than_all_there_is() -> None:
    assert 0 < (memory.available_bytes() or 0) < machine.memory_bytes()


def test_a_container_limits_what_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (tmp_path / "max", tmp_path / "current")
    monkeypatch.setattr(memory, "_CONTAINER", (files,))
    files[1].write_text("1000\n")
    files[0].write_text("max\n")
    assert (memory.available_bytes() or 0) > 2**20
    files[0].write_text("5000\n")
    assert memory.available_bytes() == 4000


@pytest.fixture
def deadline(tmp_path: Path) -> Iterator[Timeout]:
    with (tmp_path / "gw0.stack").open("a") as stack:
        deadline = Timeout(stack)
        yield deadline
        deadline.stop()


def test_a_deadline_stands_still_while_it_is_paused(deadline: Timeout, tmp_path: Path) -> None:
    is_over = threading.Event()
    deadline.start(0.3, is_over.set)
    with deadline.paused():
        assert not is_over.wait(0.6)
    assert is_over.wait(5)
    left = CrashReport(tmp_path, "gw0")
    assert left.timed_out
    assert left.crash_location(Path(__file__)).startswith(f" at {Path(__file__).name}:")


def test_a_deadline_that_was_met_ends_nothing(deadline: Timeout) -> None:
    is_over = threading.Event()
    deadline.start(0.1, is_over.set)
    deadline.stop()
    with deadline.paused():
        pass
    assert not is_over.wait(0.3)


def test_a_deadline_ends_native_code_that_keeps_the_interpreter_to_itself(tmp_path: Path) -> None:
    hang = """
        import ctypes, sys
        from pytest_ecornn.system.deadline import Timeout
        Timeout(open(sys.argv[1], "a")).start(0.1, lambda: None)
        ctypes.PyDLL(None).sleep(60)
    """
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(hang), tmp_path / "gw0.stack"], timeout=30)
    assert done.returncode == 1
    assert time.monotonic() - start < GRACE_SECONDS + 20
    assert CrashReport(tmp_path, "gw0").timed_out


def test_a_row_that_waits_for_the_machine_is_not_late(deadline: Timeout, tmp_path: Path) -> None:
    is_over = threading.Event()
    mine, others = MachineLock(tmp_path / "lock"), MachineLock(tmp_path / "lock")
    mine.waiting = deadline.paused
    holding = others.exclusive()
    holding.__enter__()
    threading.Timer(0.8, holding.__exit__, (None, None, None)).start()
    deadline.start(0.4, is_over.set)
    with mine.shared():
        assert not is_over.is_set()
        assert is_over.wait(5)


def test_last_words_are_read_as_they_were_written(tmp_path: Path) -> None:
    left = CrashReport(tmp_path, "gw0")
    assert left.read() == CurrentWork()
    words = CurrentWork("mine", "lstm-T4-B3-H8-float32", "torch_cpu", "ran out of memory", True)
    left.write(words)
    assert left.read() == words


def test_a_full_disk_leaves_whole_rows_alone_in_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {}, is_resumed=False)
    journal.add(row("mine", CASES[0], "fixed"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 50, before[1]))
        with pytest.raises(JournalError, match="cannot be written"):
            journal.add(row("mine", CASES[1], "fixed"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (journal.kept, len(journal.rows)) == (1, 2)
    assert journal.path.read_bytes().endswith(b"\n")
    assert [one.case for one in read(journal.path)[1]] == [CASES[0]]
