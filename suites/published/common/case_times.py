"""Times of several implementations on a case: verified, then as called and replayed from CUDA graphs, all taking turns.

An implementation is built for a case and found right on it as called, or there is a reason why there is none to time. Times are
by the harness's own clocks and arms, as a row of `pytest --ecornn-bench` is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch

from pytest_ecornn.cases.case_sets import Origin, case_set
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.measurement import clocks, measurement
from pytest_ecornn.measurement.capture import MAX_CALL_SECONDS, graph_arms
from pytest_ecornn.measurement.clocks import CudaGraphTimer, Timer
from pytest_ecornn.measurement.measurement import Arm, Timeable, gc_disabled
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.run.discovery import ImplementationInfo, discover
from pytest_ecornn.run.items.items import build_and_compare
from pytest_ecornn.suites.published.common.item_rows import ItemRow, measure_rest
from pytest_ecornn.system.error_line import error_line
from pytest_ecornn.system.gpus.lock import device_lock
from pytest_ecornn.system.locking import MachineLock, turn
from pytest_ecornn.verification.calls import Call, WrongResult
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.outcomes import SkipCheck
from pytest_ecornn.verification.verification import Candidate, expected, failure_message

CALLED, REPLAYED = "as called", "graph replay"
TIMING_MODES = (CALLED, REPLAYED)
NOT_CALLED, NO_GRAPHS = "not timed as called", "no CUDA graphs on a CPU"
WRONG = "wrong"
_SECONDS = 1.0  # for the fewest rounds that an interval needs; slower calls get fewer
Build = Callable[[ImplementationInfo, Case], tuple[Candidate, list[TensorCheck]]]


def cases_of(name: str) -> dict[Case, Origin]:
    """The cases of a set on a GPU, each with its origin."""
    return {replace(case, device="cuda"): origin for case, origin in case_set(name).items()}


@cache
def _found() -> dict[str, ImplementationInfo]:
    return discover([])


def times_in_build(name: str) -> bool:
    """Whether an implementation of that name times something when it is built."""
    return name in _found() and _found()[name].cls.times_in_build


def prepared(case: Case, names: Sequence[str], build: Build = build_and_compare) -> dict[str, Candidate | str]:
    """Returns by name a candidate that passed, WRONG, or why it does not run the case. Prints each failure in full."""
    return {name: _prepared(name, case, build) for name in names}


def _prepared(name: str, case: Case, build: Build) -> Candidate | str:
    if name not in _found():
        return "absent from this version"
    try:
        candidate, comparisons = build(_found()[name], case)
        return failure_text(candidate, comparisons) or candidate
    except (SkipCheck, Unsupported) as error:
        return str(error)
    except WrongResult as error:
        return _print_failure(f"{name} is wrong on {case}: {error}")
    except Exception as error:  # one implementation's failure must not end the others' measurement
        return f"raised {error_line(error)}"


def failure_text(candidate: Candidate, comparisons: list[TensorCheck]) -> str:
    """WRONG where a comparison failed, after printing it; empty otherwise."""
    message = failure_message(candidate.name, candidate.case, comparisons)
    return _print_failure(message) if message else ""


def _print_failure(message: str) -> str:
    print(message, flush=True)
    return WRONG


def call_of(candidate: Candidate) -> Callable[[], Any]:
    """One call on the case's own problem: the layer, in training mode with the gradient of every input and weight."""
    return partial(Call(replace(expected(candidate.case).problem, weights=candidate.weights)).forward_backward, candidate.layer)


@dataclass(frozen=True)
class Cell:
    """The time of one implementation on one case, in microseconds, or the reason why there is none.

    over_it: another implementation's time over this one's, by its name; over 1 means that this one is faster.
    """

    reason: str = ""
    time_us: tuple[float, float, float] | None = None  # median, low, high
    over_it: dict[str, Ratio] = field(default_factory=dict)


