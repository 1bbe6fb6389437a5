"""Times implementations against each other: blocks in turn, fresh contents on every call, results checked in secret.

Each round's order is drawn, so that no layer knows whose turn is next. In a fixed one, A B B A, neighbouring pairs have blocks
side by side. Where the host's speed comes in spells, such pairs are off together, but an interval takes them as independent.

The calls after another implementation's measure that one's caches, memory and sleeping threads, so the first calls of a block
that follows another's are not timed. No two calls have the same contents, so no result can be remembered, and a call's contents
are written just before it, so no call can do the work of others. What is verified is chosen and copied when the clock has
stopped: see `kept`.

On a CPU the clock runs while a call does, and a block's time is the sum. To start and stop a GPU's takes some 10 us, and the
host is then ahead no more, so contents are written, and calls timed, a stretch of `STRETCH_SECONDS` at a time.
"""

from __future__ import annotations

import gc
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.kept import Results, SpotChecks
from pytest_ecornn.measurement.pool import CallPool, PreparedCall
from pytest_ecornn.results.statistics import MIN_PAIRS
from pytest_ecornn.system import memory
from pytest_ecornn.system.locking import own_time, turn
from pytest_ecornn.verification.calls import Copies, WrongResult
from pytest_ecornn.verification.guards.background import ThreadGuard

BLOCK_SECONDS = 5e-3
WARMUP_SECONDS = 8e-3  # of untimed calls before a block that follows another's, one at least
STRETCH_SECONDS = 2e-3  # on a GPU; of one call at least
_FAR_SHORTER = 2.0  # times, by which calls have become quicker since they were calibrated
_HOST_CALLS = 20
_ORDER = secrets.SystemRandom()
_MAX_ROUND_BUDGETS = 4.0  # budgets that MIN_PAIRS rounds may take; beyond, MIN_ROUNDS have to do
MIN_ROUNDS = 3
_Figure = TypeVar("_Figure")


