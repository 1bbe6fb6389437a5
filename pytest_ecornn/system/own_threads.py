"""This process's threads, OpenMP's as well, and the processors that they may run on, as Linux tells of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TASKS = Path("/proc/self/task")


def own_threads(tasks: Path = TASKS) -> list[str]:
    """Numbers of this process's threads; none where the system does not tell."""
    try:
        return os.listdir(tasks)
    except OSError:
        return []


def usable_processors() -> set[int]:
    """Numbers of those that any thread of this process may run on; the calling one may be bound to one of them."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    usable = os.sched_getaffinity(0)
    for thread in own_threads():
        with suppress(OSError):  # it has just ended
            usable |= os.sched_getaffinity(int(thread))
    return usable
