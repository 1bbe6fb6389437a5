"""Load on this process's processors by others: other processes, the hypervisor, a container's quota. On Linux only.

/proc/stat counts in hundredths of a second, so a reading is for groups of blocks and not for one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

from pytest_ecornn.system.own_threads import usable_processors

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_WORK, _STOLEN = (0, 1, 2, 5, 6), 7  # of a processor's line: user, nice, system, irq, softirq; steal
# Of cpu.stat in each version of control groups, and how many a second.
_THROTTLED = {"throttled_usec": 1e6, "throttled_time": 1e9}


@dataclass(frozen=True)
class Load:
    """Load by others. others, stolen: processors taken on average. seconds: duration. throttled: share of it under a quota."""

    seconds: float
    processors: int
    others: float
    stolen: float
    throttled: float


class MachineLoad:
    """Measures from its construction on. `proc`, `cgroups`: folders in Linux's format."""

    def __init__(self, proc: Path = _PROC, cgroups: Path = _CGROUPS):
        self._stat, self._throttles = proc / "stat", list(_cpu_stats(proc, cgroups))
        self._usable = usable_processors()
        self._start = self._read()

    def load(self) -> Load | None:
        """Returns the load since construction; None where the system does not report it."""
        now = self._read()
        if self._start is None or now is None or not now[0] > self._start[0]:
            return None
        seconds, own, worked, stolen, throttled = (b - a for a, b in zip(self._start, now, strict=True))
        others = max(0.0, worked - own)
        return Load(seconds, len(self._usable), others / seconds, stolen / seconds, min(1.0, throttled / seconds))

    def _read(self) -> tuple[float, float, float, float, float] | None:
        """Wall clock, our own work, all work on our processors, time stolen from them, and time for which a quota held us."""
        try:
            lines = [line.split() for line in self._stat.read_text().splitlines() if line.startswith("cpu")]
            own = [list(map(int, counts)) for name, *counts in lines if name[3:].isdigit() and int(name[3:]) in self._usable]
            ticks = os.sysconf("SC_CLK_TCK")
            worked = sum(counts[field] for counts in own for field in _WORK) / ticks
            stolen = sum(counts[_STOLEN] for counts in own) / ticks
        except (OSError, ValueError, IndexError):
            return None
        return (perf_counter(), process_time(), worked, stolen, sum(map(_throttled, self._throttles))) if own else None


def _cpu_stats(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yields the cpu.stat of each control-group hierarchy, which counts how long a quota throttled this process's group.

    In a container a group's own folder may stand in the place of the root.
    """
    try:
        groups = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if not controllers or "cpu" in controllers.split(","):
            folders = (cgroups / controllers / path.strip("/"), cgroups / controllers)
            yield from islice((folder / "cpu.stat" for folder in folders if (folder / "cpu.stat").is_file()), 1)


def _throttled(path: Path) -> float:
    """Seconds under a quota's throttling; 0 where there is no quota."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
        return sum(int(value) / _THROTTLED[name] for name, value in lines if name in _THROTTLED)
    except (OSError, ValueError):
        return 0.0
