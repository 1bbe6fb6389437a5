"""How scan_gpu is cut into tiles: a function of the shape, what is needed and the device alone.

A block takes some channels of one sequence. Where there are enough of those for every multiprocessor, a block runs through all
steps of its channels; otherwise time is split, and blocks that all run at once take turns at tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda.launch import Launch

_MIN_BLOCKS_PER_SM = 0.6  # blocks a multiprocessor, from which on time is not split
_RESERVED_BYTES = 1024  # of shared memory a block, by the driver


@dataclass(frozen=True)
class TileShape:
    """Work of a block at once: `pack` channels a thread, `across` threads side by side, `items_per_thread` steps a thread.

    `resident`: blocks of `warps` warps that must fit into a multiprocessor at once. `stages`: tiles that are read at once.
    """

    pack: int
    threads_per_row: int
    items_per_thread: int
    warps: int
    resident: int
    stages: int = 1

    @property
    def channels(self) -> int:
        return self.pack * self.threads_per_row

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def steps(self) -> int:
        """Steps of a tile."""
        return self.items_per_thread * self.threads // self.threads_per_row


class ScanRequirements(NamedTuple):
    """Requirements of a scan beside its shape. is_paired: channels may be read two at a time. is_plain: needs few registers."""

    gates: int
    dtype: torch.dtype
    is_paired: bool
    is_backward: bool
    is_plain: bool

    def read_bytes(self, cut: TileShape) -> int:
        """Bytes that a block reads ahead into dynamic shared memory."""
        arrays = self.gates + (2 if self.is_backward else 0)
        return cut.stages * arrays * cut.items_per_thread * cut.threads * cut.pack * self.dtype.itemsize

    def shared_bytes(self, cut: TileShape) -> int:
        """Bytes of shared memory per block, with its stretches' maps: two values of 4 or 8 bytes, in at most three buffers."""
        map_words = 3 * 2 * cut.threads * cut.pack * max(4, self.dtype.itemsize)
        return self.read_bytes(cut) + map_words + _RESERVED_BYTES


class Device(NamedTuple):
    """Multiprocessors, and shared memory of each."""

    num_sms: int
    shared_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> Device:
        found = torch.cuda.get_device_properties(device)
        return cls(found.multi_processor_count, found.shared_memory_per_multiprocessor)


@dataclass(frozen=True)
class Form:
    """A scan in tiles of `tile_shape`. splits_time: blocks share the tiles of their channels. `group` tiles share a map."""

    tile_shape: TileShape
    splits_time: bool
    channel_blocks: int
    tiles: int
    num_sms: int
    read_bytes: int

    @property
    def group_bits(self) -> int:
        """Bits of a tile's number within its group; there are about as many groups as tiles in one."""
        return ((self.tiles - 1).bit_length() + 1) // 2

    @cached_property
    def launch(self) -> Launch:
        blocks = self.channel_blocks
        if self.splits_time:
            blocks = min(blocks * self.tiles, self.tile_shape.resident * self.num_sms)
        return Launch(blocks, self.tile_shape.threads, self.read_bytes)

    @cached_property
    def words(self) -> int:
        """Words of the maps that tiles and groups publish; 0 where time is not split."""
        map_words = self.tiles + (self.tiles >> self.group_bits)
        return 2 * self.tile_shape.channels * self.channel_blocks * map_words if self.splits_time else 0

    def tile_status(self, x: Tensor) -> Tensor | None:
        """Allocates the published maps on x's device, to be cleared before each launch; None where there are none."""
        return torch.empty(self.words, dtype=word_of(x.dtype), device=x.device) if self.splits_time else None

    @property
    def macros(self) -> dict[str, int]:
        tile = self.tile_shape
        return {
            "SPLIT": int(self.splits_time),
            "PACK": tile.pack,
            "CHANNEL_THREADS": tile.threads_per_row,
            "STEPS": tile.items_per_thread,
            "WARPS": tile.warps,
            "RESIDENT": tile.resident,
            "STAGES": tile.stages,
        }

    def __str__(self) -> str:
        in_groups = f"{self.tiles} tiles side by side in groups of {1 << self.group_bits}"
        how = in_groups if self.splits_time else "a block runs through time"
        return f"{how}; tiles of {self.tile_shape.steps} steps, {self.tile_shape.channels} channels"


