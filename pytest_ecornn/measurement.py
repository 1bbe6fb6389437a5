"""Times implementations against each other: alternating blocks, fresh contents on every call, results checked in secret.

The calls after another implementation's measure that one's caches, memory and sleeping threads, so the first calls of a block
that follows another's are not timed. No two calls have the same contents, so no result can be remembered, and a call's contents
lie alone in their memory, so no call can do the work of others. What is verified was copied when its call had returned or the
clock had stopped, so nothing can be done later.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import ceil
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from pytest_ecornn import contents, memory
from pytest_ecornn.background import Threads
from pytest_ecornn.calls import Call, Unchanged, on_tensors
from pytest_ecornn.clocks import Clock
from pytest_ecornn.comparison import Comparison
from pytest_ecornn.contents import Problem
from pytest_ecornn.contract import Case, Declared, Layer, Weights
from pytest_ecornn.statistics import MIN_PAIRS
from pytest_ecornn.verification import Candidate, Expected

BLOCK_SECONDS = 5e-3
SETTLE_SECONDS = 8e-3  # of untimed calls before a block that follows another's, one at least
FEWEST_OFFSETS, MOST_OFFSETS = 1024, 4096  # at which a call's contents may begin in the pool
MOST_COPIED = 2**29  # bytes of x that the calls of one block may have to themselves
_HOST_CALLS = 20
_LONGEST_ROUNDS = 4.0  # budgets that MIN_PAIRS rounds may take; beyond, MIN_ROUNDS have to do
MIN_ROUNDS = 3


class Pool:
    """A long stretch of random contents for one case, of which each call gets a slice.

    Offsets come in a random order, none twice; once all have come, there are new contents.
    """

    def __init__(self, case: Case):
        self._case, self._rows = case, case.steps * case.batch
        self._own = contents.problem(case, weights=Weights({}, {}))  # each call has its candidate's
        self._random = torch.Generator().manual_seed(secrets.randbits(62))
        self._renew()

    def _renew(self) -> None:
        case, offsets = self._case, max(FEWEST_OFFSETS, min(MOST_OFFSETS, self._rows))
        rows = self._rows + offsets
        self._x = contents.x_rows(case, rows, self._random)
        if case.training:
            loss = torch.randn(rows, case.directions * case.hidden_size, generator=self._random)
            self._loss = loss.to(case.device, contents.torch_dtype(case)) * contents.loss_scale(case)
        self._starts = torch.randperm(offsets, generator=self._random).tolist()

    @property
    def x_bytes(self) -> int:
        """Of the x of one call."""
        return self._own.x.nbytes

    def room(self) -> Tensor:
        """Memory for the x of one call, apart from everything else."""
        return contents.placed_tensor(contents.x_at(self._case, self._x, 0))

    def draw(self, weights: Any, room: Tensor | None = None) -> Problem:
        """A problem on `weights` whose x and output gradient no earlier call had: views of the pool, or x put into `room`."""
        if not self._starts:
            self._renew()
        start = self._starts.pop()
        x, loss = contents.x_at(self._case, self._x, start), self._own.loss_weights
        if self._case.training:
            loss = (contents.x_at(self._case, self._loss, start), *loss[1:])
        if room is not None:
            room.data.copy_(x)  # which torch does not count as a change
            x = room
        return replace(self._own, weights=weights, x=x, loss_weights=loss)

    def placed(self, weights: Any) -> Problem:
        """The case's own problem on `weights`, at addresses that nothing else has."""
        return contents.placed(replace(self._own, weights=weights))


class Kept:
    """Two timed calls of a measurement with what they returned: the last of one block, and any of one.

    Chosen in secret, every block as likely as any other.
    """

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Call, Any]] = {}
        self._blocks = 0

    def chosen(self, calls: int) -> dict[str, int]:
        """Which of the `calls` of the next block are to be kept, and as what."""
        self._blocks += 1
        places = {"the last of a block": calls - 1, "any": secrets.randbelow(calls)}
        return {part: place for part, place in places.items() if not secrets.randbelow(self._blocks)}

    def keep(self, part: str, call: Call, result: Any) -> None:
        """Copies what the call was given, which is not its own for ever; `result` is a copy already."""
        self._calls[part] = Call(contents.placed(call.problem)), result

    def verify(self, declared: Declared) -> list[Comparison]:
        """The verdict on every tensor of the kept calls."""
        kept = self._calls.values()
        return [one for call, result in kept for one in Expected(call.problem).compare(call.named(*result), declared)]


