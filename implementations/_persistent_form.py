"""How persistent_gpu spreads a layer over the chip: a function of the cell, the sizes, the precision, the pass and the device.

A cluster of blocks takes some sequences through all steps, a tile of 8 after the other, so that what one tile's blocks tell
each other is on its way while another tile is computed. Each block owns some hidden units, whose part of W_hh it keeps, first
in registers, then in shared memory; what finds no room there comes from the L2 cache in every step. Clusters know nothing of
each other: where there are more than run at once, they queue. Forward a layer that a cluster has no room for lies in a grid:
groups of more blocks, which tell each other through the L2 cache and all run at once.
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

HOPPER = (9, 0)  # the compute capability of clusters here
GATES = {name: len(cells.get(name).gates) for name in NN_CELLS}
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # of a layer in one direction
WARPS = 8
_THREADS = 32 * WARPS
_TILE = 8  # sequences
_PART_REGISTERS, _PART_BYTES = 8, 8 * 4 * _THREADS  # of a thread, of a block: 16 rows by 64 bytes of columns a warp
_REGISTERS = 65_536  # of a multiprocessor
_MOST_PARTS_HELD = 22  # of 255 registers
_OTHER_REGISTERS = 48  # of a thread that multiplies, beside weights
_SLICE_BYTES = 64  # of columns, that are multiplied at once
_MOST_TILES = 4
_RING_BYTES = 80 * 1024  # on their way from the L2 cache at least, to use its bandwidth
_GROUP = 17  # multiprocessors that a cluster must lie within: the chip's groups have 16 to 18
# On an H200, docs/notes/persistent_gpu.md. Clocks of a quarter of a multiprocessor for a product, of a product that waits for
# the last, for a part whose float32 is split and for its slice; bytes of shared memory and of the L2 cache a clock; what
# warps lose beside these.
_CLOCK_US = 1 / 1700
_PRODUCT_CLOCKS, _CHAIN_CLOCKS, _SPLIT_CLOCKS = 6.1, 24, (95, 28)
_SHARED_BYTES_A_CLOCK, _L2_BYTES_A_CLOCK, _LOSS = 128, 18, 1.5
# In us: of a thread's state and of each group's sums; until others have what they were told, and of each block that tells, and
# of each 128 bytes of that.
_GATES_US, _SUMS_US, _HANDOFF_US, _BLOCK_US, _TOLD_US = 0.22, 0.045, 0.1, 0.006, 0.0055
# In a grid, in us: until what was told can be read, and for what threads read of it at once, so many parcels each.
_GRID_TOLD_US, _GRID_READ_US, _AT_ONCE = 0.65, 0.65, 8
_GRID_UNITS = 4  # of a block a multiple


class Device(NamedTuple):
    """processors: multiprocessors. shared_bytes: that a block may have. largest_cluster: in blocks, 1 where there are none."""

    processors: int
    shared_bytes: int
    largest_cluster: int

    @classmethod
    def of(cls, device: torch.device) -> Device:
        found = torch.cuda.get_device_properties(device)
        shared_bytes = found.shared_memory_per_block_optin  # type: ignore[attr-defined]
        return cls(found.multi_processor_count, shared_bytes, 16 if (found.major, found.minor) == HOPPER else 1)

    def clusters(self, blocks: int) -> int:
        """Of so many blocks, that run at once: an estimate, by which only time is lost."""
        return max(1, self.processors // (_GROUP + 1) * (_GROUP // blocks))


def training_refusal(device: torch.device) -> str | None:
    """Why the backward pass does not run on that CUDA device, or None."""
    found = torch.cuda.get_device_capability(device)
    return None if found == HOPPER else f"trains on compute capability {HOPPER[0]}.{HOPPER[1]}, not {found[0]}.{found[1]}"


class Arithmetic(NamedTuple):
    """bytes: of an element. is_split: products of float32's accuracy, each made of three of TF32."""

    bytes: int
    is_split: bool

    @classmethod
    def of(cls, dtype: str, precision: str) -> Arithmetic:
        return cls(4, precision == "ieee") if dtype == "float32" else cls(2, False)

    @property
    def products(self) -> int:
        """Of the tensor cores, for 16 rows, 8 columns and 64 bytes of what is summed over."""
        return 6 if self.is_split else 2


