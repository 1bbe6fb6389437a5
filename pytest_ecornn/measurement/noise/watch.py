"""Looks on while a column is measured, and says afterwards what others took of the machine, and of which blocks.

Others are other processes, the hypervisor and a container's quota, on Linux only. /proc/stat counts in hundredths of a second,
so a reading is for groups of blocks and not for one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.measurement import Timeable
from pytest_ecornn.measurement.noise.bounds import CALM, TimedBlockBounds
from pytest_ecornn.measurement.noise.waits import WatchedClock
from pytest_ecornn.measurement.remote import RemoteArm
from pytest_ecornn.results.rows import Disturbance
from pytest_ecornn.system import child_processes
from pytest_ecornn.system.gpus.others import GpuOthers
from pytest_ecornn.system.own_threads import usable_processors

_DIGITS = 4  # of a share that is stored
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_WORK, _STOLEN = (0, 1, 2, 5, 6), 7  # of a processor's line: user, nice, system, irq, softirq; steal
# Of cpu.stat in each version of control groups, and how many a second.
_THROTTLED = {"throttled_usec": 1e6, "throttled_time": 1e9}


@dataclass
class Waits:
    """The shares of each block's time that others may have cost at most, and for certain; empty where that is not known."""

    lost: list[float] = field(default_factory=list)
    delayed: list[float] = field(default_factory=list)


class Watch:
    """Watches one column's measurement. Within it, `after_block` is called after each block."""

    def __init__(self, clock: Timer, arms: Sequence[Timeable]):
        self._clock = WatchedClock(clock)
        self._arms, self._waits = arms, [Waits() for _ in arms]
        self._device = arms[0].candidate.device
        self._load: MachineLoad | None = None
        self._gpu: GpuOthers | None = None
        self._last: Disturbance | None = None

    def __enter__(self) -> Timer:
        """Starts the watch and returns the clock that times the column."""
        self._load, self._gpu = MachineLoad(), GpuOthers(self._device)
        return self._clock

    def __exit__(self, *error: object) -> None:
        """Ends what is noted, so that it says the same however late it is asked for."""
        self._last = self.disturbance()
        self._load = None
        self._clock.close()

    def after_block(self, arm: Timeable) -> None:
        """Notes the waits of a block: of this process's threads, or those that another process has seen of its own."""
        if self._clock.sees_waits:
            waits, seen = self.waits(arm), arm if isinstance(arm, RemoteArm) else self._clock
            waits.lost.append(round(seen.lost, _DIGITS))
            is_gpu = self._device.startswith("cuda")  # which works on while the calling thread waits
            waits.delayed.append(0.0 if is_gpu else round(seen.delayed, _DIGITS))

    def drop_block(self, arm: Timeable) -> None:
        """Forgets the arm's last block."""
        waits = self.waits(arm)
        del waits.lost[-1:], waits.delayed[-1:]

    def waits(self, arm: Timeable) -> Waits:
        return next(waits for watched, waits in zip(self._arms, self._waits, strict=True) if watched is arm)

    def bounds(self, arm: Timeable, disturbance: Disturbance | None) -> TimedBlockBounds:
        """Bounds of the arm's blocks so far, with the disturbance of all."""
        waits = self.waits(arm)
        return TimedBlockBounds.of(arm.samples_us, waits.lost, waits.delayed, disturbance)

    def disturbance(self) -> Disturbance | None:
        """Returns the disturbance from the beginning until now; None where the system does not report it."""
        load = self._load.load() if self._load else None
        if load is None or self._gpu is None:
            return self._last
        others, stolen, throttled, gpu, unseen = (
            round(share, _DIGITS) for share in (load.others, load.stolen, load.throttled, self._gpu.share(), self._clock.unseen)
        )
        lost = [share for waits in self._waits for share in waits.lost]
        disturbed = sum(share > CALM for share in lost)
        return Disturbance(
            load.seconds, load.processors, others, stolen, throttled, gpu, unseen, blocks=len(lost), disturbed=disturbed
        )


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
            worked = sum(counts[place] for counts in own for place in _WORK) / ticks
            stolen = sum(counts[_STOLEN] for counts in own) / ticks
        except (OSError, ValueError, IndexError):
            return None
        used = process_time() + child_processes.seconds_of_run()
        return (perf_counter(), used, worked, stolen, sum(map(_throttled, self._throttles))) if own else None


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
