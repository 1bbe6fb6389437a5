"""persistent_gpu's kernel of several layers in a wavefront: its arguments, its launches, and the layers that it runs.

Those run in a wavefront that save the most time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from pytest_ecornn.implementations._common.recurrent_problem import Device, ProblemSize
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.config import Candidates, Form
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import LAUNCH_US, MAX_LAYERS, WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import (
    alike_problem,
    clusters,
    estimated_us_with_queueing,
    select_config,
)
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, Strides, status_of

_SOURCE = Path(__file__).parent / "kernels" / "wavefront_forward.cu"
_OF_LAYER = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "output", "saved_gates", "saved_cells")
_LEADING_ARGUMENTS = ("x", "x_step", "x_sequence")
_TRAILING_ARGUMENTS = (
    "h0", "c0", "output_step", "output_sequence", "h_n", "c_n", "lengths", "row_step", "row_sequence", "step_flags", "status",
    "steps", "batch",
)  # fmt: skip
_INPUT_GEMM_US = 5.0  # a layer's input product, at least
_MAX_TIME_SHARE = 0.9  # of the time of layers on their own, that a wave must stay below


def single_layer_us(form: Form, device: Device, steps: int) -> float:
    """Estimated us of a layer on its own, at least."""
    return _INPUT_GEMM_US + LAUNCH_US + steps * estimated_us_with_queueing(form, device)


def select_wavefront(problem: ProblemSize, device: Device, inputs: int, layers: int, steps: int) -> WavefrontConfig | None:
    """The wave of the first of `layers` that saves the most time; None where a layer on its own takes no longer.

    All clusters of a wave run at once. Each has one tile, as the output below is not loaded in time for more. None of its
    weights are streamed. inputs: of the first layer.
    """
    form = select_config(problem, device)
    if isinstance(form, str):
        return None
    best, most_us, each_us = None, 0.0, _MAX_TIME_SHARE * single_layer_us(form, device, steps)
    for count in range(2, min(layers, MAX_LAYERS) + 1):
        for waves in _waves(alike_problem(problem, device), device, inputs, count):
            won_us = np.where(waves.fits, count * each_us - waves.forms.all_us(steps), 0.0)
            if won_us.max() > most_us:
                best, most_us = partial(waves.at, int(won_us.argmax())), won_us.max()
    return None if best is None else replace(best(), problem=problem)


@lru_cache(maxsize=4096)
def _waves(problem: ProblemSize, device: Device, inputs: int, layers: int) -> list[Candidates[WavefrontConfig]]:
    """Waves of so many layers, whatever T, that run at once."""
    every = clusters(partial(WavefrontConfig, problem, layers=layers, inputs=inputs), problem, device, most_tiles=1)
    return [
        Candidates(
            waves.forms,
            waves.fits
            & (waves.forms.streamed_fragments == 0)
            & (waves.forms.total_clusters <= device.clusters(waves.forms.blocks)),
        )
        for waves in every
    ]


def select_wavefronts(
    problem: ProblemSize, device: Device, inputs: int, layers: int, steps: int
) -> list[WavefrontConfig | None]:
    """Waves of the layers from the first to the last; None: a layer on its own."""
    waves: list[WavefrontConfig | None] = []
    while layers > 0:
        wave = select_wavefront(problem, device, inputs, layers, steps)
        waves.append(wave)
        layers, inputs = layers - (wave.layers if wave else 1), problem.hidden
    return waves


@lru_cache(maxsize=4096)
def get_wavefronts(shape: Shape, spec: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
    """Waves of layers in one direction, from the first to the last; None: a layer on its own. Raises as `check` does."""
    kernel.check(shape, spec)
    problem = spec.problem(shape.cell, shape.hidden, shape.batch)
    return select_wavefronts(problem, Device.of(spec.device), inputs, layers, shape.steps)


def get_wavefronts_of_layers(
    shape: Shape, spec: KernelSpec, directions: int, inputs: int | None, layers: int
) -> list[WavefrontConfig | None]:
    """Waves of all layers; None: a layer on its own. inputs: of the first layer, None where their product is given."""
    if directions > 1 or layers < 2:
        return [None] * layers
    if inputs is None:
        return [None, *get_wavefronts(shape, spec, shape.hidden, layers - 1)]
    return get_wavefronts(shape, spec, inputs, layers)


@lru_cache(maxsize=4096)
def kernel_of(spec: KernelSpec, wave: WavefrontConfig) -> Kernel:
    arguments, macros = kernel.params(_fields(wave)), kernel.macros(spec, wave)
    return Kernel(
        _SOURCE, "persistent_wave", macros, arguments, spec.device, wave.shared_bytes, cluster=wave.blocks, is_lazy=True
    )


def _fields(wave: WavefrontConfig) -> list[str]:
    """The fields of the kernel's Params, in their order."""
    return [
        *_LEADING_ARGUMENTS,
        *(f"{name}_{layer}" for layer in range(wave.layers) for name in _OF_LAYER),
        *_TRAILING_ARGUMENTS,
    ]


class WavefrontKernel:
    """Launches the kernel; a call passes the addresses of its arrays. x, weights and outputs have no gaps.

    width: bytes to which `aligned` aligns x and the weights. zeroed_bytes: of memory that a launch needs zeroed.
    """

    def __init__(self, shape: Shape, spec: KernelSpec, wave: WavefrontConfig, x: Strides, output: Strides):
        """Raises where the backward pass that follows would."""
        if spec.saves_for_backward:
            kernel.compile_layer(shape, spec.backward)
        self._status, self.width, self.zeroed_bytes = status_of(spec.device), wave.width, 4 * wave.launch.grid
        integers = {"status": self._status.address, "steps": shape.steps, "batch": shape.batch, **shape.row_strides}
        integers |= dict(zip(("x_step", "x_sequence", "output_step", "output_sequence"), (*x, *output), strict=True))
        addresses = [name for name in _fields(wave) if name not in integers]
        self._run = kernel_of(spec, wave).at(wave.launch, addresses, **integers)

    def __call__(self, addresses: tuple[int, ...]) -> None:
        """Launches the kernel. addresses: of its arrays and of zeroed bytes, in its order, 0 for none."""
        self._status.check()
        self._run(addresses)


get_wavefront_kernel = lru_cache(maxsize=4096)(WavefrontKernel)


def clear_cache() -> None:
    """Clears the caches of kernels and launches, of layers on their own too, so that other builds are used from now on."""
    kernel.clear_cache()
    get_wavefront_kernel.cache_clear()
    kernel_of.cache_clear()
