"""An implementation on one case, timed as called and captured, whose graphs any number of measurements replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ecornn.contract import Case, Layer, Unsupported
from pytest_ecornn.measurement.capture import graph_arms
from pytest_ecornn.measurement.clocks import CudaEventTimer
from pytest_ecornn.measurement.measurement import Arm, measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import Graph, GraphArm
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.system.error_line import error_line, first_line
from pytest_ecornn.system.graphs import NotCaptured
from pytest_ecornn.verification.verification import Candidate

_CALLED_SECONDS = 0.05


@dataclass(frozen=True)
class CapturedImplementation:
    """called: the arm as a row's first column has it, measured."""

    called: Arm
    graphs: Sequence[Graph]

    @property
    def device(self) -> str:
        return self.called.candidate.case.device

    def arm(self) -> GraphArm:
        """A fresh arm of a device-only column, without samples, over the same graphs."""
        return GraphArm(self.called.candidate, self.called.pool, self.graphs)


def capture(
    name: str, case: Case, pool: InputPool, change: Callable[[Layer], Layer] = lambda layer: layer
) -> CapturedImplementation:
    """`change` makes of the layer what is timed. Raises Unsupported or NotCaptured; a wrong result is not found out."""
    kind = discover([])[name].cls
    if reason := kind().refusal(case):
        raise Unsupported(reason)
    candidate = Candidate.build(name, kind, case)
    candidate.layer = change(candidate.layer)
    called = Arm(candidate, pool)
    measure([called], CudaEventTimer(case.device), _CALLED_SECONDS, lambda: True)
    arms, missing = graph_arms([called])
    if missing:
        raise NotCaptured(missing[0])
    return CapturedImplementation(called, arms[0].graphs)


def reason_of(error: Exception) -> str:
    """Why there is nothing to measure, in one line."""
    return first_line(error) if isinstance(error, (Unsupported, NotCaptured)) else error_line(error)
