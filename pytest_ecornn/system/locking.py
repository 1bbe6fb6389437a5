"""The lock on the machine: verification shares it, a timed block has it alone, and no run waits for others' for long.

Workers of one run take turns by the row, by a reader-writer lock that knows no limit: what they wait for is the run's own work.
Runs take turns by the block. A block waits for others' blocks in the order in which they came, and for others' verification.
Verification waits for others' blocks alone. A run that has waited `PATIENCE_SECONDS` in all goes on beside the others.

All is under flock(2) and lockf(3), which the kernel lets go of when their holder dies. Where there is no flock (Windows)
nothing is locked, and whoever times there must see to the quiet.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter  # now, as what is timed may put another in its place

from pytest_ecornn.system import file_locks

PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.002
_QUIET_SECONDS = 0.5  # of one wait, or of all, before it is worth a line
_PURPOSE = "this file gives a timed row the machine to itself, and no implementation is at fault"
_timing = list["MachineLock"]()  # in whose `exclusive` this process is


class Patience:
    """The seconds that a run may still wait for others, all of its processes together.

    path: a file of the run that grows by a byte for each millisecond waited; none where the run is this process.
    """

    def __init__(self, path: Path | None = None, seconds: float = PATIENCE_SECONDS):
        self._path, self._seconds, self._own, self._unwritten = path, seconds, 0.0, 0.0

    @property
    def spent(self) -> float:
        if self._path is None or not self._path.exists():
            return self._own
        return self._path.stat().st_size / 1000

    @property
    def left(self) -> float:
        return max(0.0, self._seconds - self.spent)

    def spend(self, seconds: float) -> None:
        self._own += seconds
        if self._path is not None:
            milliseconds, self._unwritten = divmod(self._unwritten + 1000 * seconds, 1)
            with self._path.open("ab") as file:  # bytes that processes append at once are all there
                file.write(bytes(int(milliseconds)))


@contextmanager
def turn() -> Iterator[float]:
    """The turn of a block where this process times a row within `MachineLock.exclusive`; within a turn and elsewhere nothing.

    Yields the seconds waited.
    """
    if not _timing or _timing[-1].is_in_turn:
        yield 0.0
        return
    with _timing[-1].turn() as waited:
        yield waited


def own_time() -> float:
    """The seconds of time.perf_counter, within a row less those that it has waited for turns."""
    return perf_counter() - (_timing[-1].waited if _timing else 0.0)


class MachineLock:
    """Lock on the machine, for one thread. Taking a part twice raises RuntimeError instead of a deadlock.

    `path` is created where it does not exist, together with a queue beside it, and never removed. rows: a folder in which the
    processes of this run have a lock of their own; None where this process is the run. Files are opened anew each time, so that
    a process forked between two uses does not hold the lock with us.
    `waiting` is entered while the lock is waited for. `say` is called with one line when another run's process is waited for,
    once for each such run, and when patience ends; `run` is what the processes of one run have in common, the process that
    began it.
    Raises file_locks.LockError where a path is no file that can be locked.
    """

    def __init__(self, path: Path | None = None, rows: Path | None = None):
        self.path, self.rows = path or default_path(), rows
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        self.say: Callable[[str], object] = lambda text: None
        self.run = os.getpid()
        self.patience = Patience()
        self.waited = 0.0  # seconds, for turns
        self._held = set[str]()
        self._announced = set[int | None]()
        self._other: tuple[int, int] | None = None  # of another run: the last process seen with the lock, and its run
        self._beside = dict[str, None]()
        self._is_impatient = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Verifies beside others. Waits while the run times a row, and while another run times a block."""
        with self._row(alone=False), self._machine(alone=False):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Times a row, whose blocks take turns: no other process of the run verifies or times. Waits without a limit for these.

        Within it `shared` is of other runs alone.
        """
        with self._row(alone=True):
            self._beside.clear()
            _timing.append(self)
            try:
                yield
            finally:
                _timing.remove(self)

    @contextmanager
    def turn(self) -> Iterator[float]:
        """Times a block: no other run verifies or times. Yields the seconds waited for that."""
        if "row" not in self._held:
            raise RuntimeError("expected a block of a row that is timed: a turn is within `exclusive`")
        with self._machine(alone=True) as waited:
            self.waited += waited
            yield waited

    @property
    def is_in_turn(self) -> bool:
        return "machine" in self._held

    def beside(self) -> str:
        """Who used the machine during turns of the row that was timed last; empty where each had it alone."""
        names = ", ".join(self._beside)
        return names and f"timed beside {names}, after waits of {PATIENCE_SECONDS:g} s in all"

    def check(self) -> None:
        """Raises file_locks.LockError where the lock could not be had by any row."""
        for path in (self.path, _queue(self.path)):
            os.close(_open(path))

    def _parts(self, alone: bool) -> Sequence[tuple[Path, bool]]:
        """The files to lock, in order, and whether each alone."""
        return ((self.path, alone),)

    @contextmanager
    def _row(self, alone: bool) -> Iterator[None]:
        if "row" in self._held and not alone:
            yield
            return
        with self._once("row" if alone else "shared row"), ExitStack() as files:
            if self.rows is not None:
                with self.waiting():
                    for path, is_alone in self._parts(alone):
                        files.callback(os.close, _locked_in_row(self.rows / f"{path.name}.rows", is_alone))
            yield

    @contextmanager
    def _machine(self, alone: bool) -> Iterator[float]:
        with self._once("machine"), ExitStack() as files:
            yield sum(self._enter(path, is_alone, files) for path, is_alone in self._parts(alone))

    @contextmanager
    def _once(self, part: str) -> Iterator[None]:
        if part in self._held or (part == "row" and self._held):
            raise RuntimeError(f"expected a free lock, but this process holds {self.path.name} already: it is not re-entrant")
        self._held.add(part)
        try:
            yield
        finally:
            self._held.discard(part)

    def _enter(self, path: Path, alone: bool, files: ExitStack) -> float:
        """Locks the file until `files` is closed, or goes on without. Returns the seconds waited."""
        descriptor = _open(path)
        files.callback(os.close, descriptor)
        with _unsupported_named(path):
            self._look_for_other(descriptor)
            if not alone and file_locks.try_lock(descriptor, is_shared=True):
                file_locks.write_owner(descriptor, self.run)
                return 0.0
            queue = _open(_queue(path))
            try:
                return self._wait(path, descriptor, alone, file_locks.Ticket(queue))
            finally:
                os.close(queue)

    def _wait(self, path: Path, descriptor: int, alone: bool, ticket: file_locks.Ticket) -> float:
        if ticket.is_first() and file_locks.try_lock(descriptor, not alone):
            file_locks.write_owner(descriptor, self.run)
            return 0.0
        start = last = time.monotonic()
        with self.waiting():
            while self.patience.left > 0:
                time.sleep(_POLL_SECONDS)
                last, before = time.monotonic(), last
                self.patience.spend(last - before)
                if (not alone or ticket.is_first()) and file_locks.try_lock(descriptor, not alone):
                    file_locks.write_owner(descriptor, self.run)
                    return last - start
                if last - start > _QUIET_SECONDS or (self.patience.spent > _QUIET_SECONDS and not self._announced):
                    self._look_for_other(descriptor)
                    self._announce(path)
        self._go_on_beside(descriptor, alone)
        return last - start

    def _go_on_beside(self, descriptor: int, alone: bool) -> None:
        """Notes whom a turn is beside. Others that wait for the machine see it, unless one has it alone."""
        self._look_for_other(descriptor)
        if alone:
            self._beside[f"process {self._other[0]} of another run" if self._other else "another run"] = None
            if file_locks.try_lock(descriptor, is_shared=True):
                file_locks.write_owner(descriptor, self.run)
        if not self._is_impatient:
            self._is_impatient = True
            self.say(f"waited {PATIENCE_SECONDS:g} s in all for other runs: from here on rows run beside these, and say so")

    def _look_for_other(self, descriptor: int) -> None:
        """Notes which process of another run locked the file last. That this run did since says nothing of it."""
        owner = file_locks.owner(descriptor)
        if owner is not None and owner[1] != self.run:
            self._other = owner
        if self._other and not file_locks.is_alive(self._other[0]):
            self._other = None

    def _announce(self, path: Path) -> None:
        run = self._other[1] if self._other else None
        if run in self._announced:
            return
        self._announced.add(run)
        who = f"process {self._other[0]}" if self._other else "another process"
        left = f"{self.patience.left:.0f} s more at most, then rows go on beside it"
        self.say(f"waiting for the machine: {who}, of another run, uses it; {left} ({path})")


@contextmanager
def _unsupported_named(path: Path) -> Iterator[None]:
    try:
        yield
    except file_locks.UnsupportedLock as error:
        raise file_locks.LockError(f"{path}: {error}; set TMPDIR to a folder on another one: {_PURPOSE}") from error


def _locked_in_row(path: Path, alone: bool) -> int:
    """The open file that holds the lock: closing it is letting go.

    Everyone passes through the turnstile; a writer stays in it until the lock is free, so that readers that come later wait.
    """
    turnstile = _open(path.with_name(f"{path.name}.turnstile"))
    try:
        descriptor = _open(path)
        try:
            with _unsupported_named(path):
                file_locks.wait_for_lock(turnstile)
                file_locks.wait_for_lock(descriptor, is_shared=not alone)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    finally:
        os.close(turnstile)


def _queue(path: Path) -> Path:
    return path.with_name(f"{path.name}.queue")


def _open(path: Path) -> int:
    try:
        return file_locks.open_file(path)
    except file_locks.LockError as error:
        raise file_locks.LockError(f"{error}; remove it, or set TMPDIR to a folder of your own: {_PURPOSE}") from error


def default_path(part: str = "") -> Path:
    """Returns where the user's lock of this machine lies, or that of a part of the machine, as one of its GPUs."""
    user = os.getuid() if sys.platform != "win32" else "all"
    return Path(tempfile.gettempdir()) / f"pytest-ecornn-{user}{part and f'-{part}'}.lock"
