"""accelerated_scan without its copies: W x^T of each sequence writes [B, G*H, T], the layout that the package scans."""

from __future__ import annotations

from pytest_ecornn.implementations.peers._accelerated_scan import AcceleratedScan as Base


class AcceleratedScanBct(Base):
    is_by_sequence = True
