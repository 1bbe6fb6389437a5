"""Contents of timed calls: no two calls of a measurement have the same contents, nor do they share memory.

Memory is there before a block begins, and what a call is given is written into it just before the call. So nothing of a later
call can be read, nor its work be done, in an earlier one. In training the weights change too: see `WeightChanges`.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from pytest_ecornn.cases import contents, memory_layout
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Case, Weights
from pytest_ecornn.verification.calls import Call, Tensors, check_unchanged
from pytest_ecornn.verification.verification import expected

FEWEST_OFFSETS, MOST_OFFSETS = 1024, 4096  # at which a call's contents may begin in the pool
MAX_COPIED_BYTES = 2**29  # bytes that the calls of one block may have to themselves
_MIXED = ("normal", "saturated", "large", "near_one", "drifting")  # kinds of contents that stay so where two slices are mixed
_LEAST_SHARE, _SCALE = 0.25, 1.36  # of either slice; so that the mixture varies about as much as each
_LEAST_CHANGE, _MOST_CHANGE = 2**-4, 2**-3  # of a weight's element
_CHANGED_BLOCKS = 3  # that surely begin with other weights


@dataclass(frozen=True)
class Contents:
    """Contents of one call: slices of the pool, to be copied.

    like: an x that lies in memory as the case says. other: x is a mixture of it and the pool's x, by `share`.
    other_state: the states are such mixtures; () for states as they are.
    """

    pool: Problem
    like: Tensor
    other_x: Tensor | None = None
    share: float = 0.0
    other_state: tuple[Tensor, ...] = ()

    def problem(self, weights: Any) -> Problem:
        """Builds the problem on `weights`, in memory that nothing else has; the same values each time."""
        made = self.unwritten(weights)
        self.write(made)
        return made

    def unwritten(self, weights: Any) -> Problem:
        """Builds the problem on `weights`, in memory that nothing else has, whose values are still to be written."""
        pool, x = self.pool, contents.empty_with_strides(self.like)
        state, loss = (tuple(map(torch.empty_like, tensors)) for tensors in (pool.state, pool.output_gradients))
        lengths, resets = (None if mask is None else torch.empty_like(mask) for mask in (pool.lengths, pool.resets))
        made = replace(pool, weights=weights, x=x, state=state, lengths=lengths, resets=resets, output_gradients=loss)
        return _laid_out(made)

    def write(self, problem: Problem) -> None:
        """Writes the contents into what `unwritten` has made."""
        pool, x, state = self.pool, problem.x, problem.state
        mixed = zip((x, *state), (pool.x, *pool.state), (self.other_x, *(self.other_state or pool.state)), strict=True)
        for target, one, other in mixed:
            if other is None or other is one:
                target.copy_(one)
            else:
                torch.lerp(one, other, self.share, out=target)
        for target, value in zip(_tensors(problem)[1 + len(state) :], _tensors(pool)[1 + len(state) :], strict=True):
            target.copy_(value)

    def in_place(self, weights: Any) -> Problem:
        """Builds the problem on `weights`, where it stands in the pool: not mixed."""
        return _laid_out(replace(self.pool, weights=weights))


def _laid_out(problem: Problem) -> Problem:
    """Returns the problem with its states and lengths in memory as the case says."""
    lay = partial(memory_layout.laid_out, problem.case)
    lengths = None if problem.lengths is None else lay(problem.lengths)
    return replace(problem, state=tuple(map(lay, problem.state)), lengths=lengths)


class TimedCall(Protocol):
    """A call whose leaves were made beforehand, as `calls.Call` is."""

    def forward_backward(self, layer: Any) -> tuple[Any, Any]: ...
    def results_by_name(self, result: Any, gradients: Any) -> Tensors: ...


class PreparedCall(Protocol):
    """A call that is to be made, as `Prepared` is. change: of the weights that it is made with."""

    @property
    def call(self) -> Any: ...
    @property
    def change(self) -> float: ...
    def write(self) -> None: ...
    def check_unchanged(self) -> None: ...


class CallPool(Protocol):
    """Calls on contents that no earlier call had. weight_changes: of a training case."""

    @property
    def call_bytes(self) -> int: ...
    @property
    def weight_changes(self) -> WeightChanges | None: ...
    def prepare_calls(self, weights: Any, count: int, change: float = 0.0) -> Sequence[PreparedCall]: ...
    def static_call(self, weights: Any) -> Any: ...
    def prepare_replay(self, call: Any, change: float) -> PreparedCall: ...


class InputPool:
    """A long stretch of random contents for one case, of which each call gets slices: of x, states and loss weights.

    Offsets come in a random order, none twice; once all have come, there are new contents. What is to be multiplied, x and the
    states, is a mixture of two slices, or a row would come again in other calls, whose product a layer could remember. Lengths
    are the case's own, and so are resets, with the sequences in another order for each call: all calls have the same work.
    """

    def __init__(self, case: Case):
        self._case, self._rows = case, case.steps * case.batch
        self._own = contents.problem(case, weights=Weights({}, {}))  # each call has its candidate's
        self._has_odd_state = not all(state.isfinite().all() for state in self._own.state)
        self._is_mixed = case.contents in _MIXED and not case.projected
        self._random = torch.Generator().manual_seed(secrets.randbits(62))
        self._chance = random.Random(secrets.randbits(128))
        self.weight_changes = WeightChanges(case, self._chance) if case.training else None
        self._renew()

    def _renew(self) -> None:
        case, offsets = self._case, max(FEWEST_OFFSETS, min(MOST_OFFSETS, self._rows))
        states = case.layers * case.directions * case.batch
        self._x = contents.sample_x_rows(case, self._rows + offsets, self._random)
        if self._is_mixed and case.contents != "drifting":  # whose rows have much in common, which a mixture keeps
            self._x.mul_(_SCALE)
        self._states = [rows.mul_(_SCALE) for rows in contents.state_rows(case, states + offsets, self._random)]
        if case.training:
            self._loss = self._loss_rows(self._rows + offsets, case.directions * case.hidden_size)
            self._final_loss = [self._loss_rows(states + offsets, case.hidden_size) for _ in self._own.output_gradients[1:]]
        self._offsets = offsets
        self._starts = torch.randperm(offsets, generator=self._random).tolist()

    def _loss_rows(self, rows: int, width: int) -> Tensor:
        values = torch.randn(rows, width, generator=self._random)
        return values.to(self._case.device, contents.torch_dtype(self._case)) * contents.loss_scale(self._case)

    @property
    def call_bytes(self) -> int:
        """Size of all that one call is given beside its weights, in bytes."""
        return sum(tensor.nbytes for tensor in _tensors(self._own))

    def next_problem(self) -> Contents:
        """Draws contents that no earlier call had."""
        if not self._starts:
            self._renew()
        start, case = self._starts.pop(), self._case
        x, loss = memory_layout.x_at(case, self._x, start), tuple[Tensor, ...]()
        if case.training:
            loss = (memory_layout.x_at(case, self._loss, start), *contents.state_at(case, self._final_loss, start))
        order = torch.randperm(case.batch, generator=self._random)
        lengths = None if self._own.lengths is None else self._own.lengths[order]
        resets = None if self._own.resets is None else self._own.resets.roll(int(order[0]), 0 if case.batch_first else 1)
        state, other_state = (
            contents.state_at(case, self._states, at) for at in (start, self._chance.randrange(self._offsets))
        )
        if self._has_odd_state:
            state, other_state = tuple(one[:, order].contiguous() for one in self._own.state), ()
        sample = replace(self._own, x=x, state=state, lengths=lengths, resets=resets, output_gradients=loss)
        share = self._chance.uniform(_LEAST_SHARE, 1 - _LEAST_SHARE)
        at = self._chance.randrange(self._offsets)
        other = memory_layout.x_at(case, self._x, at) if self._is_mixed else None
        return Contents(sample, self._own.x, other, share, other_state)

    def static_call(self, weights: Any) -> Call:
        """A call on the case's own problem, at addresses that nothing else has: a graph's."""
        return Call(replace(self._own, weights=weights).copied())

    def prepare_replay(self, call: Call, change: float) -> Prepared:
        """Writes new contents where a graph reads. Lengths, which the host read at the capture, stay."""
        own, drawn = call.problem, self.next_problem()
        for static, new in zip(_refreshed(own), _refreshed(drawn.problem(own.weights)), strict=True):
            static.copy_(new)
        kept = replace(drawn, pool=replace(drawn.pool, lengths=own.lengths))
        return Prepared(kept, call, True, self.weight_changes, change)

    def prepare_calls(self, weights: Any, count: int, change: float = 0.0) -> list[Prepared]:
        """Calls not yet made, each in fresh memory: where an earlier call's contents stand, no later one's will.

        Only if all together would take too much, they are part of the pool. change: of the weights, in training.
        """
        is_apart = count * self.call_bytes <= MAX_COPIED_BYTES
        sample = [self.next_problem() for _ in range(count)]
        calls = [Call((one.unwritten if is_apart else one.in_place)(weights)) for one in sample]
        return [Prepared(one, call, is_apart, self.weight_changes, change) for one, call in zip(sample, calls, strict=True)]


class WeightChanges:
    """Changes of a training case's weights between blocks of timed calls, in place and the same for all arms.

    A layer that keeps what it derives from weights, or a gradient, is wrong afterwards. A change multiplies each element by a
    factor near one, so that zeros, infinities and NaN stay.
    """

    def __init__(self, case: Case, chance: random.Random):
        self._own, self._chance = expected(case).problem.weights, chance
        drawn = torch.Generator().manual_seed(chance.getrandbits(62))
        self._slopes = {
            name: (torch.rand(one.shape, generator=drawn) * 2 - 1).to(one.device, one.dtype) for name, one in self._own.items()
        }
        self._blocks: list[float] = []
        self._now: dict[int, tuple[Weights, float]] = {}  # by identity
        self._latest = 0.0, self._own

    def begin_block(self, weights: Weights, number: int) -> float:
        """Changes the weights as in every arm's block of that number, and returns the change; a new one less and less often."""
        while len(self._blocks) <= number:
            is_new = self._chance.random() * (len(self._blocks) + 1) < _CHANGED_BLOCKS
            change = self._chance.choice((-1, 1)) * self._chance.uniform(_LEAST_CHANGE, _MOST_CHANGE)
            self._blocks.append(change if is_new else self._blocks[-1])
        change = self._blocks[number]
        if self._now.get(id(weights)) != (weights, change):
            self.put(weights, change)
            self._now[id(weights)] = weights, change
        return change

    def put(self, weights: Weights, change: float) -> None:
        """Writes the case's weights, so changed, into `weights`; torch does not count it."""
        self._now.pop(id(weights), None)
        for name, weight in weights.items():
            torch.mul(self._own[name].data, self._slopes[name].mul(change).add_(1), out=weight.data)

    def weights(self, change: float) -> Weights:
        """Returns the case's weights, so changed, in memory of their own."""
        if self._latest[0] != change:
            empty = {name: nn.Parameter(torch.empty_like(one), one.requires_grad) for name, one in self._own.items()}
            self._latest = change, Weights(empty, self._own.masks)
            self.put(self._latest[1], change)
        return self._latest[1]


