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
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_ecornn.system import file_locks, locking
from pytest_ecornn.system.gpus import lock as gpu_lock
from pytest_ecornn.system.gpus.lock import GpuTimingLock
from pytest_ecornn.system.locking import MachineLock, Patience

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no flock on Windows, where the lock does nothing")

# Takes the lock `count` times for `seconds` each and notes every entry and exit: O_APPEND writes this short are atomic.
# kind: "shared", "turn" (of a row of its own) or "row", which takes no turn. rows: the folder of its run, where it has others.
# Of a process that has GPU `gpu` it takes that one's lock. In the folder `start` it says that it is ready, and waits for "go".
WORKER = """
import os, sys, time
from contextlib import ExitStack
from pathlib import Path
from pytest_ecornn.system.locking import MachineLock
path, log, kind, count, seconds, gpu, start, rows = sys.argv[1:]
rows = Path(rows) if rows else None
lock, out = MachineLock(Path(path), rows), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
if gpu:
    from pytest_ecornn.system.gpus import lock as gpu_lock
    gpu_lock._gpu_file = lambda: Path(path + gpu)
    lock = gpu_lock.GpuTimingLock(Path(path), rows)
    lock.run = os.getppid()  # as workers of one run
if start:
    Path(f"{start}/{os.getpid()}").touch()
    while not Path(f"{start}/go").exists():
        time.sleep(0.002)
for _ in range(int(count)):
    with ExitStack() as held:
        held.enter_context(lock.shared() if kind == "shared" else lock.exclusive())
        if kind == "turn":
            held.enter_context(lock.turn())
        os.write(out, f"+{gpu}{kind}\\n".encode())
        time.sleep(float(seconds))
        os.write(out, f"-{gpu}{kind}\\n".encode())
"""


