"""How several layers of persistent_gpu run in a wavefront, each some steps behind the one below it.

Layers that run one after the other take L * T steps, and each waits for its input product. In a wavefront they run at once, on
clusters of their own. These multiply the inputs too while they wait for each other's states. So the weights of both products
must fit on chip, and all clusters must run at once. One direction only: the other one takes its steps in the other order.
Source: Appleyard et al., Optimizing Performance of RNNs on GPUs, 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from pytest_ecornn.implementations._common.sizes import ceil_div, maximum
from pytest_ecornn.implementations.persistent_gpu.config import FRAGMENT_REGISTERS, K_TILE_BYTES, TILE, Form

MAX_LAYERS = 4  # for which the kernel has arguments
LAUNCH_US = 6.0  # a launch, until its first step and after its last
_LOAD_WARPS = 3  # load warps, each with a buffer; one more warp signals the layer above
_LOAD_REGISTERS = 80
_LAYER_LAG_US = 3.0  # from a layer's step to the same step of the layer above
_STEP_SLOWDOWN = 1.25  # the factor of a step beside load warps and a warp that signals


@dataclass(frozen=True)
class WavefrontConfig(Form):
    """`layers` at once, each spread like the others. inputs: of the first layer; the others' are the states below."""

    layers: int = 2
    inputs: int = 1

    @cached_property
    def input_slices(self) -> int:
        """K tiles of W_ih of a group of warps, in the layer where they are most."""
        widest = max(self.inputs, self.problem.hidden)
        return ceil_div(widest * self.problem.arithmetic.bytes, K_TILE_BYTES * self.k_partitions)

    @cached_property
    def all_slices(self) -> int:
        return self.k_tiles_per_warp + self.input_slices

    @property
    def total_clusters(self) -> int:
        """Clusters of all layers; `clusters` counts those of one."""
        return self.layers * self.clusters

    @property
    def load_registers(self) -> int:
        return _LOAD_REGISTERS

    @property
    def _non_mma_threads(self) -> int:
        return super()._non_mma_threads + 32 * (_LOAD_WARPS + 1)

    @property
    def _registers_beside(self) -> int:
        return self.pointwise_threads * self.pointwise_registers + 32 * (_LOAD_WARPS + 1) * self.load_registers

    @property
    def extra_registers(self) -> int:
        """Registers for sums that wait, and to read two arrays of weights: more where vectors are narrow."""
        return FRAGMENT_REGISTERS * (1 if self.width >= 8 else 5)

    @property
    def allowed_spilled_fragments(self) -> int:
        return 1

    @cached_property
    def non_weight_smem_bytes(self) -> int:
        return super().non_weight_smem_bytes + _LOAD_WARPS * self.input_slices * self.k_partitions * TILE * K_TILE_BYTES

    @property
    def width(self) -> int:
        return gcd(super().width, self.inputs * self.problem.arithmetic.bytes)

    @property
    def macros(self) -> dict[str, int]:
        own = {"LAYERS": self.layers, "INPUTS": self.inputs, "LOAD_REGISTERS": self.load_registers}
        return super().macros | own

    def __str__(self) -> str:
        return f"{self.layers} layers in a wave, inputs too, each in {super().__str__()}"

    def _one_tile_us(self, states_us: float) -> float:
        """Estimated us between a tile's steps: inputs are multiplied while states are computed and published."""
        of_inputs = self.product_us * self.input_slices / self.all_slices
        return maximum(self.product_us, super()._one_tile_us(states_us) - of_inputs)

    def all_us(self, steps: int) -> float:
        """Estimated us of `steps` steps of all layers."""
        return LAUNCH_US + steps * _STEP_SLOWDOWN * self.step_us + (self.layers - 1) * _LAYER_LAG_US
