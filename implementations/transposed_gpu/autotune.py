"""Chooses the layout and the cuBLAS library of a case by timing its own products when it is built, as EcoRNN does.

Which is faster depends on the shape: W h^T and h W^T are different problems to cuBLAS, and cuBLASLt has other kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.transposed_gpu.buffers import Form
from pytest_ecornn.implementations.transposed_gpu.layer import Plan
from pytest_ecornn.implementations.transposed_gpu.ops import capture
from pytest_ecornn.implementations.transposed_gpu.steps import product

LIBRARIES = ("cublas", "cublaslt")
_PRODUCTS = 16  # in one graph
_REPLAYS = 7


class Choice(NamedTuple):
    """product_us: of one step's products, forward, in training with the backward one."""

    is_batch_minor: bool
    library: str
    product_us: float

    def __str__(self) -> str:
        layout = "batch-minor" if self.is_batch_minor else "row-major"
        return f"{layout}, {self.library}, products of a step {self.product_us:.1f} us"


def autotune(case: Case, device: torch.device, layouts: tuple[bool, ...]) -> Choice:
    """The best of `layouts` (True for batch-minor) and LIBRARIES for the recurrent products of a case."""
    products = Case(
        cell=case.cell, steps=1, batch=case.batch, hidden_size=case.hidden_size, dtype=case.dtype, precision=case.precision,
        mode=case.mode,
    )  # fmt: skip
    return _fastest(products, device, layouts)


@lru_cache(maxsize=256)
def _fastest(case: Case, device: torch.device, layouts: tuple[bool, ...]) -> Choice:
    forms = [Form(case, device, is_batch_minor) for is_batch_minor in layouts]
    found = [Choice(form.is_batch_minor, name, _product_us(Plan(form, name))) for form in forms for name in LIBRARIES]
    return min(found, key=lambda choice: choice.product_us)


def _product_us(plan: Plan) -> float:
    form, case = plan.form, plan.form.case
    weight = _values(form, form.gate_features * form.h_features).view(form.gate_features, form.h_features)
    h, d_gates = (form.view_as_layout(_values(form, n * case.batch), 1, n)[0] for n in (form.h_features, form.gate_features))
    gates, d_h = (form.empty(1, n, form.compute)[0] for n in (form.gate_features, form.h_features))

    def launch() -> None:
        for _ in range(_PRODUCTS):
            product(h, weight.T, gates)
            if case.training:
                product(d_gates, weight, d_h)

    return _best_replay_us(plan, launch) / _PRODUCTS


def _values(form: Form, count: int) -> torch.Tensor:
    """Numbers from -1 to 1 in no order: zeros take less power, and torch's random numbers are the caller's."""
    return torch.arange(count, device=form.device).sin().to(form.storage)


def _best_replay_us(plan: Plan, launch: Callable[[], None]) -> float:
    graph, _ = capture(plan, launch)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
    graph.replay()
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    marks[-1].synchronize()
    return float(min(before.elapsed_time(after) for before, after in pairwise(marks)) * 1e3)