class Prepared(NamedTuple):
    """A call that is to be made, of such contents, and in training on weights so changed.

    is_apart: whether its contents have memory of their own.
    """

    contents: Contents
    call: Call
    is_apart: bool = True
    weight_changes: WeightChanges | None = None
    change: float = 0.0

    def write(self) -> None:
        """Writes the contents, to be called just before the call."""
        if self.is_apart:
            self.contents.write(self.call.problem)

    def problem(self) -> Problem:
        """Rebuilds the problem that the call was given, in memory that the layer does not know."""
        weights = self.weight_changes.weights(self.change) if self.weight_changes else self.call.problem.weights
        return self.contents.problem(weights) if self.is_apart else self.contents.in_place(weights)

    def check_unchanged(self) -> None:
        """Raises WrongResult where the call wrote into what it was given."""
        for name, given, before in _pairs(self.call.problem, self.problem()):
            check_unchanged(name, given, before)


def _refreshed(problem: Problem) -> list[Tensor]:
    return [problem.x, *problem.state, *([] if problem.resets is None else [problem.resets]), *problem.output_gradients]


def _tensors(problem: Problem) -> Sequence[Tensor]:
    """All but the weights."""
    masks = [mask for mask in (problem.lengths, problem.resets) if mask is not None]
    return [problem.x, *problem.state, *masks, *problem.output_gradients]


def _pairs(given: Problem, before: Problem) -> Iterator[tuple[str, Tensor, Tensor]]:
    names = ["x", *("initial state" for _ in given.state)]
    names += [name for name in ("lengths", "resets") if getattr(given, name) is not None]
    names += [f"loss weight {k}" for k in range(len(given.output_gradients))]
    return zip(names, _tensors(given), _tensors(before), strict=True)
