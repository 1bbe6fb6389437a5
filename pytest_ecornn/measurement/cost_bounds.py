"""Bounds of an implementation's declared cost: near the cell's own count, and never belied by a rate in a report.

At least `LEAST` of what any algorithm must move and do: one that leaves out states or biases is right about the rest. At most
`MOST` times what a plain loop does that reads all weights in every step, keeps its gates in float64, takes pruned weights for
dense ones, and reduces in a tree over time. And no rate over `FASTEST` times the best that was seen on this machine.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, log2
from numbers import Real

import torch

from pytest_ecornn.cases.contents import valid_steps
from pytest_ecornn.contract import Case, Cost, cells
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.results.rows import Timing
from pytest_ecornn.verification.outcomes import CheckFailed
from pytest_ecornn.verification.verification import Candidate

LEAST = 0.4
MOST = 16
FASTEST = 10
_WIDEST = 8  # bytes of an element
_OPERATIONS = 32  # of one gate of one element in one step, its exponential included


class WrongCost(CheckFailed):
    """A declared cost that cannot be, with the number that was expected and the one that came."""


def checked(candidate: Candidate) -> Cost:
    """Returns the declared cost in whole numbers. Raises WrongCost where it is no Cost, or beyond what is possible."""
    cost: object = candidate.implementation.cost(candidate.case)
    if problem := _problem(cost, candidate.case):
        raise WrongCost(f"{candidate.name} on {candidate.case}: cost: {problem}", candidate.case)
    assert isinstance(cost, Cost)
    return Cost(int(cost.bytes), int(cost.operations))


def _problem(cost: object, case: Case) -> str:
    """Describes what is wrong with a declared cost; empty where nothing is."""
    if not isinstance(cost, Cost):
        return f"expected a Cost, got {type(cost).__name__}"
    least, most = bounds(case)
    for name in ("bytes", "operations"):
        declared, low, high = getattr(cost, name), getattr(least, name), getattr(most, name)
        if not isinstance(declared, Real) or isinstance(declared, bool) or not isfinite(declared):
            return f"expected a number of {name}, got {declared!r:.80}"
        if not low <= declared <= high:
            own = getattr(cells.minimum_cost(case, valid_steps(case)), name)
            return f"expected {low:,} to {high:,} {name}, got {declared:,.12g}: the cell's own count is {own:,}"
    return ""


def bounds(case: Case) -> tuple[Cost, Cost]:
    """The least and the most that may be declared."""
    rows = valid_steps(case)
    sparsest = replace(case, density=0.0001) if case.density < 1 else case  # a pattern may have fewer elements than its density
    floor = cells.minimum_cost(sparsest, rows)
    return Cost(int(LEAST * floor.bytes), int(LEAST * floor.operations)), _most(replace(case, density=1.0))


def rate_problem(timing: Timing, ceilings: Ceilings) -> str:
    """Describes a rate that the machine cannot have moved or computed at; empty where there is none."""
    points = (*ceilings.copy_points.values(), *ceilings.read_points.values())
    for unit, rate, best in (
        ("GB/s", timing.gb_per_s, max(points)),
        ("GFLOP/s", timing.gflop_per_s, max(ceilings.matmul_gflop_per_s.values())),
    ):
        if rate > FASTEST * best:
            return f"expected at most {FASTEST * best:,.4g} {unit}, {FASTEST} times the best here, got {rate:,.4g}"
    return ""


def _most(case: Case) -> Cost:
    """Returns the most that a case without a pattern may declare."""
    cell, size = cells.get(case.cell), max(_WIDEST, getattr(torch, case.dtype).itemsize)
    tracks, rows, passes = case.layers * case.directions, case.steps * case.batch, 3 if case.training else 1
    shapes = [torch.Size(shape) for shape in cells.parameter_shapes(case).values()]
    products = sum(shape.numel() for shape in shapes if len(shape) == 2)
    elements = rows * tracks * case.hidden_size * (len(cell.gates) + len(cell.states))
    levels = 1 + log2(case.steps)
    values = case.steps * sum(shape.numel() for shape in shapes) + rows * cells.x_width(case) + 2 * levels * elements
    done = 2 * rows * products + _OPERATIONS * levels * elements
    return Cost(int(MOST * passes * size * values), int(MOST * passes * done))