@contextmanager
def worker(
    folder: Path, kind: str, count: int, seconds: float, gpu: str = "", start: Path | str = "", rows: Path | str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [str(folder / "lock"), str(folder / "log"), kind, str(count), str(seconds), gpu, str(start), str(rows)]
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


class Clock:
    """Time that passes while somebody sleeps, for the module of the lock alone. `at` runs when its time has come."""

    def __init__(self) -> None:
        self.now, self.at = 0.0, dict[float, Callable[[], object]]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [moment for moment in self.at if moment <= self.now]:
            self.at.pop(moment)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(locking, "time", clock)
    monkeypatch.setattr(locking, "_POLL_SECONDS", 0.25)
    return clock


def hold(path: Path, is_shared: bool = False) -> int:
    """The file, locked as process 1 of run 34 would; closing it lets go."""
    descriptor = file_locks.open_file(path)
    assert file_locks.try_lock(descriptor, is_shared)
    os.pwrite(descriptor, b"1 34\n".rjust(64), 0)
    return descriptor


def wait_for_ticket(folder: Path) -> None:
    """Waits until somebody else has a place in the queue."""
    queue = file_locks.open_file(folder / "lock.queue")
    wait_until(lambda: not file_locks.Ticket(queue).is_first(), "a turn that waits")
    os.close(queue)


def take_turn(lock: MachineLock) -> float:
    with lock.exclusive(), lock.turn() as waited:
        return waited


def test_nobody_is_inside_beside_a_turn_and_verification_is_together(tmp_path: Path) -> None:
    kinds = ["turn", "turn", "shared", "shared", "shared"]
    with ExitStack() as workers:
        processes = [workers.enter_context(worker(tmp_path, kind, 30, 0.002)) for kind in kinds]
        assert [process.wait(60) for process in processes] == [0] * len(kinds)
    inside, together = {"turn": 0, "shared": 0}, 0
    events = (tmp_path / "log").read_text().split()
    for event in events:
        inside[event[1:]] += 1 if event[0] == "+" else -1
        assert inside["turn"] + bool(inside["shared"]) <= 1, f"a turn and another at once: {inside}"
        together = max(together, inside["shared"])
    assert len(events) == 2 * 30 * len(kinds)
    assert together > 1, "verification never overlapped: it does not share"


def test_verification_does_not_wait_for_others_that_a_turn_waits_for(tmp_path: Path) -> None:
    held = hold(tmp_path / "lock", is_shared=True)
    with worker(tmp_path, "turn", 1, 600) as waiting:
        wait_for_ticket(tmp_path)
        start = time.monotonic()
        with MachineLock(tmp_path / "lock").shared():
            assert time.monotonic() - start < 1.0
        assert waiting.poll() is None
    os.close(held)


def test_a_run_that_takes_turns_all_the_time_leaves_others_their_share(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    with ExitStack() as workers:
        processes = [workers.enter_context(worker(tmp_path, "turn", 10_000, 0.01, start=start)) for _ in range(6)]
        wait_until(lambda: len([*start.iterdir()]) == len(processes), "all workers", 60.0)
        lock = MachineLock(tmp_path / "lock")
        (start / "go").touch()
        wait_for(tmp_path, "+turn", 12)
        waits = [take_turn(lock) for _ in range(10)]
    assert max(waits) < 1.0, f"waited {max(waits):.2f} s for six turns of 0.01 s"
    assert min(waits[1:]) > 0.02, "passed others that had asked before"


@pytest.mark.parametrize("kind", ["shared", "turn"])
def test_a_killed_holder_lets_go(tmp_path: Path, kind: str) -> None:
    with worker(tmp_path, kind, 1, 600) as holder:
        wait_for(tmp_path, f"+{kind}")
        with worker(tmp_path, "turn", 1, 0) as waiting:
            time.sleep(0.2)
            assert waiting.poll() is None, "entered beside the holder"
            holder.send_signal(signal.SIGKILL)
            assert waiting.wait(10) == 0


def test_a_killed_one_that_waits_is_waited_for_no_more(tmp_path: Path) -> None:
    held = hold(tmp_path / "lock")
    with worker(tmp_path, "turn", 1, 600) as waiting:
        wait_for_ticket(tmp_path)
        waiting.kill()
        waiting.wait()
    os.close(held)
    assert take_turn(MachineLock(tmp_path / "lock")) == 0.0


@pytest.mark.parametrize("is_shared", [False, True], ids=["block", "verification"])
def test_a_run_waits_a_minute_in_all_and_then_goes_on_and_says_beside_whom(
    tmp_path: Path, clock: Clock, is_shared: bool
) -> None:
    lock, said = MachineLock(tmp_path / "lock"), list[str]()
    lock.say = said.append
    for turn in range(4):
        held = hold(tmp_path / "lock", is_shared)
        clock.at[clock.now + 14] = partial(os.close, held)
        assert take_turn(lock) == pytest.approx(14, abs=0.5), turn
        assert not lock.beside()
    held = hold(tmp_path / "lock", is_shared)
    assert take_turn(lock) == pytest.approx(4, abs=0.5)
    assert clock.now == pytest.approx(60, abs=0.5)
    assert lock.beside() == "timed beside process 1 of another run, after waits of 60 s in all"
    for _ in range(100):
        assert take_turn(lock) == 0.0
        with lock.shared():
            pass
    assert clock.now == pytest.approx(60, abs=0.5)
    os.close(held)
    take_turn(lock)
    assert not lock.beside()
    first, last = said
    assert first.startswith("waiting for the machine: process 1, of another run, uses it; 59 s more at most")
    assert last.startswith("waited 60 s in all for other runs")


def test_verification_too_waits_a_minute_at_most(tmp_path: Path, clock: Clock) -> None:
    held, lock = hold(tmp_path / "lock"), MachineLock(tmp_path / "lock")
    for _ in range(3):
        with lock.shared():
            pass
    assert clock.now == pytest.approx(60, abs=0.5)
    os.close(held)


def test_the_minute_is_that_of_all_workers_of_a_run(tmp_path: Path, clock: Clock) -> None:
    held, locks = hold(tmp_path / "lock"), [MachineLock(tmp_path / "lock") for _ in range(3)]
    for lock in locks:
        lock.patience = Patience(tmp_path / "waited")
    clock.at[50] = partial(os.close, held)
    assert take_turn(locks[0]) == pytest.approx(50, abs=0.5)
    held = hold(tmp_path / "lock")
    assert take_turn(locks[1]) == pytest.approx(10, abs=0.5)
    assert take_turn(locks[2]) == 0.0
    assert locks[2].beside()
    os.close(held)


def test_workers_of_a_run_leave_a_row_alone_between_its_blocks_however_long(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    with worker(tmp_path, "row", 1, 1.0, rows=rows):
        wait_for(tmp_path, "+row")
        stranger, own = MachineLock(tmp_path / "lock"), MachineLock(tmp_path / "lock", rows)
        own.patience = Patience(seconds=0.0)
        for use in (stranger.shared, stranger.exclusive):
            with use():
                assert "-row" not in (tmp_path / "log").read_text()
        with own.shared():
            assert "-row" in (tmp_path / "log").read_text()


def test_a_row_gets_in_among_workers_of_its_run_that_verify_all_the_time(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    with ExitStack() as readers:
        for _ in range(3):
            readers.enter_context(worker(tmp_path, "shared", 10_000, 0.05, rows=rows))
        wait_for(tmp_path, "+shared", 6)
        for _ in range(5):
            start, lock = time.monotonic(), MachineLock(tmp_path / "lock", rows)
            with lock.exclusive(), lock.turn() as waited:
                assert time.monotonic() - start < 2.0
            assert waited == 0.0, "a block waited for its own run"
            time.sleep(0.02)


@pytest.mark.parametrize("inner", ["shared", "exclusive", "turn"])
def test_taking_it_twice_raises_instead_of_waiting_forever(tmp_path: Path, inner: str) -> None:
    lock = MachineLock(tmp_path / "lock")
    with lock.shared():
        for _ in range(2):
            with pytest.raises(RuntimeError), getattr(lock, inner)():
                pass
    with lock.exclusive(), lock.turn():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="not re-entrant"), getattr(lock, inner)():
                pass
    with lock.exclusive():
        with pytest.raises(RuntimeError, match="not re-entrant"), lock.exclusive():
            pass
        with lock.shared():
            pass
        take = [lock.turn() for _ in range(2)]
        for turn in take:
            with turn:
                pass


def test_a_block_has_one_turn_within_a_row_and_its_wait_is_none_of_its_time(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path / "lock")
    with locking.turn() as waited:
        assert waited == 0.0
        other = hold(lock.path)
    threading.Timer(0.3, os.close, [other]).start()
    with lock.exclusive():
        before, own = time.perf_counter(), locking.own_time()
        with locking.turn() as waited, locking.turn() as again:
            assert (waited > 0.1, again) == (True, 0.0)
        assert locking.own_time() - own == pytest.approx(time.perf_counter() - before - waited, abs=0.05)
    with locking.turn() as waited:
        assert waited == 0.0


def test_a_turn_is_of_a_row(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a turn is within `exclusive`"), MachineLock(tmp_path / "lock").turn():
        pass


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path / "lock")
    with pytest.raises(ZeroDivisionError), lock.exclusive(), lock.turn():
        raise ZeroDivisionError
    assert take_turn(MachineLock(tmp_path / "lock")) == 0.0


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="lock"), MachineLock(tmp_path / "lock").shared():
        pass
    assert not (tmp_path / "victim").exists()


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(OSError, match=r"lock: expected a file to lock, got a folder .*no implementation is at fault"):
        MachineLock(tmp_path / "lock").check()


def test_whom_it_waits_for_is_said_once(tmp_path: Path, clock: Clock) -> None:
    lock, said = MachineLock(tmp_path / "lock"), list[str]()
    lock.say = said.append
    for _ in range(2):
        clock.at[clock.now + 3] = partial(os.close, hold(tmp_path / "lock"))
        with lock.shared():
            pass
    (line,) = said
    assert line.startswith("waiting for the machine: process 1, of another run, uses it; 59 s more at most")


def test_whom_it_is_beside_is_known_though_its_own_run_locked_last(tmp_path: Path, clock: Clock) -> None:
    held, lock = hold(tmp_path / "lock", is_shared=True), MachineLock(tmp_path / "lock")
    with lock.shared():
        pass
    take_turn(lock)
    assert lock.beside().startswith("timed beside process 1 of another run")
    os.close(held)


def test_a_dead_process_is_not_blamed(tmp_path: Path, clock: Clock) -> None:
    with worker(tmp_path, "turn", 1, 0) as dead:
        dead.wait(30)
    held, lock, said = file_locks.open_file(tmp_path / "lock"), MachineLock(tmp_path / "lock"), list[str]()
    lock.say = said.append
    assert file_locks.try_lock(held)
    take_turn(lock)
    assert lock.beside().startswith("timed beside another run")
    assert said[0].startswith("waiting for the machine: another process, of another run")
    os.close(held)


def test_short_waits_are_said_when_they_add_up(tmp_path: Path, clock: Clock) -> None:
    lock, said = MachineLock(tmp_path / "lock"), list[str]()
    lock.say = said.append
    for count in range(4):
        assert bool(said) == (count >= 2), count
        clock.at[clock.now + 0.4] = partial(os.close, hold(tmp_path / "lock"))
        take_turn(lock)
    assert len(said) == 1


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
    kinds, start, rows = (
        [(gpu, kind) for gpu in "ab" for kind in ("turn", "turn", "shared")],
        tmp_path / "start",
        tmp_path / "rows",
    )
    start.mkdir()
    rows.mkdir()
    with ExitStack() as workers:
        processes = [workers.enter_context(worker(tmp_path, kind, 30, 0.005, gpu, start, rows)) for gpu, kind in kinds]
        processes.append(workers.enter_context(worker(tmp_path, "turn", 10, 0.002, "", start)))
        wait_until(lambda: len([*start.iterdir()]) == len(processes), "all workers", 60.0)
        (start / "go").touch()
        assert [process.wait(90) for process in processes] == [0] * len(processes)
    inside, together = dict.fromkeys(["aturn", "ashared", "bturn", "bshared", "turn"], 0), False
    for event in (tmp_path / "log").read_text().split():
        inside[event[1:]] += 1 if event[0] == "+" else -1
        for gpu in "ab":
            assert inside[f"{gpu}turn"] + bool(inside[f"{gpu}shared"]) <= 1, f"two on one GPU: {inside}"
        assert inside["turn"] + bool(sum(inside.values()) - inside["turn"]) <= 1, f"beside one alone: {inside}"
        together |= inside["aturn"] + inside["bturn"] == 2
    assert together, "GPUs never timed side by side"


def test_a_lock_of_a_gpu_without_one_is_refused(tmp_path: Path) -> None:
    lock = GpuTimingLock()
    with pytest.raises(RuntimeError, match="expected a GPU of its own"), lock.exclusive(), lock.turn():
        pass


def test_each_gpu_has_a_lock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    paths = set()
    for uuid in "aab":
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, uuid=uuid: SimpleNamespace(uuid=uuid))
        paths.add(gpu_lock._gpu_file())
    assert len({*paths, MachineLock().path}) == 3
