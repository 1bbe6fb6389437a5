"""The kernels of persistent_gpu that a call launches, before the first one: their code, and their forms in words."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._cuda import bias_gradients, padded_rows, parameter_gradients
from pytest_ecornn.implementations._cuda.compile import KernelCode, has_clusters
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.input_gemm.gemm_3xtf32 import InputGemm3xTF32
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, is_fused
from pytest_ecornn.implementations.persistent_gpu.plan import ExecutionPlan
from pytest_ecornn.implementations.persistent_gpu.single_step import get_single_step_kernel, is_applicable
from pytest_ecornn.implementations.persistent_gpu.wavefront import get_wavefronts_of_layers, kernel_of


def kernel_codes(plan: ExecutionPlan) -> list[KernelCode]:
    """What the kernels of a plan's calls are compiled from, those of the backward pass that follows too."""
    return [made.code for made in dict.fromkeys([*_forward_kernels(plan), *_backward_kernels(plan)])]


def _forward_kernels(plan: ExecutionPlan) -> list[Kernel]:
    shape, spec, cell, widths = plan.stack, plan.kind, plan.stack.how.cell, _input_widths(plan)
    if plan.is_single_step:
        sizes = shape.hidden, shape.batch, spec, shape.output[2]
        return [get_single_step_kernel(cell, width, *sizes).kernel for width in widths]
    specs = [spec._replace(inputs=width) for width in widths] if plan.is_fused else [spec]
    kernels = [kernel_of(spec, wave) for wave in plan.wavefronts if wave is not None]
    if None in plan.wavefronts:
        kernels += [kernel.compile_layer(shape.shape, of_layer)[1] for of_layer in specs]
        gemms = [] if plan.is_fused else map(plan.input_gemm, widths)
        kernels += [gemm.kernel for gemm in gemms if isinstance(gemm, InputGemm3xTF32)]
    return kernels


def _backward_kernels(plan: ExecutionPlan) -> list[Kernel]:
    """The recurrent one, and those that some T and B launch for the gradients of weights."""
    shape, spec = plan.stack, plan.kind
    if not spec.saves_for_backward:
        return []
    kernels = [kernel.compile_layer(shape.shape, spec.backward)[1], padded_rows.make_kernel(spec.dtype, spec.device)]
    if not has_clusters(spec.device):
        return kernels
    apart = (shape.hidden,) if shape.how.cell == "gru" else ()  # whose recurrent product has a gradient of its own
    values = bias_gradients.values_of(spec.dtype, shape.wide, *apart)
    kernels.append(bias_gradients.make_kernel(values, spec.dtype, spec.device))
    for width in _input_widths(plan):
        values = bias_gradients.values_of(spec.dtype, shape.wide, shape.hidden, width)
        kernels.append(parameter_gradients.make_kernel(values, spec.dtype, spec.device))
    return kernels


def _input_widths(plan: ExecutionPlan) -> list[int]:
    """The widths of the inputs that layers multiply."""
    shape = plan.stack
    inner = shape.output[2] if shape.pseudo_layers > shape.directions else None
    return [*dict.fromkeys(width for width in (shape.input_width, inner) if width is not None)]


def describe(case: Case, device: torch.device) -> str:
    """Describes the forms of the kernels that run the case."""
    width = case.directions * case.hidden_size
    forward = KernelSpec.of(case, device)
    inputs = dict.fromkeys([case.input_size, *[width] * (case.layers > 1)])
    shape = Shape(case.cell, case.steps, case.batch, case.hidden_size, case.batch_first)
    if is_applicable(shape, inputs, forward.dtype) and not (case.training or case.projected or case.ragged):
        made = [get_single_step_kernel(case.cell, one, case.hidden_size, case.batch, forward, width) for one in inputs]
        return str(made[0].form)
    found = _forward(case, shape, forward)
    return f"{found}; backward: {kernel.compile_layer(shape, forward.backward)[0]}" if case.training else found


def _forward(case: Case, shape: Shape, kind: KernelSpec) -> str:
    found, layer = list[str](), 0
    inputs = None if case.projected else case.input_size
    for wave in get_wavefronts_of_layers(shape, kind, case.directions, inputs, case.layers):
        found.append(str(wave or _single_layer(case, shape, kind, layer, inputs)))
        layer += wave.layers if wave else 1
    return ", then ".join(dict.fromkeys(found))


def _single_layer(case: Case, shape: Shape, kind: KernelSpec, layer: int, inputs: int | None) -> str:
    """Describes a layer on its own. inputs: of the first layer."""
    own = case.directions * case.hidden_size if layer else inputs
    if own is None or case.training or not is_fused(case.steps, case.batch, inputs, case.hidden_size):
        return str(kernel.compile_layer(shape, kind)[0])
    return f"{kernel.compile_layer(shape, kind._replace(inputs=own))[0]}; the input product in the same launch"
