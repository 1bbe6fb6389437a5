"""The runs that a report's rows come from: what each measured, when, for how long and on which GPU, and which ran at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_ecornn.results.shard import Shard
from pytest_ecornn.suites.published.common.rebuilt import from_json
from pytest_ecornn.system.gpus.lock import gpu_id


@dataclass(frozen=True)
class Run:
    """The run of a process. parts: as asked. began: by time.time, 0 if unknown. gpu: distinguishes GPUs without naming them.

    shard: I/N where it measured one of N shares of the cases.
    """

    parts: list[str]
    seconds: float = 0.0
    began: float = 0.0
    gpu: str = ""
    shard: str = ""

    @classmethod
    def start(cls, parts: Sequence[str], shard: Shard | None = None) -> Run:
        gpu = gpu_id() if torch.cuda.is_available() else ""
        return cls(list(parts), began=time.time(), gpu=gpu, shard=str(shard or ""))

    def __str__(self) -> str:
        return ", ".join(self.parts)

    def is_beside(self, other: Run) -> bool:
        """Whether another run went on at the same time, as far as that is known."""
        together = 0 < self.began < other.began + other.seconds and 0 < other.began < self.began + self.seconds
        return together and other != self


def of_report(found: dict[str, Any]) -> list[Run]:
    """Returns a report's runs from its JSON. Older reports have only the seconds of the last run and of those before it."""
    if "runs" in found:
        return list(from_json(list[Run], found["runs"]))
    before = [Run([], seconds)] if (seconds := found.get("earlier_seconds", 0)) else []
    return [*before, Run(list(found["rows"]), found["seconds"])]


def describe(runs: Sequence[Run]) -> str:
    """How long they took, in the order in which they began, and what was measured at the same time."""
    latest = [run for run in runs if run == runs[-1] or run.is_beside(runs[-1])]
    text = f"made in {' and '.join(f'{run.seconds:.0f} s' for run in latest)}"
    if before := sum(run.seconds for run in runs if run not in latest):
        text += f", with rows of {before:.0f} s before"
    if apart := [run for run in runs if any(map(run.is_beside, runs))]:
        gpus = len({run.gpu for run in apart})
        text += f"; measured apart at the same time by {len(apart)} processes on {gpus} GPU{'s' * (gpus > 1)}"
        text += f": {'; '.join(dict.fromkeys(map(str, apart)))}"
    return text
