"""How persistent_gpu spreads a layer over the chip: a function of the cell, the sizes and the device alone.

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

from pytest_ecornn.implementations.cuda.launch import Launch

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "lstm": 4, "gru": 3}
_REGISTERS = 65_536  # of a multiprocessor
_MOST_REGISTERS = 255  # of a thread
# Registers of a thread for all but weights, and what each tile after the first takes as well; an RNN's thread has four states.
_OWN_REGISTERS = {1: (100, 52), 4: (56, 16)}
_MOST_WARPS, _MOST_TILES = 12, 4  # of 16 warps none has the registers for two tiles
_BARRIER_BYTES = 128
_COLUMNS = 16  # of W_hh in a slice, which is 4 registers of a thread
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
    """`blocks` of a cluster own `units` each; a cluster has 8 * `tiles` sequences; `held` slices of W_hh lie in registers.

    rows: of W_hh a unit, among the 16 that a warp multiplies: 1, or 4 for the gates of LSTM and GRU.
    """

    rows: int
    units: int
    blocks: int
    tiles: int
    held: int
    clusters: int

    @property
    def warps(self) -> int:
        return self.units * self.rows // 16

    @property
    def slices(self) -> int:
        return self.units * self.blocks // _COLUMNS

    @property
    def shared_bytes(self) -> int:
        """Of a block: barriers, two buffers of states, two of those on their way, and weights that registers do not hold."""
        states, leaving = 512 * self.tiles * self.slices, 32 * self.tiles * self.units
        return _BARRIER_BYTES + states + leaving + 512 * self.warps * (self.slices - self.held)

    @property
    def step_us(self) -> float:
        """About how long a step takes, by which forms are compared."""
        slices = self.slices + _SHARED * (self.slices - self.held)
        products_us = _PRODUCT_US * (1 + _FURTHER * (self.tiles - 1)) * slices * (self.warps // 4)
        return _STEP_US + _TOLD_US * self.blocks * self.tiles + products_us

    @cached_property
    def launch(self) -> Launch:
        return Launch(self.clusters * self.blocks, 32 * self.warps, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        return {"UNITS": self.units, "BLOCKS": self.blocks, "TILES": self.tiles, "HELD": self.held}

    def __str__(self) -> str:
        where = "registers" if self.held == self.slices else f"registers ({self.held} of {self.slices} parts) and shared memory"
        return (
            f"clusters: {self.clusters} of {self.blocks} blocks, {8 * self.tiles} sequences each, {self.units} units a block; "
            f"weights in {where}"
        )


def choose(cell: str, hidden: int, batch: int, device: Device) -> Form | str:
    """The form whose steps take the least, clusters that queue counted; or why there is none."""
    found = list(_forms(cell, hidden, batch, device))
    if not found:
        return (
            f"H {hidden} does not fit: W_hh of {GATES[cell]} x {hidden} x {hidden} elements of 2 bytes must lie in the "
            f"registers and the {device.shared_bytes} bytes of shared memory of each of {device.largest_cluster} blocks"
        )
    return min(found, key=lambda form: ceil(form.clusters / device.clusters(form.blocks)) * form.step_us)


def _forms(cell: str, hidden: int, batch: int, device: Device) -> Iterator[Form]:
    rows = 1 if GATES[cell] == 1 else 4
    step = 64 // rows  # four warps of 16 rows multiply together
    for units in range(step, 16 * _MOST_WARPS // rows + 1, step):
        blocks = ceil(hidden / units)
        for tiles in range(1, _MOST_TILES + 1):
            form = _with_weights(Form(rows, units, blocks, tiles, 0, ceil(batch / (8 * tiles))))
            if blocks <= device.largest_cluster and form.held > 0 and form.shared_bytes <= device.shared_bytes:
                yield form


def _with_weights(form: Form) -> Form:
    """As many of them in registers as there is room for."""
    first, further = _OWN_REGISTERS[form.rows]
    registers = min(_MOST_REGISTERS, _REGISTERS // (32 * form.warps) // 8 * 8)  # which are given out by eights
    return replace(form, held=min(form.slices, (registers - first - further * (form.tiles - 1)) // 4))
