"""Times implementations against each other: alternating blocks, fresh contents on every call, results checked in secret.

The calls after another implementation's measure that one's caches, memory and sleeping threads, so the first calls of a block
that follows another's are not timed. Contents are a slice of a long random pool at an offset that nobody can predict, so no
result can be remembered.
"""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor

from pytest_ecornn import contents, memory
from pytest_ecornn.calls import Call, Unchanged, on_tensors
from pytest_ecornn.clocks import Clock
from pytest_ecornn.comparison import Comparison
from pytest_ecornn.contents import Problem
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.statistics import MIN_PAIRS
from pytest_ecornn.verification import Candidate, Expected

BLOCK_SECONDS = 5e-3
SETTLE_SECONDS = 8e-3  # of untimed calls before a block that follows another's, one at least
POOL_ROWS = 4096  # rows beyond those of one call, among which an offset is drawn
_HOST_CALLS = 20
_LONGEST_ROUNDS = 4.0  # budgets that MIN_PAIRS rounds may take; beyond, MIN_ROUNDS have to do
MIN_ROUNDS = 3


class Pool:
    """A long stretch of random contents for one case, of which each call gets its own slice."""

    def __init__(self, case: Case):
        self._case, self._calls = case, case.steps * case.batch
        self._own = contents.problem(case)
        rows = self._calls + min(POOL_ROWS, self._calls) + 64
        random = torch.Generator().manual_seed(secrets.randbits(62))
        self._x = contents.x_rows(case, rows, random)
        self._loss = torch.randn(rows, case.directions * case.hidden_size, generator=random)
        self._loss = self._loss.to(case.device, contents.torch_dtype(case)) * contents.loss_scale(case)

    def draw(self, weights: Any) -> Problem:
        """A problem on `weights` whose x and output gradient no earlier call had, as views of the pool."""
        start = secrets.randbelow(len(self._x) - self._calls)
        x, loss = contents.x_at(self._case, self._x, start), self._own.loss_weights
        if self._case.training:
            loss = (contents.x_at(self._case, self._loss, start), *loss[1:])
        return replace(self._own, weights=weights, x=x, loss_weights=loss)

    def placed(self, weights: Any) -> Problem:
        """The case's own problem on `weights`, at addresses that nothing else has."""
        return contents.placed(replace(self._own, weights=weights))


class Kept:
    """Two timed calls of a measurement with what they returned, chosen in secret: every block is as likely as any other."""

    def __init__(self) -> None:
        self._calls: list[tuple[Call, Any]] = []
        self._blocks = 0

    def wants_one(self) -> bool:
        """Whether a call of the next block is to be kept."""
        self._blocks += 1
        return secrets.randbelow(self._blocks) < 2

    def add(self, call: Call, result: Any) -> None:
        """Keeps the result without its history, which would tie the weights to the stream of this call."""
        result = on_tensors(Tensor.detach, result)
        place = len(self._calls) if len(self._calls) < 2 else secrets.randbelow(2)
        self._calls[place : place + 1] = [(call, result)]

    def verify(self, declared: Declared) -> list[Comparison]:
        """The verdict on every tensor of the kept calls."""
        return [one for call, result in self._calls for one in Expected(call.problem).compare(call.named(*result), declared)]


class Timed(Protocol):
    """What takes turns in a measurement: an implementation, and how a block of its calls is made."""

    candidate: Candidate
    calls: int
    samples_us: list[float]
    kept: Kept

    def calibrate(self, clock: Clock) -> None:
        """Warms up, and finds how many calls make a block, and how many come before it."""

    def block(self, clock: Clock, is_settled: bool) -> None:
        """One timed block, after untimed calls unless the last block was its own."""


@dataclass
class Arm:
    """An implementation timed as called, each call on contents of its own."""

    candidate: Candidate
    pool: Pool
    calls: int = 1
    settling: int = 1
    samples_us: list[float] = field(default_factory=list)
    kept: Kept = field(default_factory=Kept)

    def prepare(self) -> Call:
        """A call on contents of its own, not yet made."""
        return Call(self.pool.draw(self.candidate.weights))

    def calibrate(self, clock: Clock) -> None:
        seconds = min(clock.time(self._fresh(1)) for _ in range(3))
        calls, _ = block_counts(seconds)
        if calls > 1:  # in a row they are faster, above all where the host runs ahead of the device
            seconds = min(seconds, clock.time(self._fresh(calls)) / calls)
        self.calls, self.settling = block_counts(seconds)

    def block(self, clock: Clock, is_settled: bool) -> None:
        layer = self.candidate.layer
        first = self._fresh(0 if is_settled else self.settling)
        prepared = [self.prepare() for _ in range(self.calls)]
        calls: list[Callable[[], Any]] = [partial(call.timed, layer) for call in prepared]
        secret, result = secrets.randbelow(self.calls), []
        if is_kept := self.kept.wants_one():
            calls[secret] = lambda: result.append(prepared[secret].timed(layer))
            guard = Unchanged(prepared[secret])
        clock.time(first)
        self.samples_us.append(clock.time(calls) / self.calls * 1e6)
        if is_kept:
            guard.check()
            self.kept.add(prepared[secret], result[0])

    def peak_bytes(self) -> int | None:
        """The most memory that one call takes."""
        (call,), case = self._fresh(1), self.candidate.case
        with torch.set_grad_enabled(case.training):
            return memory.peak_bytes(call, case.device)

    def host_us(self, clock: Clock) -> float | None:
        """How long a call keeps the host, where it returns before its work is done."""
        with torch.set_grad_enabled(self.candidate.case.training):
            return clock.host_us(self._fresh(max(MIN_ROUNDS, min(_HOST_CALLS, self.calls))))

    def _fresh(self, count: int) -> list[Callable[[], Any]]:
        return [partial(self.prepare().timed, self.candidate.layer) for _ in range(count)]


def block_counts(seconds: float) -> tuple[int, int]:
    """How many calls of so many seconds make a block, and how many come before it untimed."""
    timed, settling = (max(1, ceil(wanted / max(seconds, 1e-7))) for wanted in (BLOCK_SECONDS, SETTLE_SECONDS))
    return timed, settling


def measure(
    arms: Sequence[Timed],
    clock: Clock,
    budget: float,
    is_decided: Callable[[], bool],
    after_round: Callable[[], None] = lambda: None,
) -> None:
    """Adds samples to the arms, A B C C B A, until `is_decided` or the budget of seconds is spent."""
    with uncollected(), torch.set_grad_enabled(arms[0].candidate.case.training):
        _rounds(arms, clock, budget, is_decided, after_round)


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's garbage is collected before and not within."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _rounds(
    arms: Sequence[Timed], clock: Clock, budget: float, is_decided: Callable[[], bool], after_round: Callable[[], None]
) -> None:
    for arm in arms:
        arm.calibrate(clock)
    start, last = time.perf_counter(), None
    for number in count(1):
        for arm in arms if number % 2 else reversed(arms):
            arm.block(clock, is_settled=arm is last)
            last = arm
        after_round()
        spent = time.perf_counter() - start
        fewest = MIN_PAIRS if spent / number * MIN_PAIRS <= _LONGEST_ROUNDS * budget else MIN_ROUNDS
        if number >= fewest and (spent > budget or is_decided()):
            return
