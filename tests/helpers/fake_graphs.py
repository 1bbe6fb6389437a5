"""Graphs that a CPU replays by calling the layer again, and a clock that counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_ecornn.contract import Case, Layer
from pytest_ecornn.measurement import kept
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import Graph
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification.verification import Candidate


class CountingClock:
    """Runs the calls and says that each took 2 ms."""

    name = "counting"
    equivalence_margin = 0.015

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        self.blocks.append(len(calls))
        for call in calls:
            call()
        return 2e-3 * len(calls)

    def host_us(self, calls: Sequence[Callable[[], Any]]) -> None:
        return None


def built(text: str) -> tuple[Candidate, InputPool]:
    case = Case.parse(text)
    return Candidate.build("sequential", ReferenceLoop, case), InputPool(case)


def fake_graph(candidate: Candidate, pool: InputPool, layer: Layer | None = None) -> Graph:
    """`layer` is what the replay runs, the candidate's own unless given."""
    call = pool.static_call(candidate.weights)
    with torch.set_grad_enabled(candidate.case.training):
        result = call.forward_backward(candidate.layer)

    def run() -> None:
        new = call.forward_backward(layer or candidate.layer)
        with torch.no_grad():
            for static, value in zip(kept.tensors(result), kept.tensors(new), strict=True):
                static.copy_(value)

    return Graph(call, result, run)
