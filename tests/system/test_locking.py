"""The machine lock between real processes: nobody beside a writer, no starvation, and death lets go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pytest_ecornn.system import file_locks
from pytest_ecornn.system.gpus.lock import GpuTimingLock
from pytest_ecornn.system.locking import MachineLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no flock on Windows, where the lock does nothing")

# Takes the lock `count` times for `seconds` each and notes every entry and exit: O_APPEND writes this short are atomic.
# Of a process that has GPU `gpu` it takes that one's lock. In the folder `start` it says that it is ready, and waits for "go".
WORKER = """
import os, sys, time
from pathlib import Path
from pytest_ecornn.system.locking import MachineLock
path, log, kind, count, seconds, gpu, start = sys.argv[1:]
lock, out = MachineLock(Path(path)), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
if gpu:
    from pytest_ecornn.system.gpus import lock as gpu_lock
    gpu_lock.device_lock = lambda device: MachineLock(Path(path + gpu))
    lock = gpu_lock.GpuTimingLock(Path(path))
    lock.run = os.getppid()  # as workers of one run
if start:
    Path(f"{start}/{os.getpid()}").touch()
    while not Path(f"{start}/go").exists():
        time.sleep(0.002)
for _ in range(int(count)):
    with getattr(lock, kind)():
        os.write(out, f"+{gpu}{kind}\\n".encode())
        time.sleep(float(seconds))
        os.write(out, f"-{gpu}{kind}\\n".encode())
