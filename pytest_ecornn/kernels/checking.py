"""`check`: any function on tensors against a reference in float64, judged by the reference in the candidate's own dtype."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import PRECISIONS
from pytest_ecornn.kernels.arguments import Arguments, Function, drawn, function_name, random_gradients, run
from pytest_ecornn.kernels.conduct import PROPERTIES, FunctionContext
from pytest_ecornn.kernels.reference import FunctionReference, Rounded, UnusableReference, failure, rounding_problem
from pytest_ecornn.kernels.report import KernelReport, WrongKernel
from pytest_ecornn.results.rows import Row, TensorError
from pytest_ecornn.system import faults
from pytest_ecornn.verification.calls import PoisonedAllocations, WrongResult
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, everything
from pytest_ecornn.verification.properties import properties
from pytest_ecornn.verification.properties.properties import PropertyViolation
from pytest_ecornn.verification.properties.subject import raised_as_wrong


def check(
    candidate: Function,
    reference: Function,
    make_inputs: Any,
    *,
    draws: int = 16,
    seed: int = 0,
    name: str = "",
    skip: Mapping[str, str] | None = None,
    precision: str = "ieee",
    terms: int | None = None,
) -> KernelReport:
    """Proves `candidate` against `reference` on several draws, and its properties. Returns the row, which prints as a table.

    candidate, reference: called alike, with tensors among their arguments; they return a tensor, or a tuple or dict of them.
    The reference is written in torch, and computes in the dtype of its arguments: it runs in float64, and in their own dtype.
    make_inputs: a function of a seed that returns arguments as a tuple, or a dict by keyword; or a Hypothesis strategy of such.
    The gradient of each argument that requires one is proven as well.
    skip: properties that are left out, with the reason of each. precision: "tf32" where float32 products may be of TF32.
    terms: of the longest sum, where it is not the longest dimension of an argument, or over 4,096.

    Raises WrongKernel, an AssertionError, for a wrong candidate; ValueError for a reference that cannot judge, or an unknown
    property; TypeError for inputs without a tensor.
    """
    skip = dict(skip or {})
    _check_skipped(skip)
    check_settings(precision, terms)
    if draws < 1:
        raise ValueError(f"draws: expected at least 1, got {draws}")
    start = time.perf_counter()
    every = list(drawn(make_inputs, reference, range(seed, seed + draws)))
    row = function_row(name or function_name(candidate), function_name(reference), every[0])
    worst, small = dict[str, TensorCheck](), defaultdict[str, list[Rounded]](list)
    expect, problems = partial(FunctionReference, reference, precision=precision, terms=terms), list[str]()
    for number, arguments in enumerate(every):
        expected = expect(arguments, incoming=random_gradients(seed + number))
        if arguments.has_gradients and all(t is None for name, t in expected.own.items() if name.startswith("grad ")):
            raise UnusableReference("expected a reference with a gradient, as an argument requires one; got none")
        with GlobalStateGuard(() if number else everything()) as guard:
            lines = list(_wrong(candidate, expected, row, worst, small))
        found = [f"draw {seed + number} ({described(arguments)}): {line}" for line in lines]
        if not found and number in (0, len(every) - 1):
            subject = FunctionContext(candidate, expected, _others(every, number), expect, guard, "repeats" not in skip)
            found = list(dict.fromkeys(_broken(subject, skip, row)))
        problems, row.examples = problems + found, number + 1
        if found:
            break
    row.tensors = [TensorError(c.tensor, c.status, c.rms, c.maximum, c.share, c.slice) for c in worst.values()]
    if not problems:
        problems = [*filter(None, map(rounding_problem, small.values()))]
    if not problems:
        vain = [one for one in worst.values() if not row.informative.get(one.tensor)]
        problems = [f"nothing was proven: {one.message or one.tensor}" for one in vain]
    row.status, row.reason, row.seconds = "failed" if problems else "passed", "\n".join(problems), time.perf_counter() - start
    row.notes = "; ".join(f"{property_name} left out: {reason}" for property_name, reason in skip.items())
    report = KernelReport([row])
    if problems:
        lines = [f"{row.implementation} is wrong on {row.case}:", *(f"  {line}" for line in problems)]
        raise WrongKernel("\n".join(lines), report)
    return report


def check_settings(precision: str, terms: int | None) -> None:
    """Raises ValueError for a precision or a length of sums that there is not."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    if terms is not None and terms < 1:
        raise ValueError(f"terms: expected at least 1, got {terms}")


def _check_skipped(skip: Mapping[str, str]) -> None:
    names = [one.name for one in PROPERTIES]
    for name, reason in skip.items():
        if name not in names:
            raise ValueError(f"skip: expected properties of {', '.join(names)}; got {name!r}")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"skip: expected the reason why {name} is left out, got {reason!r}")


def _wrong(
    candidate: Function, expected: FunctionReference, row: Row, worst: dict[str, TensorCheck], small: dict[str, list[Rounded]]
) -> Iterator[str]:
    """What is wrong with the results on poisoned memory, a line each.

    Adds to the row's counts, the worst of each tensor, and the rounding of small ones.
    """
    try:
        with PoisonedAllocations(), raised_as_wrong(row.device):
            tensors = run(candidate, expected.arguments.copied(), expected.incoming)
        checks = expected.compare(tensors)
    except WrongResult as wrong:
        yield str(wrong)
        return
    for one in checks:
        counts = row.uninformative if one.status == "uninformative" else row.informative
        counts[one.tensor] = counts.get(one.tensor, 0) + 1
        if one.tensor not in worst or one.share > worst[one.tensor].share or worst[one.tensor].status == "uninformative":
            worst[one.tensor] = one
        if one.status == "failed":
            yield one.message
    for rounded in () if failure(checks) else expected.small(tensors):
        small[rounded[0].tensor].append(rounded)


def _broken(subject: FunctionContext, skip: Mapping[str, str], row: Row) -> Iterator[str]:
    """Properties that do not hold, a line each. The row counts those that do."""
    for one in PROPERTIES:
        reason = skip.get(one.name, "")
        try:
            reason = reason or properties.check(subject, [one])[one.name]
        except PropertyViolation as broken:
            if broken.property.name not in skip:
                yield f"{broken}; skip={{{broken.property.name!r}: reason}} leaves it out"
        except Exception as error:
            if not (lost := faults.unrecoverable_reason(error, subject.device)):
                raise
            yield f"{PropertyViolation(one, lost)}; nothing more can run in this process"
            return
        counts = row.uninformative if reason else row.informative
        counts[one.name] = counts.get(one.name, 0) + 1


def _others(every: Sequence[Arguments], number: int) -> Arguments:
    """Arguments of the same kind as those of that number: another draw, or where there is none these once more."""
    own = every[number]
    return next((other for other in (*every[number + 1 :], *every[:number]) if other.kind == own.kind), own.copied())


def described(arguments: Arguments) -> str:
    """Shapes and dtypes of the tensors among the arguments."""
    return ", ".join(f"{name} {_kind(tensor)}" for name, tensor in arguments.tensors.items())


def _kind(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def function_row(name: str, problem: str, arguments: Arguments, kind: str = "drawn") -> Row:
    """An empty row of a function, on arguments like these."""
    tensors = list(arguments.tensors.values())
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    mode = "training" if arguments.has_gradients else "inference"
    case = f"{problem}({described(arguments)})"
    return Row(kind, name, case, problem, str(dtype).removeprefix("torch."), str(arguments.device), mode, "passed")