def word_of(dtype: torch.dtype) -> torch.dtype:
    """Returns the maps' word: an integer of the size of the type that a scan of the dtype computes in."""
    return torch.int64 if dtype == torch.float64 else torch.int32


def select_config(steps: int, batch: int, hidden: int, need: ScanRequirements, device: Device) -> Form:
    """The form for [T, B, G*H]."""
    blocks = batch * ceil(hidden / 32) / device.num_sms
    splits_time = blocks < _MIN_BLOCKS_PER_SM
    tile = _split_cut(need) if splits_time else _whole_cut(need, blocks)
    if not need.is_plain:  # the registers would not suffice
        tile = replace(_halve_items(tile), resident=max(1, tile.resident - 1))
    tile = _fitting(tile, need, device.shared_bytes)
    tiles = ceil(steps / tile.steps)
    channel_blocks = batch * ceil(hidden / tile.channels)
    return Form(tile, splits_time and tiles > 1, channel_blocks, tiles, device.num_sms, need.read_bytes(tile))


def _fitting(tile: TileShape, need: ScanRequirements, shared_bytes: int) -> TileShape:
    """Shrinks a cut until its blocks fit: small devices read less ahead, then run fewer blocks, then shorter stretches."""
    while tile.resident * need.shared_bytes(tile) > shared_bytes:
        if tile.stages > 1:
            tile = replace(tile, stages=tile.stages - 1)
        elif tile.resident > 1:
            tile = replace(tile, resident=tile.resident - 1)
        else:
            tile = _halve_items(tile)
    return tile


def _halve_items(cut: TileShape) -> TileShape:
    """About half the steps a thread; fours and pairs stay whole, as copies of 16 bytes want them."""
    half = cut.items_per_thread // 2
    return replace(cut, items_per_thread=ceil(half / 4) * 4 if half > 2 else 2)


# What was fastest on an H200: docs/notes/scan_gpu.md.


def _whole_cut(need: ScanRequirements, blocks: float) -> TileShape:
    """`blocks`: of 32 channels, a multiprocessor."""
    if need.dtype == torch.float64:
        return TileShape(1, 32, 2 if need.is_backward else 4, 8, 2)
    if need.is_paired and need.is_backward:
        return TileShape(2, 32, 8, 4, 3, 2)
    if need.is_paired and (need.gates == 3 or blocks <= 2):
        return TileShape(2, 16, 8, 8, 2, 2)
    if need.is_paired:
        return TileShape(2, 32, 16, 4, 3, 2) if blocks <= 4 else TileShape(2, 32, 16, 8, 2)
    if need.is_backward:
        return TileShape(1, 32, 8, 8, 2) if blocks <= 2 else TileShape(1, 32, 8, 4, 4)
    if blocks <= 2:
        return TileShape(1, 32, 16, 8, 1, 2) if blocks < 0.9 else TileShape(1, 32, 16, 4, 2, 3)
    return TileShape(1, 32, 16, 4, 4) if blocks <= 4 or need.gates == 3 else TileShape(1, 32, 16, 8, 2)


def _split_cut(need: ScanRequirements) -> TileShape:
    if need.dtype == torch.float64:
        return TileShape(1, 32, 4, 8, 1)
    if need.is_paired:
        return TileShape(2, 16, 16 if need.is_backward else 24, 4, 2)
    if need.is_backward:
        return TileShape(1, 32, 12, 8, 2) if need.gates == 2 else TileShape(1, 32, 16, 8, 1)
    return TileShape(1, 32, 24 if need.gates == 2 else 16, 8, 2)
