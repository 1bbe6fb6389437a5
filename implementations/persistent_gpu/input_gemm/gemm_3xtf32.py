"""The input product of float32 layers by 3xTF32 on tensor cores, where that takes less time than cuBLAS.

cuBLAS multiplies float32 outside of the tensor cores.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._common.input_gemm import InputGemm, make_input_gemm
from pytest_ecornn.implementations._cuda.compile import has_clusters
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations.persistent_gpu.input_gemm.tiles import GemmTile, is_applicable, select_tile

_SOURCE = Path(__file__).parents[1] / "kernels" / "input_gemm_3xtf32.cu"
_THREADS, _VECTOR_BYTES = 128, 16
_ADDRESSES, _SIZES = ("x", "weight_ih", "gates"), ("rows", "inputs", "columns")  # the fields of the kernel's Params


class InputGemm3xTF32:
    """Computes gate pre-activations [T, B, G*H], or [B, T, G*H], of x in the same order, in one launch.

    outer: T and B, or B and T. width: I. wide: G*H. fallback: multiplies arrays that do not start at multiples of 16 bytes.
    """

    def __init__(
        self, outer: tuple[int, int], width: int, wide: int, device: torch.device, fallback: InputGemm, tile: GemmTile
    ):
        rows = outer[0] * outer[1]
        launch = Launch(tile.blocks(rows, wide), _THREADS, tile.shared_bytes)
        sizes = dict(zip(_SIZES, (rows, width, wide), strict=True))
        self._run = make_kernel(tile, device).at(launch, _ADDRESSES, **sizes)
        self._made, self._fallback = EmptyFactory((*outer, wide), torch.float32, device), fallback

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: [T, B, I] or [B, T, I]. weight: [G*H, I]. Both are without gaps."""
        operands = x.data_ptr(), weight.data_ptr()
        if (operands[0] | operands[1]) % _VECTOR_BYTES:
            return self._fallback(x, weight)
        gates = self._made()
        self._run((*operands, gates.data_ptr()))
        return gates


def make_fastest_input_gemm(
    outer: tuple[int, int], width: int, wide: int, dtype: torch.dtype, device: torch.device, tf32: bool
) -> InputGemm | InputGemm3xTF32 | None:
    """The product of those sizes by this kernel or by cuBLAS; None where the gates' rows need copies as well.

    Other GPUs than Hopper have cuBLAS: on some of them TF32 is no faster than float32.
    """
    gemm, rows = make_input_gemm(outer, width, wide, dtype, device, tf32), outer[0] * outer[1]
    if gemm is None or dtype != torch.float32 or tf32 or not has_clusters(device) or not is_applicable(rows, width, wide):
        return gemm
    return InputGemm3xTF32(outer, width, wide, device, gemm, select_tile(rows, width, wide))


@lru_cache(maxsize=64)
def make_kernel(tile: GemmTile, device: torch.device) -> Kernel:
    """The compiled kernel of a tile."""
    arguments: dict[str, type[int] | type[np.int64]] = {**dict.fromkeys(_ADDRESSES, np.int64), **dict.fromkeys(_SIZES, int)}
    return Kernel(_SOURCE, "input_gemm_3xtf32", tile.macros, arguments, device, tile.shared_bytes)
