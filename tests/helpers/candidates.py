"""Candidates whose times are planted, for tests of what chooses between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import torch

from pytest_ecornn.autotune import Candidate, Decision, Problem, select
from pytest_ecornn.autotune.selection import Choices
from pytest_ecornn.contract import Case

CPU = torch.device("cpu")
PROBLEM = Problem(case=Case.parse("mingru-T8-B2-H4-float32"))


@dataclass
class Planted:
    """Candidates that sleep for so many ms. calls: of each so far. heuristic: the first unless given."""

    sleeps_ms: Mapping[str, float]
    heuristic: str = ""
    failing: Collection[str] = ()
    calls: dict[str, int] = field(default_factory=dict)
    error: type[Exception] = torch.OutOfMemoryError

    def choices(self) -> Choices:
        candidates = [Candidate(name, lambda steps, name=name: self._call(name, steps)) for name in self.sleeps_ms]
        heuristic = self.heuristic or next(iter(self.sleeps_ms))
        return Choices(candidates, heuristic, (PROBLEM.case.steps,), runnable=tuple(self.sleeps_ms))

    def _call(self, name: str, steps: int) -> Callable[[], object]:
        def call() -> None:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name in self.failing:
                raise self.error(f"{name} cannot")
            time.sleep(self.sleeps_ms[name] / 1e3)

        return call

    def select(self, problem: Problem = PROBLEM, mode: str = "", obstacle: str = "") -> tuple[Decision, bool]:
        return select(problem, CPU, self.choices, self.sleeps_ms, mode, obstacle)

    def winner(self, **options: str) -> str:
        return self.select(**options)[0].called  # type: ignore[arg-type]

    @property
    def was_timed(self) -> bool:
        return bool(self.calls)
