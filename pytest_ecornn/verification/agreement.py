"""Whether two results of one implementation agree: bit for bit, or as nearly as two right results must.

Rounding is measured as for `comparison`: by how far a plain loop is from the reference. Each side may be off by its limit, so
two may differ by both. The loop is run only where they differ by more than the rule's floors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.cases.non_finite import leaves_undefined
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.verification.calls import Tensors, bitwise_different
from pytest_ecornn.verification.comparison import (
    MAX_FACTOR,
    MAX_FLOOR,
    RMS_FACTOR,
    RMS_FLOOR,
    Error,
    check_tensor,
    to_float64,
)
from pytest_ecornn.verification.layer_rules import layer_rule, precision_eps
from pytest_ecornn.verification.rounding_shares import ANY
from pytest_ecornn.verification.verification import ReferenceResult, reference_device
from pytest_ecornn.verification.yardstick import run_counts


@dataclass
class ResultComparator:
    """Compares results of one problem, computed with the roundings that are `declared`."""

    problem: Problem
    declared: Declared

    @cached_property
    def _expected(self) -> ReferenceResult:
        return ReferenceResult(self.problem).rounded(self.declared.weight_rounding)

    def allclose(self, wanted: Tensors, got: Tensors) -> str:
        """Describes a tensor that differs by more than rounding, in one line; empty if none does."""
        names = differing_names(wanted, got)
        for runs in (0, *run_counts(wanted["output"].numel() if wanted["output"] is not None else 0)):
            messages = {name: self._judged(name, wanted[name], got[name], runs) for name in names}
            names = [name for name in names if messages[name]]
            if not names:
                return ""
        return messages[_most_telling(names, wanted, got)]

    def _judged(self, name: str, wanted: Tensor | None, got: Tensor | None, runs: int) -> str:
        if wanted is None or got is None:
            return _difference(name, wanted, got)
        case, exact = self.problem.case, {"": Error(0.0, 0.0, max(1, wanted.numel()))}
        yard = self._expected.baseline_errors(self.declared, runs)[name] if runs else exact
        both = {label: _doubled_limits(case, error) for label, error in yard.items()}
        reference = to_float64(wanted, torch.device(reference_device(case)))
        if leaves_undefined(case) and got.shape == wanted.shape:
            undefined = self._expected.tensors[name].isnan()
            reference, got = reference.masked_fill(undefined, 0.0), got.masked_fill(undefined.to(got.device), 0.0)
        verdict = check_tensor(layer_rule(case, name, reference.shape), got, reference, both, self._expected.valid(name))
        return verdict.message if verdict.status == "failed" else ""


def loosest(declared: Sequence[Declared]) -> Declared:
    """Returns a declaration that covers all of these: storage where any rounds to it, the largest error of an activation."""
    fields: dict[str, Any] = {}
    for name, values in zip(Declared._fields, zip(*declared, strict=True), strict=True):
        fields[name] = max(values) if name == "activation_error" else "storage" if "storage" in values else values[0]
    return Declared(**fields)


def bitwise_equal(wanted: Tensors, got: Tensors) -> str:
    """Describes a tensor that differs in a bit, in one line; empty if none does."""
    names = differing_names(wanted, got)
    return _difference(name := _most_telling(names, wanted, got), wanted[name], got[name]) if names else ""


def differing_names(wanted: Tensors, got: Tensors) -> list[str]:
    return [name for name in wanted if _differ(wanted[name], got[name])]


def _differ(wanted: Tensor | None, got: Tensor | None) -> bool:
    if wanted is None or got is None:
        return wanted is not got
    return wanted.shape != got.shape or wanted.dtype != got.dtype or bool(bitwise_different(wanted, got).any())


def _most_telling(names: Sequence[str], wanted: Tensors, got: Tensors) -> str:
    """Of differing tensors the first result, or else the gradient of the largest values: tiny ones convince nobody."""

    def size(name: str) -> float:
        one, other = wanted[name], got[name]
        if one is None or other is None or not other.numel():
            return math.inf
        return max(float(tensor.detach().abs().nan_to_num(math.inf).max()) for tensor in (one, other))

    return next((name for name in names if not name.startswith("grad")), None) or max(names, key=size)


def _difference(name: str, wanted: Tensor | None, got: Tensor | None) -> str:
    if wanted is None or got is None or (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        return f"{name}: expected {_kind(wanted)}, got {_kind(got)}"
    wrong = bitwise_different(wanted, got)
    if not wrong.any():
        return f"{name}: expected it written when it is read, but it changed while it was compared"
    sizes = (wanted.detach().double() - got.detach().double()).abs().nan_to_num(math.inf)
    index = tuple(int(i) for i in torch.unravel_index(torch.where(wrong, sizes, -1.0).argmax(), wrong.shape))
    return (
        f"{name}: at {list(index)} expected {wanted[index].item():.9g}, got {got[index].item():.9g} "
        f"({int(wrong.sum())} of {wrong.numel()} elements differ)"
    )


def _kind(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{list(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}"


def _doubled_limits(case: Case, error: Error) -> Error:
    """The yardstick whose limits are twice those of `error`."""
    eps = precision_eps(case)
    rms = 2 * error.rms + RMS_FLOOR / RMS_FACTOR * eps / error.count**0.5
    return Error(rms, 2 * error.maximum + MAX_FLOOR / MAX_FACTOR * eps, error.count, ANY)
