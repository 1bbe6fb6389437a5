"""The sizes of a scan that the published suite measures, and what memory its arrays take."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_ecornn.contract import cells


@dataclass(frozen=True)
class ScanShape:
    cell: str
    batch: int
    steps: int
    hidden: int
    dtype: str

    @property
    def gates(self) -> int:
        return len(cells.get(self.cell).gates)

    @property
    def sizes(self) -> str:
        return f"{self.batch} x {self.steps:,} x {self.hidden:,}, {self.dtype}"

    def bytes_of(self, values: int) -> int:
        """Returns the bytes of arrays with `values` values for each sequence, channel and step."""
        return values * self.batch * self.steps * self.hidden * int(getattr(torch, self.dtype).itemsize)
