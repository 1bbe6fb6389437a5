"""The kernels of persistent_gpu that a plan's calls launch, before the first one: their code, and their forms in words."""

from __future__ import annotations

from pytest_ecornn.implementations._cuda import bias_gradients, padded_rows, parameter_gradients
from pytest_ecornn.implementations._cuda.compile import KernelCode, has_clusters
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.input_gemm.gemm_3xtf32 import InputGemm3xTF32
from pytest_ecornn.implementations.persistent_gpu.plan import ExecutionPlan
from pytest_ecornn.implementations.persistent_gpu.single_step import (
    SingleStepBackwardConfig,
    get_single_step_kernel,
    make_backward_kernel,
)
from pytest_ecornn.implementations.persistent_gpu.wavefront import kernel_of


def describe(plan: ExecutionPlan) -> str:
    """Describes the forms of the recurrent kernels."""
    forward = ", then ".join(dict.fromkeys(form for form, _ in _forward_launches(plan)))
    if not plan.spec.saves_for_backward:
        return forward
    if plan.is_single_step_backward:
        return f"{forward}; backward: one step alone"
    return f"{forward}; backward: {kernel.compile_layer(plan.shape.layer_shape, plan.spec.backward)[0]}"


def kernel_codes(plan: ExecutionPlan) -> list[KernelCode]:
    """What the kernels are compiled from, those of the backward pass that follows too."""
    forward = [made for _, made in _forward_launches(plan)]
    return [made.code for made in dict.fromkeys([*forward, *_input_gemms(plan), *_backward_kernels(plan)])]


def _forward_launches(plan: ExecutionPlan) -> list[tuple[str, Kernel]]:
    """The form, in words, and the recurrent kernel of each layer on its own and each wave of layers."""
    shape, spec, layer = plan.shape, plan.spec, 0
    launches: list[tuple[str, Kernel]] = []
    for wave in plan.wavefronts:
        width = shape.output[2] if layer else shape.input_width
        if wave is not None:
            launches.append((str(wave), kernel_of(spec, wave)))
        elif width is not None and plan.is_single_step:
            once = get_single_step_kernel(shape.options.cell, width, shape.hidden, shape.batch, spec, shape.output[2])
            launches.append((str(once.form), once.kernel))
        else:
            inputs = width if width is not None and plan.is_fused else 0
            form, made = kernel.compile_layer(shape.layer_shape, spec._replace(inputs=inputs))
            launches.append((f"{form}{'; the input product in the same launch' * (inputs > 0)}", made))
        layer += wave.layers if wave else 1
    return launches


def _input_gemms(plan: ExecutionPlan) -> list[Kernel]:
    """Those of the layers on their own."""
    if plan.fuses_input_gemm or None not in plan.wavefronts:
        return []
    return [gemm.kernel for gemm in map(plan.input_gemm, _input_widths(plan)) if isinstance(gemm, InputGemm3xTF32)]


def _backward_kernels(plan: ExecutionPlan) -> list[Kernel]:
    """The recurrent one, and those that some T and B launch for the gradients of weights."""
    shape, spec = plan.shape, plan.spec
    if not spec.saves_for_backward:
        return []
    padded = padded_rows.make_kernel(spec.dtype, spec.device)
    if plan.is_single_step_backward:
        form = SingleStepBackwardConfig(shape.options.cell, shape.hidden, shape.batch)
        return [make_backward_kernel(form, spec.backward), padded]
    kernels = [kernel.compile_layer(shape.layer_shape, spec.backward)[1], padded]
    if not has_clusters(spec.device):
        return kernels
    apart = (shape.hidden,) if shape.options.cell == "gru" else ()  # whose recurrent product has a gradient of its own
    values = bias_gradients.values_of(spec.dtype, shape.gate_width, *apart)
    kernels.append(bias_gradients.make_kernel(values, spec.dtype, spec.device))
    layers = shape.pseudo_layers // shape.directions
    for width in _input_widths(plan):
        values = bias_gradients.values_of(spec.dtype, shape.gate_width, shape.hidden, width)
        for count in {1, parameter_gradients.kernel_layers(layers)}:  # of one launch
            kernels.append(parameter_gradients.make_kernel(values, spec.dtype, spec.device, count))
    return kernels


def _input_widths(plan: ExecutionPlan) -> list[int]:
    """The widths of the inputs that layers multiply."""
    shape = plan.shape
    inner = shape.output[2] if shape.pseudo_layers > shape.directions else None
    return [*dict.fromkeys(width for width in (shape.input_width, inner) if width is not None)]
