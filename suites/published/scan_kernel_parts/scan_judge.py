"""The judgement on a scan's values of which no case makes the problem: by the harness's rule, from a cheaper yardstick.

The reference is made in two levels of time, on a GPU where there is one, as it is of up to 65,536 steps. The limits come of one
plain loop: somewhat tighter ones than the harness's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Declared, cells
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.system.machine import one_thread
from pytest_ecornn.verification import comparison
from pytest_ecornn.verification.calls import Tensors, run
from pytest_ecornn.verification.comparison import Array, Error, TensorCheck
from pytest_ecornn.verification.layer_rules import layer_rule


def states(x: Tensor, cell: str) -> Tensor:
    """float64 [B, T, H] from pre-activations [B, T, G*H] and an initial state of zeros."""
    keep, new = _gates(x.double(), cell)
    batch, steps, hidden = keep.shape
    length = isqrt(steps - 1) + 1
    late = -steps % length
    keep, new = (pad(terms, (0, 0, 0, late)).view(batch, -1, length, hidden) for terms in (keep, new))
    state, product = torch.zeros_like(new[:, :, 0]), torch.ones_like(new[:, :, 0])
    within, products = [], []
    for keep_t, new_t in zip(keep.unbind(2), new.unbind(2), strict=True):  # [B, chunks, H]
        state, product = keep_t * state + new_t, keep_t * product
        within.append(state)
        products.append(product)
    starts = [torch.zeros_like(state[:, 0])]
    for end, whole in zip(state.unbind(1), product.unbind(1), strict=True):  # [B, H]
        starts.append(whole * starts[-1] + end)
    whole = torch.stack(within, 2) + torch.stack(products, 2) * torch.stack(starts[:-1], 1)[:, :, None]
    return whole.view(batch, -1, hidden)[:, :steps]


def _gates(x: Tensor, cell: str) -> tuple[Tensor, Tensor]:
    """Returns keep and new of h_t = keep h_(t-1) + new, for each step. Source: arXiv 2410.01201."""
    *gates, candidate = x.chunk(len(cells.get(cell).gates), -1)
    opens = gates[0] if len(gates) == 1 else logsigmoid(gates[1]) - logsigmoid(gates[0])
    candidate = cells.positive(candidate) if cell.endswith("_positive") else candidate
    return torch.sigmoid(-opens), torch.sigmoid(opens) * candidate


def sample_channels(hidden: int, count: int, device: torch.device) -> Tensor:
    """int64 [count], or all of fewer channels: evenly spaced ones, with the first and the last."""
    return torch.linspace(0, hidden - 1, min(count, hidden), device=device).long()


def sampled(x: Tensor, channels: Tensor, hidden: int) -> Tensor:
    """Selects the same channels of every block of [B, T, blocks*H], as for a scan of fewer channels: they are independent."""
    blocks = range(0, x.shape[-1], hidden)
    return x[..., torch.cat([channels + start for start in blocks])]


class LongScanVerifier:
    """Judges output, final state and in training the gradient of x. where: the device that computes the reference.

    Raises ValueError for a problem that is not of one projected layer, batch first, without lengths and initial state.
    """

    def __init__(self, problem: Problem, where: str, declared: Declared):
        case = problem.case
        is_plain = case.layers == 1 and not (case.bidirectional or case.ragged or case.has_state)
        if not (is_plain and case.projected and case.batch_first):
            raise ValueError(f"expected one projected layer, batch first, without lengths and initial state, got {case}")
        self._problem, self._where, self._declared = problem, where, declared

    @cached_property
    def _wanted(self) -> dict[str, Array]:
        case = self._problem.case
        x = self._problem.x.detach().to(self._where, torch.float64).requires_grad_(case.training)
        with torch.set_grad_enabled(case.training):
            output = states(x, case.cell)
            wanted = {"output": output, "final h": output[None, :, -1]}
            if case.training:
                gradients = [weight.to(self._where, torch.float64) for weight in self._problem.output_gradients]
                (wanted["grad x"],) = torch.autograd.grad(list(wanted.values()), x, gradients)
        return {name: tensor.detach() for name, tensor in wanted.items()}

    @cached_property
    def _yardstick(self) -> dict[str, dict[str, Error]]:
        with one_thread():  # torch wakes all its threads for each logarithm of a sigmoid, however small
            plain = run(ReferenceLoop(self._declared).build(self._problem.case, self._problem.weights), self._problem)
        return {name: self._errors(name, plain) for name in self._wanted}

    def _errors(self, name: str, tensors: Tensors) -> dict[str, Error]:
        wanted, tensor = self._wanted[name], tensors[name]
        assert tensor is not None
        where = layer_rule(self._problem.case, name, wanted.shape).slices
        return comparison.errors(comparison.to_float64(tensor, wanted.device), wanted, where, None, 0.0)

    def compare(self, tensors: Tensors, device: str) -> list[TensorCheck]:
        """The verdict on each tensor, which must be on `device`."""
        case = replace(self._problem.case, device=device)
        return [
            comparison.check_tensor(layer_rule(case, name, wanted.shape), tensors.get(name), wanted, self._yardstick[name])
            for name, wanted in self._wanted.items()
        ]

    def largest_error(self, tensors: Tensors) -> float:
        """Returns the largest error of all tensors, relative to each one's largest element: no verdict, no plain loop."""
        return max(self._errors(name, tensors)[""].maximum for name in self._wanted)
