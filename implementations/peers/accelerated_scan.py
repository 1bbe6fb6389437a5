"""minGRU and minLSTM by accelerated-scan: gates by torch's operations, one kernel for the scan, copies to its layout and back.

The package scans contiguous time, [B, C, T], so what x W^T writes is transposed before and after.
"""

from __future__ import annotations

from pytest_ecornn.implementations.peers._accelerated_scan import AcceleratedScan as Base


class AcceleratedScan(Base):
    pass
