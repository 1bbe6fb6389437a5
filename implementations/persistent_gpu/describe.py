"""Compiles and describes the kernels of persistent_gpu that a case runs, before its first call."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, compile_layer, is_fused
from pytest_ecornn.implementations.persistent_gpu.single_step import get_single_step_kernel, is_applicable
from pytest_ecornn.implementations.persistent_gpu.wavefront import get_wavefronts_of_layers, kernel_of


def describe(case: Case, device: torch.device) -> str:
    """Compiles the kernels that the case needs; returns which form runs."""
    width = case.directions * case.hidden_size
    forward = KernelSpec.of(case, device)
    inputs = dict.fromkeys([case.input_size, *[width] * (case.layers > 1)])
    shape = Shape(case.cell, case.steps, case.batch, case.hidden_size, case.batch_first)
    if is_applicable(shape, inputs, forward.dtype) and not (case.training or case.projected):
        made = [get_single_step_kernel(case.cell, one, case.hidden_size, case.batch, forward, width) for one in inputs]
        return str(made[0].form)
    found = _forward(case, shape, forward)
    return f"{found}; backward: {compile_layer(shape, forward.backward)[0]}" if case.training else found


def _forward(case: Case, shape: Shape, kind: KernelSpec) -> str:
    found, layer = list[str](), 0
    inputs = None if case.projected else case.input_size
    for wave in get_wavefronts_of_layers(shape, kind, case.directions, inputs, case.layers):
        if wave is not None:
            kernel_of(kind, wave)
        found.append(str(wave or _single_layer(case, shape, kind, layer, inputs)))
        layer += wave.layers if wave else 1
    return ", then ".join(dict.fromkeys(found))


def _single_layer(case: Case, shape: Shape, kind: KernelSpec, layer: int, inputs: int | None) -> str:
    """Describes a layer on its own. inputs: of the first layer."""
    own = case.directions * case.hidden_size if layer else inputs
    if own is None or case.training or not is_fused(case.steps, case.batch, inputs, case.hidden_size):
        return str(compile_layer(shape, kind)[0])
    return f"{compile_layer(shape, kind._replace(inputs=own))[0]}; the input product in the same launch"
