"""Ragged batches are refused, which this implementation must support."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.scan_cpu import ScanCpu

CAUGHT_BY = "required"
CELL = "mingru"
STANDS_FOR = "scan_cpu"


class Fault(ScanCpu):
    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return "runs batches without lengths" if case.ragged else super().unsupported(case, device)
