"""How several layers of persistent_gpu run in a wavefront, each some steps behind the one below it, and when that is chosen.

Layers that run one after the other take L * T steps, and each waits for its input product. In a wavefront they run at once, on
clusters of their own. These multiply the inputs too while they wait for each other's states. So the weights of both products
must fit on chip, and all clusters must run at once. One direction only: the other one takes its steps in the other order.
Source: Appleyard et al., Optimizing Performance of RNNs on GPUs, 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil, gcd

from pytest_ecornn.implementations._common.recurrent_problem import Device, Problem
from pytest_ecornn.implementations.persistent_gpu.config import PART_REGISTERS, SLICE_BYTES, TILE, Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import choose, clusters, queued_us

MOST_LAYERS = 4  # for which the kernel has arguments
_READERS = 3  # load warps, each with a buffer; one more warp signals the layer above
_READER_REGISTERS = 80
# Measured on an H200, in us: of a launch, until its first step and after its last; of a layer's input product, at least; from a
# layer's step to the same step of the layer above. The factor of a step beside a warp that loads and one that signals.
_START_US, _INPUTS_US, _LAG_US, _SLOWED = 6.0, 5.0, 3.0, 1.25
_LEAST_GAIN = 0.9  # of the time of layers on their own, that a wave must stay below


@dataclass(frozen=True)
class Wave(Form):
    """`layers` at once, each spread like the others. inputs: of the first layer; the others' are the states below."""

    layers: int = 2
    inputs: int = 1

    @property
    def input_slices(self) -> int:
        """K tiles of W_ih of a group of warps, in the layer where they are most."""
        widest = max(self.inputs, self.problem.hidden)
        return ceil(widest * self.problem.arithmetic.bytes / (SLICE_BYTES * self.groups))

    @property
    def all_slices(self) -> int:
        return self.slices + self.input_slices

    @property
    def clusters_of_all(self) -> int:
        """Clusters of all layers; `clusters` counts those of one."""
        return self.layers * self.clusters

    @property
    def reader_registers(self) -> int:
        return _READER_REGISTERS

    @property
    def _threads_beside(self) -> int:
        return super()._threads_beside + 32 * (_READERS + 1)

    @property
    def _registers_beside(self) -> int:
        return self.gate_threads * self.gate_registers + 32 * (_READERS + 1) * self.reader_registers

    @property
    def extra_registers(self) -> int:
        """Registers for sums that wait, and to read two arrays of weights: more where vectors are narrow."""
        return PART_REGISTERS * (1 if self.width >= 8 else 5)

    @property
    def may_spill(self) -> int:
        return 1

    @property
    def bytes_beside(self) -> int:
        return super().bytes_beside + _READERS * self.input_slices * self.groups * TILE * SLICE_BYTES

    @property
    def width(self) -> int:
        return gcd(super().width, self.inputs * self.problem.arithmetic.bytes)

    def _one_tile_us(self, found_us: float) -> float:
        """Estimated us between a tile's steps: inputs are multiplied while states are computed and published."""
        of_inputs = self.product_us * self.input_slices / self.all_slices
        return max(self.product_us, super()._one_tile_us(found_us) - of_inputs)

    def all_us(self, steps: int) -> float:
        """Estimated us of `steps` steps of all layers."""
        return _START_US + steps * _SLOWED * self.step_us + (self.layers - 1) * _LAG_US

    @property
    def macros(self) -> dict[str, int]:
        own = {"LAYERS": self.layers, "INPUTS": self.inputs, "LOAD_REGISTERS": self.reader_registers}
        return super().macros | own

    def __str__(self) -> str:
        return f"{self.layers} layers in a wave, inputs too, each in {super().__str__()}"


def alone_us(form: Form, device: Device, steps: int) -> float:
    """Estimated us of a layer on its own, at least."""
    return _INPUTS_US + _START_US + steps * queued_us(form, device)


def choose_wave(problem: Problem, device: Device, inputs: int, layers: int, steps: int) -> Wave | None:
    """The wave of the first of `layers` that saves the most time; None where a layer on its own takes no longer.

    All clusters of a wave run at once. Each has one tile, as the output below is not loaded in time for more. None of its
    weights are streamed. inputs: of the first layer.
    """
    form = choose(problem, device)
    if isinstance(form, str):
        return None
    best, most_us, each_us = None, 0.0, _LEAST_GAIN * alone_us(form, device, steps)
    for some in range(2, min(layers, MOST_LAYERS) + 1):
        for wave in clusters(partial(Wave, problem, layers=some, inputs=inputs), problem, device, most_tiles=1):
            won_us = some * each_us - wave.all_us(steps)
            fits = wave.left_over == 0 and wave.clusters_of_all <= device.clusters(wave.blocks)
            if won_us > most_us and fits:
                best, most_us = wave, won_us
    return best


def waves(problem: Problem, device: Device, inputs: int, layers: int, steps: int) -> list[Wave | None]:
    """Waves of the layers from the first to the last; None: a layer on its own."""
    found: list[Wave | None] = []
    while layers > 0:
        wave = choose_wave(problem, device, inputs, layers, steps)
        found.append(wave)
        layers, inputs = layers - (wave.layers if wave else 1), problem.hidden
    return found
