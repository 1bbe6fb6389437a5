"""Layers called again and again, in a drawn order: every result is, bit for bit, the first one of its case.

Results are compared where they are made, and how many were wrong is asked when all calls have been made, so that launches
follow each other as fast as the host makes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.verification import calls

Build = Callable[[Case, Weights], Layer]


@dataclass
class Repeated:
    """A case's layer and the bits of its first result. wrong: [1], int64, later calls that differed, counted on the device."""

    layer: Layer
    call: calls.Call
    first: Tensor
    mismatches: Tensor
    called: int = 0

    @classmethod
    def of(cls, case: Case, build: Build) -> Repeated:
        call = calls.Call(contents.problem(case))
        layer = build(case, call.problem.weights)
        first = _bits(calls.run_call(layer, call))
        return cls(layer, call, first, torch.zeros(1, dtype=torch.int64, device=first.device))

    @property
    def case(self) -> Case:
        return self.call.problem.case

    @property
    def launches(self) -> int:
        """Number of recurrent kernels that one call launches."""
        return self.case.layers * self.case.directions * (2 if self.case.training else 1)

    def again(self) -> None:
        found = _bits(calls.run_call(self.layer, self.call))
        self.mismatches += (found != self.first).any() if found.shape == self.first.shape else 1
        self.called += 1


def _bits(tensors: calls.Tensors) -> Tensor:
    """All of them, in one array."""
    return torch.cat([one.detach().reshape(-1).view(torch.uint8) for one in tensors.values() if one is not None])


class Tally(NamedTuple):
    """launches: of recurrent kernels. wrong: calls of each case that differed from its first, of those cases that have some."""

    launches: int
    mismatches: dict[str, int]


def repeat(repeated: Sequence[Repeated], launches: int, seed: int = 0, beside: Callable[[], None] = lambda: None) -> Tally:
    """So many launches or a few more, of cases drawn by `seed`. beside: called before each call."""
    draw, made = random.Random(seed), 0
    before = [int(one.mismatches) for one in repeated]
    while made < launches:
        one = draw.choice(repeated)
        beside()
        one.again()
        made += one.launches
    found = {str(one.case): int(one.mismatches) - wrong for one, wrong in zip(repeated, before, strict=True)}
    return Tally(made, {case: wrong for case, wrong in found.items() if wrong})


class BackgroundLoad:
    """Keeps a stream of its own busy with large products, as long as it is called often."""

    _SIZE, _PRODUCTS = 4096, 16

    def __init__(self) -> None:
        self._operand = torch.randn(self._SIZE, self._SIZE, device="cuda", dtype=torch.float16)
        self._result = torch.empty_like(self._operand)
        self._stream, self._done = torch.cuda.Stream(), torch.cuda.Event()
        self._stream.wait_stream(torch.cuda.current_stream())

    def __call__(self) -> None:
        if not self._done.query():
            return
        with torch.cuda.stream(self._stream):
            for _ in range(self._PRODUCTS):
                torch.mm(self._operand, self._operand, out=self._result)
            self._done.record()
