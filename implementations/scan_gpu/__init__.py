"""minGRU and minLSTM on a GPU: one product for the gates of all steps, then one kernel for all else.

Activations, recurrence and state stay on chip: each pre-activation is read once, each output written once. scan_cpu is the
same for a CPU. Linear space, not logarithms, and a state in float32. Source: arXiv 2410.01201, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS
from pytest_ecornn.implementations.scan_gpu.layer import GpuScanBase, Masks, Scan


class ScanGpu(GpuScanBase):
    cell_names = MIN_CELLS
    skip_reason = "whose state is linear in the one before"
    operations = 20  # an exponential, a reciprocal, the recurrence
    takes_resets = True

    def scan(self, case: Case, device: torch.device) -> tuple[Scan, str]:
        from pytest_ecornn.implementations.scan_gpu.ops import describe, scan

        def run(
            x: Tensor, bias: Tensor | None, first: Tensor | None, masks: Masks, reverse: bool, overwrites_x: bool
        ) -> tuple[Tensor, Tensor]:
            return scan(x, bias, first, *masks, case.cell, case.batch_first, reverse, overwrites_x)

        return run, describe(case, device)
