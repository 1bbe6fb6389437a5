"""`compare`: functions timed in alternating blocks, by the code that times rows; timed calls are judged as checked ones are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from pytest_ecornn.contract import Cost
from pytest_ecornn.kernels.arguments import (
    Arguments,
    Function,
    Incoming,
    drawn,
    function_name,
    made_once,
    random_gradients,
    run,
)
from pytest_ecornn.kernels.checking import check_settings, function_row
from pytest_ecornn.kernels.reference import FunctionReference, UnusableReference, failure
from pytest_ecornn.kernels.report import KernelReport, WrongKernel
from pytest_ecornn.kernels.timed_calls import ArgumentPool, TimedFunction
from pytest_ecornn.measurement import capture, clocks, roofline
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import Arm, freeze_living
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.results.rows import Row
from pytest_ecornn.system.locking import MachineLock
from pytest_ecornn.verification.calls import WrongResult

_CONTENTS, _CONTENT_BYTES = 8, 2**28  # that the timed calls take in turn, and their bytes at most
_VERIFIED = 3  # timed calls of each function and clock that are judged
_UNPROVEN = "not proven: no reference was given, and none of the functions runs in float64"
Expect = Callable[[Arguments], FunctionReference]
Column = TimingColumn[Arm] | TimingColumn[GraphArm]


def compare(
    functions: Mapping[str, Function],
    make_inputs: Any,
    *,
    reference: Function | None = None,
    budget: float = 2.0,
    seed: int = 0,
    name: str = "",
    cost: Cost | None = None,
    precision: str = "ieee",
    terms: int | None = None,
    lock: MachineLock | None = None,
) -> KernelReport:
    """Times functions against each other, each call on contents of its own. Returns a row for each, with ratios to all others.

    functions: by name. The ratios of the first are decided within `budget` seconds, on a GPU by each of two clocks.
    make_inputs, precision, terms: as of `check`; all seeds give the same shapes. With gradients, backward is timed too.
    reference: what judges the results; else that of the functions that runs in float64 and rounds most in its own dtype.
    cost: bytes and operations that any algorithm must move and do: at the machine's ceilings they make a floor.
    name: of the problem. lock: on the machine.

    Raises WrongKernel where results are wrong, or a time is below its floor; ValueError for fewer than two functions, or
    contents of several shapes.
    """
    if not isinstance(functions, Mapping) or len(functions) < 2:
        raise ValueError(f"expected at least two functions by name, as a dict, got {functions!r:.100}")
    if not 0 < budget < inf:
        raise ValueError(f"budget: expected a number of seconds over 0, got {budget}")
    check_settings(precision, terms)
    start, judge = time.perf_counter(), reference or next(iter(functions.values()))
    incoming, lock = made_once(random_gradients(seed)), lock or MachineLock()
    contents = _contents(make_inputs, judge, seed)
    pool = ArgumentPool(contents, incoming)
    rows = [function_row(one, name or function_name(judge), contents[0], "benchmark") for one in functions]
    device, dtype = rows[0].device, rows[0].dtype
    with lock.shared():
        judges = {"": reference} if reference else functions
        expect, judging = _judge(judges, contents[0], incoming, precision, terms)
        expected = expect(contents[0]) if expect else None
        for row, function in zip(rows, functions.values(), strict=True):
            if expected:
                checks = expected.compare(run(function, contents[0].copied(), incoming))
                _fail(row, failure(checks))
                row.notes = "; ".join(f"not proven: {one.message}" for one in checks if one.status == "uninformative")
    freeze_living()
    arms = [Arm(TimedFunction(one, function, contents[0], incoming), pool) for one, function in functions.items()]
    with lock.exclusive():
        floor_us = roofline.cost_floor_us(cost, dtype, precision, roofline.measure_ceilings([dtype], device)) if cost else 0.0
        try:
            columns, missing = _measured(arms, device, budget)
        except WrongResult as wrong:
            raise WrongKernel(
                f"one of {', '.join(functions)} is wrong on {rows[0].case}: {wrong}", KernelReport(rows)
            ) from wrong
    for row in rows:
        row.beside, row.notes = lock.beside(), "; ".join(filter(None, [row.notes, *missing, *judging]))
        row.seconds = time.perf_counter() - start
        for column, measured in columns.items():
            _fill(row, column, measured, cost or Cost(0, 0), floor_us, expect)
    return KernelReport(rows)


def _contents(make_inputs: Any, function: Function, seed: int) -> list[Arguments]:
    """As many as the timed calls take in turn."""
    first = next(drawn(make_inputs, function, [seed]))
    size = max(1, sum(tensor.nbytes for tensor in first.tensors.values()))
    return list(drawn(make_inputs, function, range(seed, seed + max(2, min(_CONTENTS, _CONTENT_BYTES // size)))))


def _judge(
    functions: Mapping[str, Function], arguments: Arguments, incoming: Incoming, precision: str, terms: int | None
) -> tuple[Expect | None, list[str]]:
    """The function that can be a reference and rounds most, and what a row says of it.

    Raises UnusableReference for an only one that cannot.
    """
    judges = list[tuple[float, int, str, Expect]]()
    for number, (name, function) in enumerate(functions.items()):
        expect: Expect = partial(FunctionReference, function, incoming=incoming, precision=precision, terms=terms)
        try:
            judges.append((expect(arguments).own_error, -number, name, expect))
        except UnusableReference:
            if len(functions) == 1:
                raise
    if not judges:
        return None, [_UNPROVEN]
    error, _, name, most = max(judges, key=lambda one: one[:2])
    return most, [f"judged by {name} in float64, which errs by {error:.2g} in its own dtype"] if name else []


def _measured(arms: Sequence[Arm], device: str, budget: float) -> tuple[dict[str, Column], list[str]]:
    """Times by column, as called and on a GPU by replay; and why some are missing."""
    called = TimingColumn(arms, clocks.for_device(device))
    called.measure(budget)
    graphs, missing = capture.graph_arms(arms) if device.startswith("cuda") else ([], [])
    if not graphs:
        return {"timing": called}, missing
    replayed = TimingColumn(graphs, clocks.CudaGraphTimer(device))
    replayed.measure(budget)
    return {"timing": called, "replay": replayed}, missing


def _fill(row: Row, column: str, measured: Column, cost: Cost, floor_us: float, expect: Expect | None) -> None:
    """Fills in a row's times by one clock, once some of the timed calls were judged. Raises WrongKernel."""
    arms: Sequence[Arm | GraphArm] = measured.arms
    for number, arm in enumerate(arms):
        if arm.candidate.name != row.implementation:
            continue
        try:
            arm.kept.check_held()
        except WrongResult as wrong:
            _fail(row, f"a timed call: {wrong}")
        for one in sorted(arm.kept.calls, reverse=True)[:_VERIFIED]:
            message = failure(expect(one.prepared.contents).compare(one.tensors)) if expect else ""
            _fail(row, message and f"a timed call: {message}")
        timing = measured.timing(cost, floor_us, number=number)
        if timing.is_below_floor:
            _fail(row, f"{timing.time_us:.4g} us by {timing.clock}, but this machine needs at least {floor_us:.4g} us")
        setattr(row, column, timing)


def _fail(row: Row, message: str) -> None:
    """Raises WrongKernel for a row of which there is something to say."""
    if message:
        row.status, row.reason = "failed", message
        raise WrongKernel(f"{row.implementation} is wrong on {row.case}: {message}", KernelReport([row]))
