"""How scan_gpu is cut into tiles: a function of the shape, what is needed and the number of the device's multiprocessors alone.

A block takes some channels of one sequence. Where there are enough of those for every multiprocessor, a block runs through all
steps of its channels; otherwise time is split, and a block takes one tile after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, isqrt
from typing import NamedTuple

import torch

from pytest_ecornn.implementations.cuda.kernel import Launch

_ENOUGH = 0.75  # blocks a multiprocessor, from which on time is not split


@dataclass(frozen=True)
class Cut:
    """What a block does at once: `pack` channels a thread, `across` threads side by side, `stretch` steps a thread.

    `resident`: blocks of `warps` warps that a multiprocessor must have room for at once.
    """

    pack: int
    across: int
    stretch: int
    warps: int
    resident: int

    @property
    def channels(self) -> int:
        return self.pack * self.across

    @property
    def steps(self) -> int:
        """Of a tile."""
        return self.stretch * 32 * self.warps // self.across


@dataclass(frozen=True)
class Form:
    """A scan in tiles of `cut`. `is_split`: blocks share the tiles of their channels; `group` tiles have a map in common."""

    cut: Cut
    is_split: bool
    channel_blocks: int
    tiles: int
    processors: int

    @property
    def group(self) -> int:
        return isqrt(self.tiles - 1) + 1

    @property
    def launch(self) -> Launch:
        blocks = self.channel_blocks
        if self.is_split:
            blocks = min(blocks * self.tiles, self.cut.resident * self.processors)
        return Launch(blocks, 32 * self.cut.warps)

    @property
    def words(self) -> int:
        """Of the maps that tiles and groups publish."""
        return 2 * self.cut.channels * self.channel_blocks * (self.tiles + self.tiles // self.group) if self.is_split else 0

    @property
    def macros(self) -> dict[str, int]:
        cut = self.cut
        named = {"PACK": cut.pack, "ACROSS": cut.across, "STEPS": cut.stretch, "WARPS": cut.warps, "RESIDENT": cut.resident}
        return {"SPLIT": int(self.is_split), **named}

    def __str__(self) -> str:
        how = f"{self.tiles} tiles side by side in groups of {self.group}" if self.is_split else "a block runs through time"
        return f"{how}; tiles of {self.cut.steps} steps, {self.cut.channels} channels"


class Need(NamedTuple):
    """What a scan is asked for, beside its shape. is_paired: channels may be read two at a time. is_plain: few registers."""

    gates: int
    dtype: torch.dtype
    is_paired: bool
    is_backward: bool
    is_plain: bool


def choose(steps: int, batch: int, hidden: int, need: Need, processors: int) -> Form:
    """The form for [T, B, G*H] on a device of so many multiprocessors."""
    blocks = batch * ceil(hidden / 32) / processors
    is_split = blocks < _ENOUGH
    cut = _split_cut(need) if is_split else _whole_cut(need, blocks)
    if not need.is_plain:  # the registers would not suffice
        cut = replace(cut, stretch=cut.stretch // 2, resident=max(1, cut.resident - 1))
    tiles = ceil(steps / cut.steps)
    return Form(cut, is_split and tiles > 1, batch * ceil(hidden / cut.channels), tiles, processors)


# What was fastest on an H200: docs/notes/scan_gpu.md.


def _whole_cut(need: Need, blocks: float) -> Cut:
    """`blocks`: of 32 channels, a multiprocessor."""
    if need.dtype == torch.float64:
        return Cut(1, 32, 2 if need.is_backward else 4, 8, 2)
    if need.is_paired and need.is_backward:
        return Cut(2, 32 if blocks > 4 else 16, 8, 4, 3)
    if need.is_paired:
        return Cut(2, 32, 16, 8, 2) if need.gates == 2 else Cut(2, 16, 16, 4, 3)
    if need.is_backward:
        return Cut(1, 32, 8, 8, 2) if blocks <= 2 else Cut(1, 32, 8, 4, 4)
    return Cut(1, 32, 16, 4, 4) if 2 < blocks <= 4 else Cut(1, 32, 16, 8, 2)


def _split_cut(need: Need) -> Cut:
    if need.dtype == torch.float64:
        return Cut(1, 32, 2 if need.is_backward else 4, 8, 1)
    if need.is_paired:
        return Cut(2, 16, 4, 4, 4) if need.is_backward else Cut(2, 16, 16, 4, 2)
    if need.is_backward:
        return Cut(1, 32, 8, 4, 4 if need.gates == 2 else 3)
    return Cut(1, 32, 16, 8, 2)
