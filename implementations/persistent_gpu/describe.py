"""Compiles and describes the kernels of persistent_gpu that a case runs, before its first call."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.persistent_gpu.kernel import Kind, Shape, is_fused, plan
from pytest_ecornn.implementations.persistent_gpu.single_step import is_taken, once_of
from pytest_ecornn.implementations.persistent_gpu.wavefront import kernel_of, waves_of


def describe(case: Case, device: torch.device) -> str:
    """Compiles the kernels that the case needs; returns which form runs."""
    width = case.directions * case.hidden_size
    forward = Kind(getattr(torch, case.dtype), device, case.precision == "tf32", keeps=case.training, lengths=case.ragged)
    if is_taken(case.steps, case.batch) and not (case.training or case.projected):
        inputs = dict.fromkeys([case.input_size, *[width] * (case.layers > 1)])
        made = [once_of(case.cell, one, case.hidden_size, case.batch, forward, width) for one in inputs]
        return str(made[0].form)
    shape = Shape(case.cell, case.steps, case.batch, case.hidden_size, case.batch_first)
    found = _forward(case, shape, forward)
    return f"{found}; backward: {plan(shape, forward.backward)[0]}" if case.training else found


def _forward(case: Case, shape: Shape, kind: Kind) -> str:
    found, layer = list[str](), 0
    inputs = None if case.projected else case.input_size
    for wave in waves_of(shape, kind, case.directions, inputs, case.layers):
        if wave is not None:
            kernel_of(kind, wave)
        found.append(str(wave or _alone(case, shape, kind, layer, inputs)))
        layer += wave.layers if wave else 1
    return ", then ".join(dict.fromkeys(found))


def _alone(case: Case, shape: Shape, kind: Kind, layer: int, inputs: int | None) -> str:
    """Describes a layer on its own. inputs: of the first layer."""
    own = case.directions * case.hidden_size if layer else inputs
    if own is None or case.training or not is_fused(case.steps, case.batch, inputs, case.hidden_size):
        return str(plan(shape, kind)[0])
    return f"{plan(shape, kind._replace(inputs=own))[0]}; the input product in the same launch"
