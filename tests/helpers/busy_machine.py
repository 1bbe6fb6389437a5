"""Two processors that two threads share with spinning processes, simulated: what their blocks take and wait.

A scheduler gives each process a slice of 4 ms in turn and evens out the queues now and then. The threads work alone and in
parallel by turns, and spin while they wait for each other, as OpenMP's do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pytest_ecornn.measurement.noise.bounds import TimedBlockBounds
from pytest_ecornn.measurement.noise.waits import TimedSpan
from pytest_ecornn.results.rows import Disturbance

_STEP, _SLICE, _BALANCING, _SETTLING = 2.5e-5, 4e-3, 20e-3, 8e-3
_CALLER, _WORKER = "caller", "worker"
_PROCESSORS, _TICK = 2, 4e-3


@dataclass(frozen=True)
class Layer:
    """A call: so many units, each of some seconds of the caller alone and then of both threads."""

    units: int
    alone: float
    together: float


class Scheduler:
    """`run`: who has a processor for the next step."""

    def __init__(self, spinning: int, seed: int):
        self.random = random.Random(seed)
        self._queues = [[_CALLER], [_WORKER]]
        for number in range(spinning):
            min(self._queues, key=len).append(f"spinning {number}")
        self._left = [_SLICE * self.random.random() for _ in self._queues]
        self.now, self._next_balance = 0.0, _BALANCING

    def run(self) -> set[str]:
        self.now += _STEP
        for place, queue in enumerate(self._queues):
            self._left[place] -= _STEP
            if self._left[place] <= 0:
                self._left[place] = _SLICE
                queue.append(queue.pop(0))
        if self.now > self._next_balance:
            self._next_balance = self.now + _BALANCING * self.random.uniform(0.3, 1.7)
            shorter, longer = sorted(self._queues, key=len)
            if len(longer) > len(shorter):
                shorter.append(longer.pop(self.random.randrange(1, len(longer))))
        return {queue[0] for queue in self._queues if queue}


class Arm:
    """A layer's blocks of one call on such a machine."""

    def __init__(self, layer: Layer):
        self._layer = layer
        self.times_us, self.lost, self.delayed = list[float](), list[float](), list[float]()

    def block(self, machine: Scheduler) -> None:
        start = machine.now
        while machine.now - start < _SETTLING:
            self._call(machine)
        span = self._call(machine)
        self.times_us.append(span.wall * 1e6 * machine.random.gauss(1, 0.02))
        self.lost.append(span.lost(_PROCESSORS))
        self.delayed.append(min(self.lost[-1], span.delayed))

    def blocks(self, found: Disturbance) -> TimedBlockBounds:
        return TimedBlockBounds.of(self.times_us, self.lost, self.delayed, found)

    def _call(self, machine: Scheduler) -> TimedSpan:
        steps = {_CALLER: 0, _WORKER: 0}
        start, layer = machine.now, self._layer
        for _ in range(layer.units):
            for work in ({_CALLER: layer.alone}, {_CALLER: layer.together, _WORKER: layer.together}):
                left = dict(work)
                while any(seconds > _STEP / 2 for seconds in left.values()):
                    for thread in machine.run() & steps.keys():
                        steps[thread] += 1
                        left[thread] = left.get(thread, 0.0) - _STEP
        wall = machine.now - start
        caller, worker = (count * _STEP for count in steps.values())
        counted = max(0.0, worker + machine.random.uniform(-_TICK, _TICK))  # at ticks, since it runs
        others = max(0.0, counted - _TICK), counted + _TICK
        return TimedSpan(wall, 2 * wall - caller - worker, wall - caller, caller, *others)
