"""The process that builds, verifies and times another revision's own implementations: what `RemoteProcess` asks.

It is started with that revision's `pytest_ecornn.implementations` in the place of today's (`Revision.process`). All else is
today's, so both revisions are timed alike, as any arm is.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import ExitStack, suppress

import torch

from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.measurement import capture, clocks
from pytest_ecornn.measurement.measurement import Arm, gc_disabled
from pytest_ecornn.measurement.noise.waits import WatchedClock
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.reference.precision import cudnn_precision, fp32_precision
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.run.items.items import build_and_compare
from pytest_ecornn.system import memory
from pytest_ecornn.system.error_line import error_line
from pytest_ecornn.verification.guards.tampering import IntrospectionGuard
from pytest_ecornn.verification.outcomes import SkipCheck

_PR_SET_PDEATHSIG = 1  # of prctl(2)


class Requests:
    """What may be asked of the layer that was built last, and of its arms, "called" and "replayed"."""

    def __init__(self) -> None:
        self._arms = dict[str, tuple[Arm | GraphArm, WatchedClock]]()
        self._settings = ExitStack()  # until the next is built

    def build(self, name: str, implementation: str, case_name: str) -> str:
        """Builds and verifies a layer as a row does its baselines. Returns why there is none; empty where there is."""
        for _, clock in self._arms.values():
            clock.close()
        self._arms.clear()
        vars(self).pop("_called", None)  # with its memory
        self._settings.close()
        case, known = Case.parse(case_name), discover([])[implementation]
        self._settings.enter_context(IntrospectionGuard(known.path))  # under which calls take longer, as a row's do
        if case.device.startswith("cuda"):
            self._settings.enter_context(fp32_precision("rnn", cudnn_precision(case)))
        try:
            candidate, comparisons = build_and_compare(known, case)
        except (SkipCheck, Unsupported) as reason:
            return str(reason)
        if any(check.status == "failed" for check in comparisons):
            return "it is wrong"
        candidate.name, candidate.first = name, None
        self._settings.enter_context(gc_disabled())
        self._settings.enter_context(torch.set_grad_enabled(case.training))
        self._called = Arm(candidate, InputPool(case))
        self._arms["called"] = self._called, WatchedClock(clocks.for_device(case.device))
        return ""

    def calibrate(self, name: str) -> int:
        """Returns how many calls make a block."""
        arm, clock = self._arms[name]
        arm.calibrate(clock)
        return arm.calls

    def block(self, name: str, calls: int, is_settled: bool) -> tuple[float, int, float, float]:
        """Returns a call's time in us, how many calls the next block is to have, and what the block lost to waits."""
        arm, clock = self._arms[name]
        arm.calls = calls
        arm.block(clock, is_settled)
        return arm.samples_us[-1], arm.calls, clock.lost, clock.delayed

    def capture(self) -> list[str]:
        """Captures the calls as graphs anew. Returns why that cannot be; nothing where it can."""
        if former := self._arms.pop("replayed", None):
            former[1].close()
        graphs, missing = capture.graph_arms([self._called])
        if graphs:
            self._arms["replayed"] = graphs[0], WatchedClock(clocks.CudaGraphTimer(self._called.candidate.device))
        return missing


def main(threads: int) -> None:
    """Serves until its standard input ends, which is when the other process does."""
    with suppress(OSError, AttributeError):  # in the middle of a block too
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a layer prints is no answer
    memory.configure_malloc()
    torch.set_num_threads(threads)
    requests = Requests()
    for line in sys.stdin:
        request, *arguments = json.loads(line)
        try:
            answer = "", getattr(requests, request)(*arguments)
        except Exception as error:
            answer = error_line(error), None
        print(json.dumps(answer), file=answers, flush=True)
