"""What timed calls are given: no two calls of a measurement have the same contents, nor do they share memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ecornn import contents, memory_layout
from pytest_ecornn.calls import Call, WrongResult, differing
from pytest_ecornn.contents import Problem
from pytest_ecornn.contract import Case, Weights

FEWEST_OFFSETS, MOST_OFFSETS = 1024, 4096  # at which a call's contents may begin in the pool
MOST_COPIED = 2**29  # bytes that the calls of one block may have to themselves


class Pool:
    """A long stretch of random contents for one case, of which each call gets a slice: of x, states and loss weights.

    Offsets come in a random order, none twice; once all have come, there are new contents. Lengths are the case's own, and
    so are resets, with the sequences in another order for each call: all calls have the same work.
    """

    def __init__(self, case: Case):
        self._case, self._rows = case, case.steps * case.batch
        self._own = contents.problem(case, weights=Weights({}, {}))  # each call has its candidate's
        self._has_odd_state = not all(state.isfinite().all() for state in self._own.state)
        self._random = torch.Generator().manual_seed(secrets.randbits(62))
        self._renew()

    def _renew(self) -> None:
        case, offsets = self._case, max(FEWEST_OFFSETS, min(MOST_OFFSETS, self._rows))
        states = case.layers * case.directions * case.batch
        self._x = contents.x_rows(case, self._rows + offsets, self._random)
        self._states = contents.state_rows(case, states + offsets, self._random)
        if case.training:
            self._loss = self._loss_rows(self._rows + offsets, case.directions * case.hidden_size)
            self._final_loss = [self._loss_rows(states + offsets, case.hidden_size) for _ in self._own.loss_weights[1:]]
        self._starts = torch.randperm(offsets, generator=self._random).tolist()

    def _loss_rows(self, rows: int, width: int) -> Tensor:
        values = torch.randn(rows, width, generator=self._random)
        return values.to(self._case.device, contents.torch_dtype(self._case)) * contents.loss_scale(self._case)

    @property
    def call_bytes(self) -> int:
        """Of all that one call is given beside its weights."""
        return sum(tensor.nbytes for tensor in _tensors(self._own))

    def draw(self, weights: Any) -> Problem:
        """A problem on `weights` that no earlier call had, its large tensors views of the pool."""
        if not self._starts:
            self._renew()
        start, case = self._starts.pop(), self._case
        x, loss = memory_layout.x_at(case, self._x, start), tuple[Tensor, ...]()
        if case.training:
            loss = (memory_layout.x_at(case, self._loss, start), *contents.state_at(case, self._final_loss, start))
        order = torch.randperm(case.batch, generator=self._random)
        lengths = None if self._own.lengths is None else memory_layout.laid_out(case, self._own.lengths[order])
        resets = None if self._own.resets is None else self._own.resets.roll(int(order[0]), 0 if case.batch_first else 1)
        state = contents.state_at(case, self._states, start)
        if self._has_odd_state:
            state = tuple(one[:, order].contiguous() for one in self._own.state)
        state = tuple(memory_layout.laid_out(case, one) for one in state)
        return replace(self._own, weights=weights, x=x, state=state, lengths=lengths, resets=resets, loss_weights=loss)

    def placed(self, weights: Any) -> Problem:
        """The case's own problem on `weights`, at addresses that nothing else has."""
        return contents.placed(replace(self._own, weights=weights))


class Prepared(NamedTuple):
    """A call that is ready to be made. contents: the same problem, in memory that the layer is not given."""

    contents: Problem
    call: Call

    def check_unchanged(self) -> None:
        """Raises WrongResult where the call wrote into what it was given."""
        for name, given, before in _pairs(self.call.problem, self.contents):
            wrong = differing(given, before)
            if wrong.any():
                index = tuple(int(i) for i in wrong.nonzero()[0])
                was, became = before[index].item(), given[index].item()
                raise WrongResult(f"expected {name} unchanged by the call, but at {list(index)} {was:.6g} became {became:.6g}")


class Rooms:
    """Where the contents of calls stand: each call's apart from all else, and where those of the blocks before it stood."""

    def __init__(self) -> None:
        self._rooms: list[Problem] = []

    def prepare(self, pool: Pool, weights: Any, count: int) -> list[Prepared]:
        """Calls not yet made. Only if all together would take too much memory, their contents are part of the pool.

        Then one of them alone has a copy to be compared with.
        """
        drawn = [pool.draw(weights) for _ in range(count)]
        if count * pool.call_bytes > MOST_COPIED:
            prepared = [Prepared(one, Call(one)) for one in drawn]
            place = secrets.randbelow(count) if count else 0
            prepared[place : place + 1] = [Prepared(contents.placed(one), Call(one)) for one in drawn[place : place + 1]]
            return prepared
        self._rooms += [pool.placed(weights) for _ in drawn[len(self._rooms) :]]
        return [Prepared(one, Call(_filled(room, one))) for one, room in zip(drawn, self._rooms, strict=False)]


def _filled(room: Problem, problem: Problem) -> Problem:
    """The room with the contents of `problem`."""
    for target, value in zip(_tensors(room), _tensors(problem), strict=True):
        target.data.copy_(value)  # which torch does not count as a change
    return replace(room, weights=problem.weights)


def _tensors(problem: Problem) -> Sequence[Tensor]:
    """All but the weights."""
    masks = [mask for mask in (problem.lengths, problem.resets) if mask is not None]
    return [problem.x, *problem.state, *masks, *problem.loss_weights]


def _pairs(given: Problem, before: Problem) -> Iterator[tuple[str, Tensor, Tensor]]:
    names = ["x", *("initial state" for _ in given.state)]
    names += [name for name in ("lengths", "resets") if getattr(given, name) is not None]
    names += [f"loss weight {k}" for k in range(len(given.loss_weights))]
    return zip(names, _tensors(given), _tensors(before), strict=True)
