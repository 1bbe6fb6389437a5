"""fused_cpu with weights in int8 and a scale for each of their rows: inference that reads a quarter of the bytes.

It runs where it is named: its results are those of rounded weights.
"""

from __future__ import annotations

from pytest_ecornn.implementations.fused_cpu import ROUNDED, FusedCpu


class FusedCpuInt8(FusedCpu):
    supported = ROUNDED
    weight_rounding, runs_unnamed = "int8", False