class Problem(NamedTuple):
    """batch: sequences of one direction."""

    cell: str
    hidden: int
    batch: int
    arithmetic: Arithmetic
    is_backward: bool = False


@dataclass(frozen=True)
class Form:
    """`blocks` of a cluster own `units` each; a cluster has `tiles` of 8 sequences. With `is_grid` the clusters are groups.

    groups: of warps, among which the columns of a product are divided. Of a warp's parts of W_hh `held` lie in registers and
    `shared` in shared memory; `ring`: of what is left over, turns of `together` parts that are on their way.
    """

    problem: Problem
    units: int
    blocks: int
    tiles: int
    groups: int
    held: int = 0
    shared: int = 0
    ring: int = 0
    is_grid: bool = False

    @property
    def clusters(self) -> int:
        return ceil(self.problem.batch / (_TILE * self.tiles))

    @property
    def _gates(self) -> int:
        return GATES[self.problem.cell]

    @property
    def _slice(self) -> int:
        """Columns."""
        return _SLICE_BYTES // self.problem.arithmetic.bytes

    @property
    def slices(self) -> int:
        """Of the columns of a group of warps: of all units, backward of the block's own gates."""
        own = self._gates * self.units if self.problem.is_backward else self.units * self.blocks
        return ceil(own / (self._slice * self.groups))

    @property
    def row_tiles(self) -> int:
        """Of 16 rows, that a warp multiplies: of the block's own gates, backward of all units."""
        rows = self.units * self.blocks if self.problem.is_backward else self._gates * self.units
        return ceil(rows * self.groups / (16 * WARPS))

    @property
    def parts(self) -> int:
        """Of W_hh, that a warp has."""
        return self.row_tiles * self.slices

    @property
    def together(self) -> int:
        """Row tiles that are multiplied by the same columns at once: backward some, so that their sums go meanwhile."""
        if not self.problem.is_backward:
            return self.row_tiles
        return max(some for some in (1, 2, 3, 4) if self.row_tiles % some == 0 and some * 2 <= max(self.row_tiles, 2))

    @property
    def left_over(self) -> int:
        return self.parts - self.held - self.shared

    @property
    def left_over_bytes(self) -> int:
        """Of a cluster, in memory."""
        return self.left_over * _PART_BYTES * self.blocks

    @property
    def states(self) -> int:
        """Of a thread in a tile."""
        return ceil(self.units * _TILE / self.gate_threads)

    @property
    def _has_gate_warps(self) -> bool:
        """Whether other warps have the states than those that multiply."""
        return not self.problem.is_backward and not self.is_grid

    @property
    def gate_threads(self) -> int:
        """Which have the states: in warps of their own more, where weights leave them the registers."""
        if not self._has_gate_warps:
            return _THREADS
        return 256 if self.problem.arithmetic.bytes == 2 and self.units * _TILE <= 256 else 128

    @property
    def gate_registers(self) -> int:
        """Of a thread of those warps."""
        return {1: 72, 2: 96}.get(self.states, 120)

    @property
    def other_registers(self) -> int:
        """Of a thread that multiplies: what the others leave of those that all threads are launched with, by eights."""
        launched = _REGISTERS // (_THREADS + self.gate_threads) // 8 * 8
        return (launched * (_THREADS + self.gate_threads) - self.gate_registers * self.gate_threads) // _THREADS // 8 * 8

    @property
    def told_bytes(self) -> int:
        """That a block tells each other of a tile in a step: states, backward sums in float32."""
        return self.units * _TILE * (4 if self.problem.is_backward else self.problem.arithmetic.bytes)

    @property
    def sequences(self) -> int:
        """Of a tile, that a grid's blocks tell each other: a power of 2, so that there are few kernels."""
        return min(_TILE, 1 << (self.problem.batch - 1).bit_length())

    @property
    def _parcel_bytes(self) -> int:
        """That a grid's block tells of a tile in a step: of 16 bytes 12 are states."""
        return 16 * ceil(self.sequences * self.units * self.problem.arithmetic.bytes / 12)

    @property
    def handoff_bytes(self) -> int:
        """Of all blocks of a grid, in memory."""
        return 2 * self.clusters * self.tiles * self.blocks * self._parcel_bytes

    @property
    def shared_bytes(self) -> int:
        """Of a block, as the kernels' struct Shared says."""
        parts = _PART_BYTES * max(1, self.shared + self.ring * self.together)
        carried = 4 * self.tiles * (self.states * self.gate_threads + _TILE)  # and where sequences end
        if self.problem.is_backward:
            own = 128 + 2 * self.tiles * self.told_bytes * self.blocks + 2 * self.slices * _TILE * _SLICE_BYTES
            return own + 4 * self.tiles * self.states * _THREADS + carried + parts
        states = self.slices * self.groups * _TILE * _SLICE_BYTES
        own = states + self.told_bytes + 16 if self.is_grid else 128 + 2 * self.tiles * states + 16
        sums = self.row_tiles * 16 * WARPS // self.groups // self._gates + 1
        turns = 2 if self._has_gate_warps else 1
        own += 4 * turns * self.groups * sums * (12 if self._gates == 1 else 36)
        return own + 16 * self.units + carried + parts

    @property
    def product_us(self) -> float:
        """About how long a tile's product takes."""
        each = self.problem.arithmetic.products
        products = max(self.parts * WARPS / 4 * each * _PRODUCT_CLOCKS, self.slices * each * _CHAIN_CLOCKS)
        reads = WARPS * self.parts // self.together * _TILE * _SLICE_BYTES + _PART_BYTES * (self.parts - self.held)
        split = self.problem.arithmetic.is_split * WARPS / 4 * (self.parts * _SPLIT_CLOCKS[0] + self.slices * _SPLIT_CLOCKS[1])
        left = self.left_over * _PART_BYTES / _L2_BYTES_A_CLOCK
        return max(_LOSS * products, _LOSS * reads / _SHARED_BYTES_A_CLOCK, split, left) * _CLOCK_US

    @property
    def step_us(self) -> float:
        """About how long a step of all tiles takes, by which forms are compared: of each tile, and from one to the next."""
        gates, sums = _GATES_US * self.states, _SUMS_US * self.groups
        if self.is_grid:
            reads = ceil(self.blocks * self._parcel_bytes / 16 / _THREADS / _AT_ONCE)
            return self.tiles * (self.product_us + gates + sums + reads * _GRID_READ_US + _GRID_TOLD_US)
        telling = self.blocks * (_BLOCK_US + _TOLD_US * self.told_bytes / 128)
        one = self.product_us + gates + sums + telling + _HANDOFF_US
        return max(self.tiles * max(self.product_us, gates + telling), one)

    @cached_property
    def launch(self) -> Launch:
        threads = _THREADS + self.gate_threads if self._has_gate_warps else _THREADS
        return Launch(self.clusters * self.blocks, threads, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        names = ["units", "blocks", "tiles", "groups", "together", "held", "shared", "ring"] + ["sequences"] * self.is_grid
        names += ["gate_threads", "gate_registers", "other_registers"] * self._has_gate_warps
        return {name.upper(): getattr(self, name) for name in names} | {"SPLIT": int(self.problem.arithmetic.is_split)}

    def __str__(self) -> str:
        near = [f"{self.held} in registers"] + [f"{self.shared} in shared memory"] * (self.shared > 0)
        where = ", ".join(near + [f"{self.left_over} in the L2 cache"] * (self.left_over > 0))
        what = "groups over the grid" if self.is_grid else "clusters"
        return (
            f"{what}: {self.clusters} of {self.blocks} blocks, {_TILE * self.tiles} sequences each, {self.units} units a "
            f"block; parts of the weights: {where}"
        )


def choose(problem: Problem, device: Device) -> Form | str:
    """The form whose steps take the least, clusters that queue counted; or why there is none.

    Backward there are clusters only.
    """
    found = [*_clusters(problem, device), *_grids(problem, device)]
    if not found:
        return _misfit(problem, device)

    def time_us(form: Form) -> tuple[float, float]:
        queue = 1 if form.is_grid else ceil(form.clusters / device.clusters(form.blocks))
        return queue * form.step_us, form.product_us

    return min(found, key=time_us)


def _misfit(problem: Problem, device: Device) -> str:
    sizes = f"H {problem.hidden} does not fit: "
    if device.largest_cluster > 1:
        return (
            f"{sizes}the states of {_TILE} sequences must lie in the {device.shared_bytes} bytes of shared memory of each "
            f"block of a cluster of {device.largest_cluster}"
        )
    if problem.is_backward:
        return f"{sizes}there are no clusters of blocks"
    return (
        f"{sizes}W_hh of {GATES[problem.cell]} x {problem.hidden} x {problem.hidden} elements of {problem.arithmetic.bytes} "
        f"bytes and the states of {problem.batch} sequences must lie in the registers and the {device.shared_bytes} bytes of "
        f"shared memory of each of {device.processors} multiprocessors"
    )


def _clusters(problem: Problem, device: Device) -> Iterator[Form]:
    if device.largest_cluster == 1:
        return
    piece = 16 if problem.is_backward else 16 // problem.arithmetic.bytes  # units that are told at once
    fewest = ceil(problem.hidden / device.largest_cluster / piece) * piece
    for units in range(fewest, max(fewest, 64) + 1, piece):
        for tiles in range(1, min(_MOST_TILES, ceil(problem.batch / _TILE)) + 1):
            for groups in (1,) if problem.is_backward else (1, 2, 4, 8):
                form = _with_weights(Form(problem, units, ceil(problem.hidden / units), tiles, groups), device)
                if form is not None:
                    yield form


def _grids(problem: Problem, device: Device) -> Iterator[Form]:
    """With as many groups as run at once, nothing of W_hh left over."""
    if problem.is_backward:
        return
    fewest = ceil(problem.hidden / device.processors / _GRID_UNITS) * _GRID_UNITS
    for units in range(fewest, max(fewest, 64) + 1, _GRID_UNITS):
        blocks = ceil(problem.hidden / units)
        tiles = ceil(problem.batch / _TILE / (device.processors // blocks))
        for groups in (1, 2, 4, 8):
            form = _with_weights(Form(problem, units, blocks, tiles, groups, is_grid=True), device)
            if form is not None and not form.left_over:
                yield form


def _with_weights(form: Form, device: Device) -> Form | None:
    """As many of them in registers as there is room for, then in shared memory; None where there is no room for the rest."""
    held = min(form.parts, _most_held(form))
    if held < 1:
        return None
    form = replace(form, held=held)
    room = (device.shared_bytes - replace(form, shared=1).shared_bytes) // _PART_BYTES + 1
    if form.parts - held <= room:
        return replace(form, shared=form.parts - held)
    near = (held + room) // form.together  # turns, and of these the ring's
    ring = min(ceil(_RING_BYTES / _PART_BYTES / form.together), room // form.together, near - 1)
    held = min(held, (near - ring) * form.together)
    return replace(form, held=held, shared=(near - ring) * form.together - held, ring=ring) if ring > 0 else None


def _most_held(form: Form) -> int:
    """Parts that a thread has registers for, found by compiling without spills."""
    is_split = form.problem.arithmetic.is_split
    if form.problem.is_backward:
        of_states = (2 if GATES[form.problem.cell] == 1 else 4) * min(form.states - 1, 2)
        return _MOST_PARTS_HELD - of_states - (form.together - 2) - 6 * is_split
    if form.is_grid:
        others = 8 * form.row_tiles + 16 if is_split else 6 * form.row_tiles + 10
        return _MOST_PARTS_HELD - ceil(others / _PART_REGISTERS)
    others = _OTHER_REGISTERS + 6 * (form.row_tiles - 1) + 32 * is_split
    return (form.other_registers - others) // _PART_REGISTERS
