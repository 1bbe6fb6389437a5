"""scan_gpu in log space, the form of arXiv 2410.01201, appendix B: h = exp of a scan over logarithms, in a positive candidate.

It stands beside scan_gpu to show what log space costs and how exact it is. The scan is Blelloch's tree ("Prefix sums and their
applications", 1990). Logarithms of float32 and float64 are kept in two numbers each: in one they hardly pass what a loop does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.min_cells import POSITIVE_CELLS
from pytest_ecornn.implementations.scan_gpu.layer import GpuScanBase, Masks, Scan


class ScanGpuLog(GpuScanBase):
    cell_names = POSITIVE_CELLS
    skip_reason = "log space needs a positive candidate"
    operations = 100  # two compositions and the gates, an exponential and a logarithm each

    def scan(self, case: Case, device: torch.device) -> tuple[Scan, str]:
        from pytest_ecornn.implementations.scan_gpu_log.ops import describe, log_scan

        def run(
            x: Tensor, bias: Tensor | None, first: Tensor | None, masks: Masks, reverse: bool, overwrites_x: bool
        ) -> tuple[Tensor, Tensor]:
            how = masks[0], case.cell, case.batch_first, reverse
            return log_scan(x, first, *how, bias=bias, overwrites_x=overwrites_x)

        return run, describe(case, device)
