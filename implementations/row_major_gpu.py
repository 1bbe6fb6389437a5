"""transposed_gpu held to the usual row-major layout, Y = X W^T: what the transposed layout alone is worth."""

from __future__ import annotations

from pytest_ecornn.implementations.transposed_gpu import TransposedGpu


class RowMajorGpu(TransposedGpu):
    layouts = (False,)
