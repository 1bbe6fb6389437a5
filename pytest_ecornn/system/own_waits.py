"""How long this process's threads waited for a processor, as Linux counts it in /proc; elsewhere nothing is known.

A thread that began and ended between two readings is seen in neither: `used` tells how much of the work that hides.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id
from time import clock_getres

TASKS = Path("/proc/self/task")
_NS = 1e-9
_CLOCK_MONOTONIC_COARSE, _LONGEST_TICK = 6, 0.01  # Linux's clock that advances once a tick; a tick where there is no such clock
_LONGEST_LINE = 80


@dataclass(frozen=True)
class Waited:
    """Seconds that the observed threads waited and worked between two readings, summed over threads.

    caller: that the one waited which took the readings. others: how many threads there are beside that one.
    """

    wait: float
    used: float
    caller: float
    others: int = 0


def tick() -> float:
    """Seconds between two of the system's ticks. The work of a thread that runs on another processor is counted at these."""
    try:
        return clock_getres(_CLOCK_MONOTONIC_COARSE)
    except OSError:
        return _LONGEST_TICK


def own_threads(tasks: Path = TASKS) -> list[str]:
    """Numbers of this process's threads; none where the system does not tell."""
    try:
        return os.listdir(tasks)
    except OSError:
        return []


class OwnWaits:
    """Readings of all threads, OpenMP's as well. A thread's file stays open until `close`, since to open it takes longest."""

    def __init__(self, tasks: Path = TASKS):
        self._tasks = tasks
        self._files: dict[str, int] = {}
        self.is_known = self._read_all() is not None
        self.close()

    def read(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds that each thread has worked and waited; nothing where that is not known."""
        return (self._read_all() or {}) if self.is_known else {}

    def since(self, before: dict[str, tuple[int, int]]) -> Waited:
        """A thread that began since has waited from its beginning."""
        spans = {thread: _difference(now, before.get(thread, (0, 0))) for thread, now in self.read().items()}
        used, wait = (sum(span[part] for span in spans.values()) * _NS for part in (0, 1))
        own = str(get_native_id())
        return Waited(wait, used, spans.get(own, (0, 0))[1] * _NS, len(spans.keys() - {own}))

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _read_all(self) -> dict[str, tuple[int, int]] | None:
        """Reads the counts of all threads; None where the system has no such count."""
        found = {thread: counts for thread in own_threads(self._tasks) if (counts := self._counts(thread)) is not None}
        for ended in self._files.keys() - found.keys():
            os.close(self._files.pop(ended))
        return found or None

    def _counts(self, thread: str) -> tuple[int, int] | None:
        """Reads the nanoseconds that a thread has worked and waited; None for one that has just ended."""
        try:
            if thread not in self._files:
                self._files[thread] = os.open(self._tasks / thread / "schedstat", os.O_RDONLY)
            worked, waited, _ = os.pread(self._files[thread], _LONGEST_LINE, 0).split()
        except (OSError, ValueError):
            return None
        return int(worked), int(waited)


def _difference(now: tuple[int, int], then: tuple[int, int]) -> tuple[int, int]:
    return now[0] - then[0], now[1] - then[1]