class Timed(Protocol):
    """What is timed: a layer that was built, or a function. first_call_ms: of the first call after the build, where known."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def is_training(self) -> bool: ...
    @property
    def layer(self) -> Any: ...
    @property
    def weights(self) -> Any: ...
    @property
    def result_bytes(self) -> int: ...
    @property
    def build_ms(self) -> float: ...
    @property
    def first_call_ms(self) -> float | None: ...


class Timeable(Protocol):
    """A participant that takes turns in a measurement: what is timed, and how a block of its calls is made."""

    calls: int
    samples_us: list[float]

    @property
    def candidate(self) -> Timed: ...

    def calibrate(self, clock: Timer) -> None:
        """Warms up, and finds how many calls make a block, and how many come before it."""

    def block(self, clock: Timer, is_settled: bool) -> None:
        """One timed block, after untimed calls unless the last block was its own."""

    def fresh(self) -> Timeable:
        """The same participant, calibrated alike, without samples."""


@dataclass
class Arm:
    """An implementation timed as called, each call on contents of its own."""

    candidate: Timed
    pool: CallPool
    seconds: float = 0.0  # of a call, about, as calibrated
    calls: int = 1
    warmup_calls: int = 1
    samples_us: list[float] = field(default_factory=list)
    threads: ThreadGuard = field(default_factory=ThreadGuard)

    def __post_init__(self) -> None:
        self.kept = SpotChecks(self.candidate.result_bytes, self.candidate.device)
        self._change: float | None = None  # of the weights, when they were copied
        self._places = self._weights_places()

    def calibrate(self, clock: Timer) -> None:
        self.seconds = min(clock.time(self._calls_on_new_inputs(1)) for _ in range(3))
        calls, _ = block_counts(self.seconds)
        if calls > 1:  # in a row they are faster, above all where the host runs ahead of the device
            self.seconds = min(self.seconds, clock.time(self._calls_on_new_inputs(calls)) / calls)
        self.calls, self.warmup_calls = block_counts(self.seconds)

    def block(self, clock: Timer, is_settled: bool) -> None:
        """Times a block. Where calls are short, at least one is untimed: its contents have just gone through the cache.

        Some more are untimed, of a number that no layer knows: no last call can put back what a layer set for the block.
        """
        untimed = min(1, self.calls - 1) if is_settled else self.warmup_calls
        untimed += secrets.randbelow(1 + ceil(self.calls / 8)) if self.calls > 1 else 0
        prepared = self.pool.prepare_calls(self.candidate.weights, untimed + self.calls, self._change_weights())
        timed, results = prepared[: self.calls], self.kept.results(self.calls)
        clock.time(self._made(prepared[self.calls :]))
        seconds = clock.time(self._made(timed, results)) / self.calls
        self.samples_us.append(seconds * 1e6)
        self._look(timed, results)
        if (growth := block_growth(self.seconds, seconds)) > 1:
            self.seconds, self.calls, self.warmup_calls = seconds, growth * self.calls, growth * self.warmup_calls

    def fresh(self) -> Arm:
        return Arm(self.candidate, self.pool, self.seconds, self.calls, self.warmup_calls, threads=self.threads)

    def _change_weights(self) -> float:
        """Changes the weights of a training case, and copies them when they are others. Returns the change."""
        changes, weights = self.pool.weight_changes, self.candidate.weights
        change = changes.begin_block(weights, len(self.samples_us)) if changes else 0.0
        if change != self._change:
            self._change, self._weights = change, Copies({name: Tensor.detach(weight) for name, weight in weights.items()})
        return change

    def _look(self, timed: Sequence[PreparedCall], results: Results) -> None:
        """At what the calls have done, the clock stopped: nothing is compared or guarded before. Raises WrongResult."""
        for name, position in self._weights_places().items():
            if position != self._places[name]:
                raise WrongResult(f"expected {name} as it was, but a timed call has changed its memory, dtype or class")
        for part in results.parts:
            part.check()
        looked_at = timed[-len(results.returned) :]
        self.kept.hold(looked_at, results.returned)
        if self.kept.take(looked_at, results.returned):
            self.threads.check()
            self._weights.check()

    def _weights_places(self) -> dict[str, tuple[object, ...]]:
        """What baselines, which compute with the weights as well, depend on beside their values.

        A weight may have methods of its own, which would work only now.
        """
        weights = self.candidate.weights.items()
        return {name: (type(one), one.dtype, Tensor.data_ptr(one), Tensor.stride(one), one.shape) for name, one in weights}

    def peak_bytes(self) -> int | None:
        """The most memory that one call takes."""
        return self._of_verified_calls(1, lambda calls: memory.peak_bytes(next(calls), self.candidate.device))

    def host_us(self, clock: Timer) -> float | None:
        """How long a call keeps the host, where it returns before its work is done."""
        return self._of_verified_calls(max(MIN_ROUNDS, min(_HOST_CALLS, self.calls)), clock.host_us)

    def _of_verified_calls(self, count: int, measured: Callable[[Iterator[Callable[[], Any]]], _Figure]) -> _Figure:
        """What is measured of calls that are not timed, and verified whatever chance says."""
        prepared = self.pool.prepare_calls(self.candidate.weights, count, self._change_weights())
        results = self.kept.results(count)
        with torch.set_grad_enabled(self.candidate.is_training):
            figure = measured(self._made(prepared, results, stretch=1))
        self.kept.take(prepared[count - len(results.returned) :], results.returned, is_certain=True)
        return figure

    def _calls_on_new_inputs(self, count: int) -> Iterator[Callable[[], Any]]:
        return self._made(self.pool.prepare_calls(self.candidate.weights, count))

    def _made(
        self, prepared: Sequence[PreparedCall], results: Results | None = None, stretch: int = 0
    ) -> Iterator[Callable[[], Any]]:
        """What makes the calls, so many at a time, alike whether or not their results are wanted."""
        results = results or self.kept.results(max(1, len(prepared)))
        return results.stretches(prepared, self.candidate.layer, stretch or self._stretch)

    @property
    def _stretch(self) -> int:
        """How many calls are timed at a time."""
        is_gpu = self.candidate.device.startswith("cuda")
        return max(1, ceil(STRETCH_SECONDS / max(self.seconds, 1e-7))) if is_gpu else 1


def block_counts(seconds: float) -> tuple[int, int]:
    """How many calls of so many seconds make a block, and how many come before it untimed."""
    timed, settling = (max(1, ceil(wanted / max(seconds, 1e-7))) for wanted in (BLOCK_SECONDS, WARMUP_SECONDS))
    return timed, settling


def block_growth(calibrated: float, seconds: float) -> int:
    """How many times as many calls make a block where a call takes far less than was calibrated; else 1."""
    times = calibrated / max(seconds, 1e-7)
    return ceil(times) if times > _FAR_SHORTER else 1


def measure(
    arms: Sequence[Timeable],
    clock: Timer,
    budget: float,
    is_decided: Callable[[], bool],
    after_round: Callable[[], bool] = lambda: True,
    after_block: Callable[[Timeable], None] = lambda arm: None,
) -> None:
    """Adds a sample to each arm a round, in an order that is drawn, until `is_decided` or the budget of seconds is spent.

    after_round: whether the round counts; where not, it has dropped the samples.
    """
    with gc_disabled(), torch.set_grad_enabled(arms[0].candidate.is_training):
        for arm in arms:
            with turn():
                arm.calibrate(clock)
        start, last, number = own_time(), None, 0
        while True:
            for arm in _ORDER.sample(arms, len(arms)):
                with turn() as waited:
                    arm.block(clock, is_settled=arm is last and not waited)
                after_block(arm)
                last = arm
            if not after_round():
                continue
            number += 1
            spent = own_time() - start
            fewest = MIN_PAIRS if spent / number * MIN_PAIRS <= _MAX_ROUND_BUDGETS * budget else MIN_ROUNDS
            if number >= fewest and (spent > budget or is_decided()):
                return


def freeze_living() -> None:
    """Searches for garbage skip what lives from now on: done anew where modules were imported since, which are most of it.

    To be called before a layer is built, whose objects are to be collected when it is gone.
    """
    _freeze(len(sys.modules))


@lru_cache(maxsize=1)
def _freeze(modules: int) -> None:
    gc.collect()
    gc.freeze()


@contextmanager
def gc_disabled(is_collected_first: bool = True) -> Iterator[None]:
    """Python's garbage is collected before and not within; nothing changes where that is so already."""
    if not gc.isenabled():
        yield
        return
    if is_collected_first:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
