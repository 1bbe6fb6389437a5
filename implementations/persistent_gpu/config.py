"""The form in which persistent_gpu runs a layer: how it is spread over the chip, its launch and its macros."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations.persistent_gpu.resources import Resources
from pytest_ecornn.implementations.persistent_gpu.tiling import THREADS


@dataclass(frozen=True)
class Form(Resources):
    """A tiling, the resources that it needs, its launch and the macros with which its kernel is compiled."""

    @property
    def kind(self) -> str:
        """The kernel and how its threads share the work, in words."""
        readers = f", {self.load_threads} readers" if self.load_threads else ""
        return f"grid{readers}" if self.is_grid else "clusters"

    @cached_property
    def launch(self) -> Launch:
        return Launch(self.total_clusters * self.blocks, THREADS + self._non_mma_threads, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        found = {
            "UNITS": self.units,
            "TILES": self.tiles,
            "K_PARTITIONS": self.k_partitions,
            "M_TILES_PER_PASS": self.m_tiles_per_pass,
            "REG_FRAGMENTS": self.reg_fragments,
            "SMEM_FRAGMENTS": self.smem_fragments,
            "STREAM_STAGES": self.stream_stages,
            "STAGE_FRAGMENTS": self.stage_fragments,
            "L2_FRAGMENTS": self.l2_fragments,
        }
        if self.is_grid:
            found["SEQUENCES"] = self.sequences
        if self.is_2d_grid:
            found |= {"GRID_ROWS": self.grid_rows, "GRID_COLS": self.grid_cols, "N_TILES": self.n_tiles}
        else:
            found["BLOCKS"] = self.blocks
        if self._has_pointwise_warps:
            found |= {"POINTWISE_THREADS": self.pointwise_threads, "POINTWISE_REGISTERS": self.pointwise_registers}
        elif not self.problem.is_backward:
            found |= {"BUFFERS": self.buffers, "LOAD_THREADS": self.load_threads, "LOAD_REGISTERS": self.load_registers}
        if not self.problem.is_backward:
            found["MMA_REGISTERS"] = self.mma_warp_registers
        return found | {"SHARED_BYTES": self.shared_bytes, "USE_3XTF32": int(self.problem.arithmetic.is_3xtf32)}

    def __str__(self) -> str:
        near = [f"{self.reg_fragments} in registers"] + [f"{self.smem_fragments} in shared memory"] * (self.smem_fragments > 0)
        where = ", ".join(near + [f"{self.streamed_fragments} in the L2 cache"] * (self.streamed_fragments > 0))
        what = "groups over the grid" if self.is_grid else "clusters"
        blocks = f"{self.grid_rows} x {self.grid_cols}" if self.is_2d_grid else str(self.blocks)
        return (
            f"{what}: {self.clusters} of {blocks} blocks, {self.wide * self.tiles} sequences each, {self.units} units a "
            f"block; parts of the weights: {where}"
        )
