"""Which of persistent_gpu's kernels a case runs, compiled before its first call."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._persistent_kernel import Kind, Shape, plan
from pytest_ecornn.implementations._persistent_once import is_taken, once_of


def describe(case: Case, device: torch.device) -> str:
    """Compiles what the case needs; says which form runs."""
    width = case.directions * case.hidden_size
    forward = Kind(getattr(torch, case.dtype), device, case.precision == "tf32", keeps=case.training, lengths=case.ragged)
    if is_taken(case.steps, case.batch) and not (case.training or case.projected):
        inputs = dict.fromkeys([case.input_size, *[width] * (case.layers > 1)])
        made = [once_of(case.cell, one, case.hidden_size, case.batch, forward, width) for one in inputs]
        return str(made[0].form)
    shape = Shape(case.cell, case.steps, case.batch, case.hidden_size, case.batch_first)
    kinds = [forward, forward.backward] if case.training else [forward]
    return "; backward: ".join(str(plan(shape, kind)[0]) for kind in kinds)
