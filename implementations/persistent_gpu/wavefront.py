"""persistent_gpu's kernel of several layers in a wavefront: its arguments, its launches, and the layers that it runs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.memory import zeros
from pytest_ecornn.implementations.persistent_gpu import heuristics_wavefront, kernel
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, Strides, status_of

_SOURCE = Path(__file__).parent / "kernels" / "wavefront_forward.cu"
_OF_LAYER = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "output", "saved_gates", "saved_cells")
_LEADING_ARGUMENTS = ("x", "x_step", "x_sequence")
_TRAILING_ARGUMENTS = (
    "h0", "c0", "output_step", "output_sequence", "h_n", "c_n", "lengths", "row_step", "row_sequence", "step_flags", "status",
    "steps", "batch",
)  # fmt: skip


@lru_cache(maxsize=4096)
def get_wavefronts(shape: Shape, kind: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
    """Waves of layers in one direction, from the first to the last; None: a layer on its own. Raises as `check` does."""
    kernel.check(shape, kind)
    problem = kind.problem(shape.cell, shape.hidden, shape.batch)
    return heuristics_wavefront.select_wavefronts(problem, Device.of(kind.device), inputs, layers, shape.steps)


def get_wavefronts_of_layers(
    shape: Shape, kind: KernelSpec, directions: int, inputs: int | None, layers: int
) -> list[WavefrontConfig | None]:
    """Waves of all layers; None: a layer on its own. inputs: of the first layer, None where their product is given."""
    if directions > 1 or layers < 2:
        return [None] * layers
    if inputs is None:
        return [None, *get_wavefronts(shape, kind, shape.hidden, layers - 1)]
    return get_wavefronts(shape, kind, inputs, layers)


@lru_cache(maxsize=4096)
def kernel_of(kind: KernelSpec, wave: WavefrontConfig) -> Kernel:
    arguments, macros = kernel.params(_fields(wave)), kernel.macros(kind, wave)
    return Kernel(_SOURCE, "persistent_wave", macros, arguments, kind.device, wave.shared_bytes, cluster=wave.blocks)


def _fields(wave: WavefrontConfig) -> list[str]:
    """The fields of the kernel's Params, in their order."""
    return [
        *_LEADING_ARGUMENTS,
        *(f"{name}_{layer}" for layer in range(wave.layers) for name in _OF_LAYER),
        *_TRAILING_ARGUMENTS,
    ]


class WavefrontKernel:
    """Launches the kernel; a call passes the addresses of its arrays. x, weights and outputs have no gaps.

    width: bytes to which `aligned` aligns x and the weights.
    """

    def __init__(self, shape: Shape, kind: KernelSpec, wave: WavefrontConfig, x: Strides, output: Strides):
        """Raises where the backward pass that follows would."""
        if kind.saves_for_backward:
            kernel.compile_layer(shape, kind.backward)
        self._wave, self._device, self._status, self.width = wave, kind.device, status_of(kind.device), wave.width
        integers = {"status": self._status.address, "steps": shape.steps, "batch": shape.batch, **shape.row_strides}
        integers |= dict(zip(("x_step", "x_sequence", "output_step", "output_sequence"), (*x, *output), strict=True))
        addresses = [name for name in _fields(wave) if name not in integers]
        self._run = kernel_of(kind, wave).at(wave.launch, addresses, **integers)

    def __call__(self, addresses: tuple[int, ...]) -> None:
        """Launches the kernel. addresses: of its arrays but the last, in its order, 0 for none."""
        self._status.check()
        step_flags = zeros(4 * self._wave.launch.grid, self._device)
        self._run((*addresses, step_flags.data_ptr()))


wave_launch_of = lru_cache(maxsize=4096)(WavefrontKernel)


def clear_cache() -> None:
    """Clears the caches of kernels and launches, of layers on their own too, so that other builds are used from now on."""
    kernel.clear_cache()
    wave_launch_of.cache_clear()
    kernel_of.cache_clear()
