"""Times implementations against each other: alternating blocks, fresh contents on every call, results checked in secret.

The calls after another implementation's measure that one's caches, memory and sleeping threads, so the first calls of a block
are not timed. Contents are a slice of a long random pool at an offset that nobody can predict, so no result can be remembered.
"""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import ceil
from typing import Any

import torch

from pytest_ecornn import contents
from pytest_ecornn.calls import Call, Unchanged
from pytest_ecornn.clocks import Clock
from pytest_ecornn.comparison import Comparison
from pytest_ecornn.contents import Problem
from pytest_ecornn.contract import Case
from pytest_ecornn.statistics import MIN_PAIRS
from pytest_ecornn.verification import Candidate, Expected

BLOCK_SECONDS = 5e-3
SETTLE_SECONDS = 8e-3  # of untimed calls before a block, one at least
POOL_ROWS = 4096  # rows beyond those of one call, among which an offset is drawn
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
        """A problem on `weights` whose x and output gradient no earlier call had."""
        start = secrets.randbelow(len(self._x) - self._calls)
        x, loss = contents.x_at(self._case, self._x, start), self._own.loss_weights
        if self._case.training:
            loss = (contents.x_at(self._case, self._loss, start), *loss[1:])
        return replace(self._own, weights=weights, x=x, loss_weights=loss)


@dataclass
class Arm:
    """One implementation in a measurement. `kept` are two timed calls, chosen in secret, with what they returned."""

    candidate: Candidate
    pool: Pool
    calls: int = 1
    settling: int = 1
    samples_us: list[float] = field(default_factory=list)
    kept: list[tuple[Call, Any]] = field(default_factory=list)

    def prepare(self) -> Call:
        """A call on contents of its own, not yet made."""
        return Call(self.pool.draw(self.candidate.weights))

    def calibrate(self, clock: Clock) -> None:
        """Warms up, and finds how many calls make a block, and how many come before it."""
        seconds = min(clock.time([partial(self.prepare().timed, self.candidate.layer)]) for _ in range(3))
        self.calls, self.settling = (max(1, ceil(wanted / max(seconds, 1e-7))) for wanted in (BLOCK_SECONDS, SETTLE_SECONDS))

    def block(self, clock: Clock) -> None:
        """One timed block after untimed calls."""
        layer = self.candidate.layer
        first = [partial(self.prepare().timed, layer) for _ in range(self.settling)]
        prepared = [self.prepare() for _ in range(self.calls)]
        calls: list[Callable[[], Any]] = [partial(call.timed, layer) for call in prepared]
        secret, result = secrets.randbelow(self.calls), []
        if is_kept := secrets.randbelow(len(self.samples_us) + 1) < 2:  # a reservoir of two
            calls[secret] = lambda: result.append(prepared[secret].timed(layer))
            guard = Unchanged(prepared[secret])
        clock.time(first)
        self.samples_us.append(clock.time(calls) / self.calls * 1e6)
        if is_kept:
            guard.check()
            place = len(self.kept) if len(self.kept) < 2 else secrets.randbelow(2)
            self.kept[place : place + 1] = [(prepared[secret], result[0])]

    def verify_kept(self) -> list[Comparison]:
        """The verdict on every tensor of the kept calls."""
        carry = self.candidate.implementation.carry
        return [
            comparison
            for call, result in self.kept
            for comparison in Expected(call.problem).compare(call.named(*result), carry)
        ]


def measure(arms: Sequence[Arm], clock: Clock, budget: float, is_decided: Callable[[], bool]) -> None:
    """Adds samples to the arms, A B C C B A, until `is_decided` or the budget of seconds is spent."""
    training = arms[0].candidate.case.training
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.set_grad_enabled(training):
            _rounds(arms, clock, budget, is_decided)
    finally:
        if was_enabled:
            gc.enable()


def _rounds(arms: Sequence[Arm], clock: Clock, budget: float, is_decided: Callable[[], bool]) -> None:
    for arm in arms:
        arm.calibrate(clock)
    start = time.perf_counter()
    for number in count(1):
        for arm in arms if number % 2 else reversed(arms):
            arm.block(clock)
        spent = time.perf_counter() - start
        fewest = MIN_PAIRS if spent / number * MIN_PAIRS <= _LONGEST_ROUNDS * budget else MIN_ROUNDS
        if number >= fewest and (spent > budget or is_decided()):
            return