"""


@contextmanager
def worker(
    folder: Path, kind: str, count: int, seconds: float, gpu: str = "", start: Path | str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(folder / "lock"), str(folder / "log"), kind, str(count), str(seconds), gpu, str(start)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", WORKER, *arguments], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"expected {what} within {seconds:g} s"
        time.sleep(0.005)


def wait_for(folder: Path, line: str, count: int = 1) -> None:
    log = folder / "log"
    wait_until(lambda: log.exists() and log.read_text().split().count(line) >= count, f"{count} {line!r}")


def test_nobody_is_inside_beside_a_writer_and_readers_are_together(tmp_path: Path) -> None:
    kinds = ["exclusive", "exclusive", "shared", "shared", "shared"]
    with ExitStack() as workers:
        processes = [workers.enter_context(worker(tmp_path, kind, 30, 0.002)) for kind in kinds]
        assert [process.wait(60) for process in processes] == [0] * len(kinds)
    inside, together = {"exclusive": 0, "shared": 0}, 0
    events = (tmp_path / "log").read_text().split()
    for event in events:
        inside[event[1:]] += 1 if event[0] == "+" else -1
        assert inside["exclusive"] + bool(inside["shared"]) <= 1, f"writer and another at once: {inside}"
        together = max(together, inside["shared"])
    assert len(events) == 2 * 30 * len(kinds)
    assert together > 1, "readers never overlapped: they do not share"


def test_a_writer_gets_in_among_readers_that_never_leave_it_free(tmp_path: Path) -> None:
    with ExitStack() as readers:
        for _ in range(3):
            readers.enter_context(worker(tmp_path, "shared", 10_000, 0.05))
        wait_for(tmp_path, "+shared", 6)
        for _ in range(5):
            start = time.monotonic()
            with MachineLock(tmp_path / "lock").exclusive():
                waited = time.monotonic() - start
            assert waited < 2.0, f"a writer waited {waited:.2f} s for readers of 0.05 s"
            time.sleep(0.02)


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_a_killed_holder_lets_go(tmp_path: Path, kind: str) -> None:
    with worker(tmp_path, kind, 1, 600) as holder:
        wait_for(tmp_path, f"+{kind}")
        with worker(tmp_path, "exclusive", 1, 0) as waiting:
            time.sleep(0.2)
            assert waiting.poll() is None, "entered beside the holder"
            holder.send_signal(signal.SIGKILL)
            assert waiting.wait(10) == 0


def test_a_killed_waiting_writer_lets_readers_pass(tmp_path: Path) -> None:
    with worker(tmp_path, "shared", 1, 600):
        wait_for(tmp_path, "+shared")
        with worker(tmp_path, "exclusive", 1, 600) as waiting:
            time.sleep(1.0)
            waiting.kill()
            waiting.wait()
        with worker(tmp_path, "shared", 1, 0) as reader:
            assert reader.wait(10) == 0


@pytest.mark.parametrize("outer", ["shared", "exclusive"])
@pytest.mark.parametrize("inner", ["shared", "exclusive"])
def test_taking_it_twice_raises_instead_of_waiting_forever(tmp_path: Path, outer: str, inner: str) -> None:
    lock = MachineLock(tmp_path / "lock")
    with getattr(lock, outer)():
        with pytest.raises(RuntimeError, match="not re-entrant"), getattr(lock, inner)():
            pass
        with pytest.raises(RuntimeError, match="not re-entrant"), getattr(lock, inner)():
            pass
    with lock.exclusive():
        pass


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path / "lock")
    with pytest.raises(ZeroDivisionError), lock.exclusive():
        raise ZeroDivisionError
    with MachineLock(tmp_path / "lock").exclusive():
        pass


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="lock"), MachineLock(tmp_path / "lock").shared():
        pass
    assert not (tmp_path / "victim").exists()


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(OSError, match=r"lock: expected a file to lock, got a folder .*no implementation is at fault"):
        MachineLock(tmp_path / "lock").check()


@pytest.mark.parametrize("is_own_run", [False, True])
def test_whom_it_waits_for_is_said_once_and_not_of_its_own_run(tmp_path: Path, is_own_run: bool) -> None:
    said: list[str] = []
    waiting = MachineLock(tmp_path / "lock")
    waiting.say = said.append
    with worker(tmp_path, "exclusive", 2, 1.0) as holder:
        waiting.run = holder.pid if is_own_run else 1
        for turn in (1, 2):
            wait_for(tmp_path, "+exclusive", turn)
            with waiting.shared():
                pass
    assert [line.split(",")[0] for line in said] == ([] if is_own_run else [f"waiting for the machine: process {holder.pid}"])


@pytest.mark.parametrize("owner", ["", "12 34\n"], ids=["none", "another's"])
def test_nobody_is_blamed_before_the_holder_had_time_to_write_its_name(tmp_path: Path, owner: str) -> None:
    (tmp_path / "lock").write_text(owner)
    held, said = file_locks.open_file(tmp_path / "lock"), list[str]()
    assert file_locks.try_lock(held)
    lock = MachineLock(tmp_path / "lock")
    lock.say = said.append
    release = threading.Timer(0.2, os.close, [held])
    release.start()
    with lock.shared():
        release.join()
    assert not said


def test_the_default_is_one_file_a_user_in_the_temporary_folder() -> None:
    assert MachineLock().path.name == f"pytest-ecornn-{os.getuid()}.lock"
    assert MachineLock().path == MachineLock().path


def test_gpus_time_side_by_side_and_none_beside_what_needs_the_machine(tmp_path: Path) -> None:
    kinds, start = [(gpu, kind) for gpu in "ab" for kind in ("exclusive", "exclusive", "shared")], tmp_path / "start"
    start.mkdir()
    with ExitStack() as workers:
        processes = [workers.enter_context(worker(tmp_path, kind, 30, 0.005, gpu, start)) for gpu, kind in kinds]
        processes.append(workers.enter_context(worker(tmp_path, "exclusive", 10, 0.002, "", start)))
        wait_until(lambda: len([*start.iterdir()]) == len(processes), "all workers", 60.0)
        (start / "go").touch()
        assert [process.wait(90) for process in processes] == [0] * len(processes)
    inside, together = dict.fromkeys(["aexclusive", "ashared", "bexclusive", "bshared", "exclusive"], 0), False
    for event in (tmp_path / "log").read_text().split():
        inside[event[1:]] += 1 if event[0] == "+" else -1
        for gpu in "ab":
            assert inside[f"{gpu}exclusive"] + bool(inside[f"{gpu}shared"]) <= 1, f"two on one GPU: {inside}"
        assert inside["exclusive"] + bool(sum(inside.values()) - inside["exclusive"]) <= 1, f"beside one alone: {inside}"
        together |= inside["aexclusive"] + inside["bexclusive"] == 2
    assert together, "GPUs never timed side by side"


def test_a_lock_of_a_gpu_without_one_is_refused(tmp_path: Path) -> None:
    lock = GpuTimingLock()
    with pytest.raises(RuntimeError, match="expected a GPU of its own"), lock.exclusive():
        pass
