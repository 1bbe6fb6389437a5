"""How persistent_gpu spreads a layer over the chip: a function of the cell, the sizes, the pass and the device alone.

A cluster of blocks takes some sequences through all steps; each of its blocks owns some hidden units, whose rows of W_hh it
keeps, first in registers, then in shared memory. Clusters know nothing of each other: where there are more than run at once,
they queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import NamedTuple

import torch

from pytest_ecornn import cells
from pytest_ecornn.implementations._nn_cells import NN_CELLS
from pytest_ecornn.implementations.cuda.launch import Launch

HOPPER = (9, 0)  # the compute capability that this is for
GATES = {name: len(cells.get(name).gates) for name in NN_CELLS}
_REGISTERS = 65_536  # of a multiprocessor
_MOST_REGISTERS = 255  # of a thread
# Registers of a thread for all but weights, and what each tile after the first takes as well: by pass (backward or not) and
# rows of a unit; an RNN's thread has four states.
_OWN_REGISTERS = {(False, 1): (100, 52), (False, 4): (56, 16), (True, 1): (144, 40), (True, 4): (88, 24)}
_MOST_WARPS, _MOST_TILES = 12, 4  # of 16 warps none has the registers for two tiles
_BARRIER_BYTES = 128
_GROUP = 17  # multiprocessors that a cluster must lie within: the chip's groups have 16 to 18
# Of a step on an H200, in us: what is always there, of each block and tile that is told, and of 64 rows by 16 columns of
# weights with what a further tile and shared memory add to that. docs/notes/persistent_gpu.md.
_STEP_US, _TOLD_US, _PRODUCT_US, _FURTHER, _SHARED = 0.25, 0.024, 0.0111, 0.12, 0.5


class Device(NamedTuple):
    """processors: multiprocessors. shared_bytes: that a block may have. largest_cluster: in blocks."""

    processors: int
    shared_bytes: int
    largest_cluster: int

    @classmethod
    def of(cls, device: torch.device) -> Device:
        found = torch.cuda.get_device_properties(device)
        shared_bytes = found.shared_memory_per_block_optin  # type: ignore[attr-defined]
        return cls(found.multi_processor_count, shared_bytes, 16 if found.major == 9 else 8)

    def clusters(self, blocks: int) -> int:
        """Of so many blocks, that run at once: an estimate, by which only time is lost."""
        return max(1, self.processors // (_GROUP + 1) * (_GROUP // blocks))


@dataclass(frozen=True)
class Form:
    """`blocks` of a cluster own `units` each; a cluster has 8 * `tiles` sequences; `held` parts of W_hh lie in registers."""

    gates: int
    is_backward: bool
    units: int
    blocks: int
    tiles: int
    clusters: int
    held: int = 0

    @property
    def rows(self) -> int:
        """Of W_hh a unit, among the 16 that a warp multiplies; of GRU's the fourth is empty."""
        return 1 if self.gates == 1 else 4

    @property
    def warps(self) -> int:
        return self.units * self.rows // 16

    @property
    def parts(self) -> int:
        """Of W_hh, that a warp has: 16 rows by 16 columns, backward 16 columns by 32 of the block's rows."""
        if not self.is_backward:
            return self.units * self.blocks // 16
        return ceil(self.units * self.blocks / 16 / self.warps) * ceil(self.gates * self.units / 32)

    @property
    def part_registers(self) -> int:
        """Of a thread."""
        return 8 if self.is_backward else 4

    @property
    def shared_bytes(self) -> int:
        """Of a block: barriers, two buffers of what comes from all blocks, two of its own, weights not in registers."""
        if self.is_backward:
            coming, own = 64 * self.tiles * self.units * self.blocks, 1024 * self.tiles * ceil(self.gates * self.units / 32)
        else:
            coming, own = 32 * self.tiles * self.units * self.blocks, 32 * self.tiles * self.units
        return _BARRIER_BYTES + coming + own + 128 * self.part_registers * self.warps * (self.parts - self.held)

    @property
    def step_us(self) -> float:
        """About how long a step takes, by which forms are compared; backward 4 bytes are told where forward there are 2."""
        told = self.blocks * self.tiles * (2 if self.is_backward else 1)
        parts = (self.parts + _SHARED * (self.parts - self.held)) * self.part_registers / 4
        products_us = _PRODUCT_US * (1 + _FURTHER * (self.tiles - 1)) * parts * self.warps / 4
        return _STEP_US + _TOLD_US * told + products_us

    @cached_property
    def launch(self) -> Launch:
        return Launch(self.clusters * self.blocks, 32 * self.warps, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        return {"UNITS": self.units, "BLOCKS": self.blocks, "TILES": self.tiles, "HELD": self.held}

    def __str__(self) -> str:
        where = "registers" if self.held == self.parts else f"registers ({self.held} of {self.parts} parts) and shared memory"
        return (
            f"clusters: {self.clusters} of {self.blocks} blocks, {8 * self.tiles} sequences each, {self.units} units a block; "
            f"weights in {where}"
        )


def choose(cell: str, hidden: int, batch: int, device: Device, is_backward: bool = False) -> Form | str:
    """The form whose steps take the least, clusters that queue counted; or why there is none."""
    found = list(_forms(GATES[cell], hidden, batch, device, is_backward))
    if not found:
        return (
            f"H {hidden} does not fit: W_hh of {GATES[cell]} x {hidden} x {hidden} elements of 2 bytes must lie in the "
            f"registers and the {device.shared_bytes} bytes of shared memory of each of {device.largest_cluster} blocks"
        )
    return min(found, key=lambda form: ceil(form.clusters / device.clusters(form.blocks)) * form.step_us)


def _forms(gates: int, hidden: int, batch: int, device: Device, is_backward: bool) -> Iterator[Form]:
    rows = 1 if gates == 1 else 4
    step = 64 // rows  # four warps of 16 rows multiply together
    for units in range(step, 16 * _MOST_WARPS // rows + 1, step):
        blocks = ceil(hidden / units)
        for tiles in range(1, _MOST_TILES + 1):
            form = _with_weights(Form(gates, is_backward, units, blocks, tiles, ceil(batch / (8 * tiles))))
            if blocks <= device.largest_cluster and form.held > 0 and form.shared_bytes <= device.shared_bytes:
                yield form


def _with_weights(form: Form) -> Form:
    """As many of them in registers as there is room for."""
    first, further = _OWN_REGISTERS[form.is_backward, form.rows]
    registers = min(_MOST_REGISTERS, _REGISTERS // (32 * form.warps) // 8 * 8)  # which are given out by eights
    return replace(form, held=min(form.parts, (registers - first - further * (form.tiles - 1)) // form.part_registers))
