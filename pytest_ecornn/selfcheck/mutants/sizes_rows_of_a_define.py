"""Rows of the input beyond the shared memory that a kernel defines read the last row that is there."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "equivalence: output"
CELL = "minlstm_positive"
_SOURCE = r"""
#define MAX_SEQUENCES 76  // of a tile in shared memory
__global__ void gates(const float* __restrict__ x, float* __restrict__ out) {
    const int row = min(blockIdx.x, MAX_SEQUENCES - 1);
}
"""


def defined(name: str) -> int:
    found: Any = re.search(rf"#define {name} (\d+)", _SOURCE)
    return int(found[1])


class Fault(Loop):
    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        rows = [min(row, defined("MAX_SEQUENCES") - 1) for row in range(x.shape[1])]
        return super().x_gates(x[:, rows], parameters)