def copied(result: Any) -> Any:
    """Without its history, which would tie the weights to the stream of this call."""
    return on_tensors(lambda tensor: tensor.detach().clone(), result)


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
    seconds: float = 0.0  # of a call, about, as calibrated
    calls: int = 1
    settling: int = 1
    samples_us: list[float] = field(default_factory=list)
    kept: Kept = field(default_factory=Kept)
    threads: Threads = field(default_factory=Threads)

    _rooms: list[Tensor] = field(default_factory=list)

    def prepare(self, count: int) -> list[Call]:
        """Calls not yet made, each on contents of its own, which stand where those of the calls before them stood.

        Only if all together would take too much memory, x is part of the pool.
        """
        rooms: Sequence[Tensor | None] = [None] * count
        if count * self.pool.x_bytes <= MOST_COPIED:
            self._rooms += [self.pool.room() for _ in range(count - len(self._rooms))]
            rooms = self._rooms[:count]
        return [Call(self.pool.draw(self.candidate.weights, room)) for room in rooms]

    def calibrate(self, clock: Clock) -> None:
        self.seconds = min(clock.time(self._fresh(1)) for _ in range(3))
        calls, _ = block_counts(self.seconds)
        if calls > 1:  # in a row they are faster, above all where the host runs ahead of the device
            self.seconds = min(self.seconds, clock.time(self._fresh(calls)) / calls)
        self.calls, self.settling = block_counts(self.seconds)

    def block(self, clock: Clock, is_settled: bool) -> None:
        """Where calls are short, one at least is not timed: their contents have just gone through the cache."""
        untimed = min(1, self.calls - 1) if is_settled else self.settling
        prepared, chosen = self.prepare(untimed + self.calls), self.kept.chosen(self.calls)
        prepared, first = prepared[: self.calls], self._made(prepared[self.calls :])
        results: dict[int, list[Any]] = {place: [] for place in chosen.values()}
        guards = {place: Unchanged(prepared[place]) for place in results}
        layer, last = self.candidate.layer, self.calls - 1
        calls = [partial(_make, call, layer, results.get(place), place == last) for place, call in enumerate(prepared)]
        clock.time(first)
        self.samples_us.append(clock.time(calls) / self.calls * 1e6)
        taken = {place: copied(result) for place, (result,) in results.items()}
        if chosen:
            self.threads.check()
        for part, place in chosen.items():
            guards[place].check()
            self.kept.keep(part, prepared[place], taken[place])

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
        return self._made(self.prepare(count))

    def _made(self, prepared: Sequence[Call]) -> list[Callable[[], Any]]:
        return [partial(_make, call, self.candidate.layer) for call in prepared]


def _make(call: Call, layer: Layer, kept: list[Any] | None = None, is_last: bool = False) -> None:
    """Every call is made alike. A result that is kept is copied at once, or the layer could tell by its living on.

    Only that of a block's last call is copied when the clock has stopped.
    """
    result = call.timed(layer)
    if kept is not None:
        kept.append(result if is_last else copied(result))


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
    after_block: Callable[[Timed], None] = lambda arm: None,
) -> None:
    """Adds samples to the arms, A B C C B A, until `is_decided` or the budget of seconds is spent."""
    with uncollected(), torch.set_grad_enabled(arms[0].candidate.case.training):
        _rounds(arms, clock, budget, is_decided, after_round, after_block)


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's garbage is collected before and not within; nothing changes where that is so already."""
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _rounds(
    arms: Sequence[Timed],
    clock: Clock,
    budget: float,
    is_decided: Callable[[], bool],
    after_round: Callable[[], None],
    after_block: Callable[[Timed], None],
) -> None:
    for arm in arms:
        arm.calibrate(clock)
    start, last = perf_counter(), None
    for number in count(1):
        for arm in arms if number % 2 else reversed(arms):
            arm.block(clock, is_settled=arm is last)
            after_block(arm)
            last = arm
        after_round()
        spent = perf_counter() - start
        fewest = MIN_PAIRS if spent / number * MIN_PAIRS <= _LONGEST_ROUNDS * budget else MIN_ROUNDS
        if number >= fewest and (spent > budget or is_decided()):
            return
