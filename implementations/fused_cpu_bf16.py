"""fused_cpu with weights in bfloat16: inference that reads half of the bytes.

It runs where it is named: its results are those of rounded weights.
"""

from __future__ import annotations

from pytest_ecornn.implementations.fused_cpu import ROUNDED, FusedCpu


class FusedCpuBf16(FusedCpu):
    supported = ROUNDED
    weight_rounding, runs_unnamed = "bfloat16", False
