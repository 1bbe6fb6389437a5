"""DeepBench's recurrent problems and the times that it published for them.

They are read from problems.csv beside this module: facts of github.com/baidu-research/DeepBench, Apache-2.0. Times are cuDNN's
of 2016 to 2018, of one layer and one direction with I = H, without the input product.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pytest_ecornn.contract import Case

V100, TITAN_XP = "V100", "TitanXp"
_FILE = "problems.csv"
_PUBLISHED_PRECISIONS = {"float32": "fp32", "float16": "fp16 mixed"}  # by the dtype of the case
_UNNAMED = {"inference_server": "inference on a server", "inference_device": "inference on a device"}


@dataclass(frozen=True)
class Problem:
    """A layer and the application that it comes from. set: training, inference_server or inference_device."""

    set: str
    application: str
    cell: str
    hidden: int
    batch: int
    steps: int

    @property
    def is_training(self) -> bool:
        return self.set == "training"

    @property
    def work(self) -> int:
        """T * B * H * H, to which the multiply-adds of a layer are proportional."""
        return self.steps * self.batch * self.hidden**2

    def __str__(self) -> str:
        return f"{self.cell} {self.hidden:,}, B {self.batch}, T {self.steps:,}"


@dataclass(frozen=True)
class PublishedTime:
    """Times on one processor in one precision, in ms; None where DeepBench has none."""

    forward_ms: float
    backward_inputs_ms: float | None = None
    backward_weights_ms: float | None = None

    @property
    def training_step_ms(self) -> float | None:
        """The sum of the three; None where one is missing."""
        if self.backward_inputs_ms is None or self.backward_weights_ms is None:
            return None
        return self.forward_ms + self.backward_inputs_ms + self.backward_weights_ms


@cache
def published() -> Mapping[Problem, Mapping[tuple[str, str], PublishedTime]]:
    """Returns each problem with its times by processor and precision, in the file's order.

    An application that two processors' lists name differently has the first name. Inference without one is named by its set.
    """
    times: dict[tuple[str, ...], dict[tuple[str, str], PublishedTime]] = {}
    problems: dict[tuple[str, ...], Problem] = {}
    for row in csv.DictReader(files(__package__).joinpath(_FILE).read_text().splitlines()):
        key = tuple(row[name] for name in ("set", "cell", "hidden", "batch", "steps"))
        problems.setdefault(key, _problem(row))
        of_problem = times.setdefault(key, {})
        if row["processor"]:
            of_problem[row["processor"], row["precision"]] = _published_time(row)
    return {problem: times[key] for key, problem in problems.items()}


def _problem(row: Mapping[str, str]) -> Problem:
    application = row["application"] or _UNNAMED[row["set"]]
    return Problem(row["set"], application, row["cell"], *(int(row[name]) for name in ("hidden", "batch", "steps")))


def _published_time(row: Mapping[str, str]) -> PublishedTime:
    backward = (float(row[name]) if row[name] else None for name in ("backward_inputs_ms", "backward_weights_ms"))
    return PublishedTime(float(row["forward_ms"]), *backward)


def published_us(problem: Problem, processor: str, case: Case) -> float | None:
    """Returns the published time beside a case in float32, TF32 (both: fp32) or float16; None where there is none."""
    times = published().get(problem, {}).get((processor, _PUBLISHED_PRECISIONS[case.dtype]))
    if times is None:
        return None
    time_ms = times.training_step_ms if case.training else times.forward_ms
    return None if time_ms is None else time_ms * 1e3
