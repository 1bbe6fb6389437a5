"""What `comparison`'s rule must know of the tensors of a recurrent layer: slices, sums, independent elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from pytest_ecornn.cases.non_finite import leaves_undefined
from pytest_ecornn.contract import Case, cells
from pytest_ecornn.reference.rounding import TF32_EPS
from pytest_ecornn.verification.comparison import Slices, TensorRule
from pytest_ecornn.verification.rounding_shares import Independent


def layer_rule(case: Case, tensor: str, shape: Sequence[int]) -> TensorRule:
    """The rule of a layer's tensor of that name and shape."""
    dtype, where = getattr(torch, case.dtype), _slices(case, tensor, tuple(shape))
    return TensorRule(
        tensor, dtype, case.device, precision_eps(case), (where,), summation_length(case, tensor), case.steps,
        _independent(case, tensor), leaves_undefined(case),
    )  # fmt: skip


def _slices(case: Case, tensor: str, shape: tuple[int, ...]) -> Slices:
    """Bounds of a tensor's slices: octaves of time, layers and directions of a state, gates of a weight gradient."""
    edges: Sequence[int]
    axis = 0
    if tensor in ("output", "grad x"):
        axis = int(case.batch_first)
        edges = [0, *(2**k for k in range(case.steps.bit_length()) if 2**k < case.steps), case.steps]
        labels = [f"steps {a}..{b - 1}" for a, b in itertools.pairwise(edges)]
    elif tensor.startswith(("final", "grad initial")):
        labels = [suffix.removeprefix("_") for _, _, suffix in cells.parameter_suffixes(case)]
        edges = range(len(labels) + 1)
    else:
        blocks, gates = shape[0] // case.hidden_size, cells.get(case.cell).gates
        labels = [f"gate {gate}" for gate in (gates if blocks == len(gates) else range(blocks))]
        edges = range(0, shape[0] + 1, case.hidden_size)
    parts = dict(zip(labels, itertools.pairwise(edges), strict=True))
    return Slices(axis, {"": (0, shape[axis]), **(parts if len(parts) > 1 else {})})


def summation_length(case: Case, tensor: str) -> int:
    """How many terms the longest sums on the way to a tensor have: over inputs and states, over gates, over T*B."""
    cell, widest = cells.get(case.cell), case.directions * case.hidden_size if case.layers > 1 else 0
    inputs = max(widest, 0 if case.projected else case.input_size)
    count = inputs + (case.hidden_size if cell.recurrent else 0)
    if tensor.startswith("grad"):
        count += len(cell.gates) * case.hidden_size if count else 0
    return count + (case.steps * case.batch if tensor.startswith(("grad weight", "grad bias")) else 0)


def precision_eps(case: Case) -> float:
    """The unit in the last place of one, of products' operands where they are coarser than the dtype."""
    is_coarser = case.precision == "tf32" and case.dtype == "float32"
    return TF32_EPS if is_coarser else torch.finfo(getattr(torch, case.dtype)).eps


def _independent(case: Case, tensor: str) -> Independent:
    """How many of a slice's elements are independent, at least.

    Successive steps are not, which may be of one drifting state; nor what is made of one gate's gradient, but for its rounding.
    """
    gates, inputs = len(cells.get(case.cell).gates) * case.hidden_size, cells.x_width(case)
    if tensor == "grad x":
        return Independent(case.batch * inputs, case.batch * min(inputs, gates))
    if tensor.startswith("grad weight"):
        return Independent(gates * case.hidden_size, min(case.hidden_size, inputs))
    return Independent(*[case.batch * case.hidden_size] * 2)
