"""A fast check of many calls' results: by a plain loop that runs the problems of several calls as one batch.

Calls of a group have the same weights, so their sequences may stand side by side. A weight's gradient is the sum over the batch
then: each call's loss has a random sign, and the sum of the gradients with these signs is what is compared. The check only
raises doubts: each element may be off by as much as the yardstick's limit and more; what exceeds that is judged by all rules.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Case, Declared, Weights
from pytest_ecornn.contract.cells import x_width
from pytest_ecornn.contract.weight_rounding import round_weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification import comparison, yardstick
from pytest_ecornn.verification.calls import Tensors, run
from pytest_ecornn.verification.comparison import Error
from pytest_ecornn.verification.layer_rules import layer_rule
from pytest_ecornn.verification.verification import expected

MOST_DOUBTS = 3  # calls that are judged by all rules: the worst
_SLACK = 2.0  # times the limits of the largest error and the yardstick's own: the loop here errs as well
_LARGEST_SUM = 0.5  # of a weight's gradient, by which a sum may be off before its calls are looked at one by one
_GROUP, _TRAINED_GROUP = 96, 16
_GROUP_ELEMENTS = {"cpu": 2**24, "cuda": 2**26}  # of x and of gates; on a GPU a step takes a launch, whatever its size

_VANISHED = comparison.VANISHED * torch.finfo(torch.float32).smallest_normal

Made = tuple[Callable[[], Problem], Tensors]  # what makes the problem, and its results


def shares(made: Sequence[Made], declared: Declared) -> list[float]:
    """Returns each problem's largest error over what raises a doubt; inf for a result of another kind."""
    if not made:
        return []
    case = made[0][0]().case
    limits = _limits(case, declared)
    size = group_size(case)
    groups = [made[start : start + size] for start in range(0, len(made), size)]
    return [share for group in groups for share in _group_shares(group, limits, declared)]


def group_size(case: Case) -> int:
    """How many calls run as one batch."""
    width = x_width(case) + 4 * case.directions * case.hidden_size
    elements = case.steps * case.batch * width * case.layers
    most = _GROUP_ELEMENTS[case.device.partition(":")[0]]
    return max(1, min(_TRAINED_GROUP if case.training else _GROUP, most // elements))


def _limits(case: Case, declared: Declared) -> Mapping[str, float]:
    """Returns each tensor's largest error that raises no doubt, relative to its largest element."""
    own = expected(case).rounded(declared.weight_rounding)
    yards = own.baseline_errors(declared, yardstick.run_counts(own.tensors["output"].numel())[0])
    limits = {}
    for name, reference in own.tensors.items():
        yard = yards[name].get("", comparison.NO_ERROR)
        rule = layer_rule(case, name, reference.shape)
        allowed = comparison.limits(rule, yard, Error(0.0, 0.0, reference.numel())).maximum
        limits[name] = _SLACK * (allowed + yard.maximum)
    return limits


def _group_shares(group: Sequence[Made], limits: Mapping[str, float], declared: Declared) -> list[float]:
    signs = [1.0 - 2.0 * secrets.randbelow(2) for _ in group]
    joined = _joined([problem() for problem, _ in group], signs)
    joined = replace(joined, weights=round_weights(joined.weights, declared.weight_rounding))
    wanted = run(ReferenceLoop().build(joined.case, joined.weights), joined)
    max_share = [0.0] * len(group)
    is_doubtful = False
    for name, tensor in wanted.items():
        assert tensor is not None
        results = [tensors.get(name) for _, tensors in group]
        if name.removeprefix("grad ") in joined.weights:
            is_doubtful |= _sum_share(results, tensor, signs, limits[name]) > 1
            continue
        batch_axis = int(not joined.case.batch_first) if name in ("output", "grad x") else 1
        parts = tensor.chunk(len(group), batch_axis)
        for position, (one, part) in enumerate(zip(results, parts, strict=True)):
            sign = signs[position] if name.startswith("grad") else 1.0
            max_share[position] = max(max_share[position], _share(one, part * sign, limits[name]))
    if is_doubtful and len(group) > 1:
        return [max(max_share[k], *_group_shares([one], limits, declared)) for k, one in enumerate(group)]
    return [math.inf] * len(group) if is_doubtful else max_share


def _share(given: Tensor | None, wanted: Tensor, limit: float) -> float:
    """The largest error over its limit, relative to the largest element."""
    if given is None:
        return math.inf if wanted.any() else 0.0
    if given.shape != wanted.shape or given.device != wanted.device:
        return math.inf
    values = given.detach().to(wanted.dtype)
    wrong, size = (values - wanted).abs_(), wanted.abs()
    largest_error, largest = wrong.amax().item(), size.amax().item()
    if not (largest_error < math.inf and largest < math.inf):  # an infinity or NaN must stand where the loop has it
        same = (values == wanted) | (values.isnan() & wanted.isnan())
        largest_error = wrong.masked_fill_(same, 0.0).nan_to_num_(nan=math.inf).amax().item()
        largest = size.masked_fill_(~wanted.isfinite(), 0.0).amax().item()
    return largest_error / (limit * largest) if largest > _VANISHED else 0.0


def _sum_share(given: Sequence[Tensor | None], wanted: Tensor, signs: Sequence[float], limit: float) -> float:
    """Returns the error of the sum of one weight's gradients, over its limit.

    Errors of equal size in all of them would add up as a random walk does.
    """
    total, largest = torch.zeros_like(wanted), 0.0
    for one, sign in zip(given, signs, strict=True):
        if one is None:  # autograd's zero
            continue
        if one.shape != wanted.shape or one.device != wanted.device:
            return math.inf
        total.add_(one.to(wanted.dtype), alpha=sign)
        largest = max(largest, one.abs().amax().item())
    allowed = min(_LARGEST_SUM, limit * len(given) ** 0.5) * max(largest, _VANISHED)
    wrong = (total - wanted).abs_().nan_to_num_(nan=math.inf).amax().item()
    return wrong / allowed if wanted.abs().amax().item() > _VANISHED else 0.0


def _joined(problems: Sequence[Problem], signs: Sequence[float]) -> Problem:
    """One problem whose sequences are those of all, in float32 or wider, the loss weights with signs."""
    first = problems[0]
    dtype = "float64" if first.case.dtype == "float64" else "float32"
    case = replace(first.case, dtype=dtype, precision="ieee", batch=len(problems) * first.case.batch)
    kind, sequences = contents.torch_dtype(case), int(not case.batch_first)

    def join(tensors: Sequence[Tensor], axis: int = 1) -> Tensor:
        return torch.cat([tensor.to(kind) for tensor in tensors], axis)

    def masks(name: str, axis: int) -> Tensor | None:
        given = [getattr(problem, name) for problem in problems]
        return None if given[0] is None else torch.cat(given, axis)

    losses = [tuple(w * sign for w in one.output_gradients) for one, sign in zip(problems, signs, strict=True)]
    weights = {name: nn.Parameter(p.detach().to(kind), p.requires_grad) for name, p in first.weights.items()}
    return Problem(
        case,
        Weights(weights, first.weights.masks),
        join([one.x for one in problems], sequences),
        tuple(join(states) for states in zip(*(one.state for one in problems), strict=True)),
        masks("lengths", 0),
        masks("resets", sequences),
        tuple(join(found, 1 if k else sequences) for k, found in enumerate(zip(*losses, strict=True))),
    )
