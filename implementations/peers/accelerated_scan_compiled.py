"""accelerated_scan with gates and copies by torch.compile: what surrounds the package's scan in few kernels."""

from __future__ import annotations

from pytest_ecornn.implementations.peers._accelerated_scan import AcceleratedScan as Base


class AcceleratedScanCompiled(Base):
    is_compiled = True
