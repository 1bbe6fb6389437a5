"""accelerated_scan_bct with gates by torch.compile: one product, one kernel for the gates, one for the scan."""

from __future__ import annotations

from pytest_ecornn.implementations.peers._accelerated_scan import AcceleratedScan as Base


class AcceleratedScanBctCompiled(Base):
    is_by_sequence = True
    is_compiled = True
