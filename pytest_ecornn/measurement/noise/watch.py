"""Looks on while a column is measured, and says afterwards what others took of the machine, and of which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.measurement import Timeable
from pytest_ecornn.measurement.noise.bounds import CALM
from pytest_ecornn.measurement.noise.load import MachineLoad
from pytest_ecornn.measurement.noise.waits import WatchedClock
from pytest_ecornn.results.rows import Disturbance
from pytest_ecornn.system.gpus.others import GpuOthers

_DIGITS = 4  # of a share that is stored


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
        self._device = arms[0].candidate.case.device
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
        if self._clock.sees_waits:
            waits = self.waits(arm)
            waits.lost.append(round(self._clock.lost, _DIGITS))
            is_gpu = self._device.startswith("cuda")  # which works on while the calling thread waits
            waits.delayed.append(0.0 if is_gpu else round(self._clock.delayed, _DIGITS))

    def waits(self, arm: Timeable) -> Waits:
        return next(waits for watched, waits in zip(self._arms, self._waits, strict=True) if watched is arm)

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