@dataclass(frozen=True)
class Row(ItemRow):
    """One case; cells by way (WAYS) and implementation."""

    case: Case
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedComparison:
    """names: of the implementations that are timed. beside: those that the others' times are compared with.

    needed: the one without which a case is of no interest, and the others are not timed; none where empty. called: which cases
    are timed as called too, beside replayed; those of a CPU always are. times_long_calls: so are cases that have too long calls
    for a replay.

    Several processes may share a device: they verify side by side, and time one at a time.
    """

    names: Sequence[str]
    baselines: Sequence[str]
    needed: str = ""
    called: Callable[[Case], bool] = lambda case: True
    times_long_calls: bool = False

    def rows(self, cases: Iterable[Case], deadline: float, earlier: Sequence[Row] = ()) -> Iterator[Row]:
        """Earlier rows, then one for each other case; of those that begin after `deadline`, or fail, the reason alone."""
        return measure_rest(cases, earlier, lambda row: row.case, deadline, self._row, self.unmeasured_row)

    def unmeasured_row(self, case: Case, why: str) -> Row:
        return Row(case, {way: dict.fromkeys(self.names, Cell(why)) for way in TIMING_MODES})

    def _row(self, case: Case) -> Row:
        lock = device_lock(case.device)
        with gc_disabled():
            candidates = self._prepared(case, lock)
            with lock.exclusive():
                return self._times(case, candidates)

    def _prepared(self, case: Case, lock: MachineLock) -> dict[str, Candidate | str]:
        found: dict[str, Candidate | str] = {}
        for name in sorted(self.names, key=lambda name: name != self.needed):
            with lock.exclusive() if times_in_build(name) else lock.shared(), turn():
                found |= prepared(case, [name])
            if name == self.needed and isinstance(found[name], str):
                return {**dict.fromkeys(self.names, f"not timed, as {self.needed} was not"), **found}
        return found

    def _times(self, case: Case, candidates: Mapping[str, Candidate | str]) -> Row:
        pool = InputPool(case)
        called = {name: one if isinstance(one, str) else Arm(one, pool) for name, one in candidates.items()}
        times = [self._called(case, called)]
        with turn():
            replayed = {name: one if isinstance(one, str) else captured(one) for name, one in called.items()}
        times.append(self._timed({name: checked(one) for name, one in replayed.items()}, CudaGraphTimer(case.device)))
        return Row(case, dict(zip(TIMING_MODES, times, strict=True)))

    def _called(self, case: Case, arms: Mapping[str, Arm | str]) -> dict[str, Cell]:
        clock = clocks.for_device(case.device)
        if case.device == "cpu" or self.called(case) or (_has_long_call(arms, clock) and self.times_long_calls):
            return self._timed(arms, clock)
        return {name: Cell(arm if isinstance(arm, str) else NOT_CALLED) for name, arm in arms.items()}

    def _timed(self, arms: Mapping[str, Timeable | str], clock: Timer) -> dict[str, Cell]:
        timed = {name: arm for name, arm in arms.items() if not isinstance(arm, str)}
        if timed:
            measurement.measure(list(timed.values()), clock, _SECONDS, lambda: True)
        samples_us = {name: arm.samples_us for name, arm in timed.items()}
        return self.cells(samples_us, {name: reason for name, reason in arms.items() if isinstance(reason, str)})

    def cells(self, samples_us: Mapping[str, Sequence[float]], reasons: Mapping[str, str]) -> dict[str, Cell]:
        """Returns a cell for each implementation, from its samples (one a round) or the reason why it has none."""
        return {name: self._cell(name, samples_us) if name in samples_us else Cell(reasons[name]) for name in self.names}

    def _cell(self, name: str, samples_us: Mapping[str, Sequence[float]]) -> Cell:
        own, others = samples_us[name], [other for other in self.baselines if other in samples_us]
        return Cell("", median_interval(own), {other: paired_ratio(samples_us[other], own) for other in others})


def _has_long_call(arms: Mapping[str, Arm | str], clock: Timer) -> bool:
    """Calibrates the arms, which their capture needs; whether one's calls are too long for a graph."""
    calibrated = [arm for arm in arms.values() if isinstance(arm, Arm)]
    for arm in calibrated:
        with turn(), torch.set_grad_enabled(arm.candidate.case.training):
            arm.calibrate(clock)
    return any(arm.seconds > MAX_CALL_SECONDS for arm in calibrated)


def timing_mode(row: Row) -> str:
    """Returns graph replay, or as called where that has times of more implementations."""
    return max(reversed(TIMING_MODES), key=lambda way: sum(cell.time_us is not None for cell in row.cells[way].values()))


def captured(arm: Arm) -> GraphArm | str:
    """Its graphs, or why there are none."""
    if arm.candidate.case.device == "cpu":
        return NO_GRAPHS
    graphs, missing = graph_arms([arm])
    return graphs[0] if graphs else missing[0]


def checked(arm: GraphArm | str) -> GraphArm | str:
    """The arm where what its first graph computes of the case's own contents, which it was not captured on, is right."""
    if isinstance(arm, str):
        return arm
    graph, wanted = arm.graphs[0], expected(arm.candidate.case)
    graph.refresh(wanted.problem)
    graph.replay()
    comparisons = wanted.compare(graph.call.results_by_name(*graph.result), arm.candidate.implementation.declared)
    return failure_text(arm.candidate, comparisons) or arm


def precision_of(case: Case) -> str:
    """Returns a case's precision in one word: its dtype, or for float32 in TF32 `tf32`."""
    return case.precision if case.precision != "ieee" else case.dtype
