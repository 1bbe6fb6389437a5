"""minGRU and minLSTM by the scans of accelerated-scan 0.3.1 (github.com/proger/accelerated-scan), over arrays [B, C, T].

The package scans h[t] = kept[t] h[t-1] + taken[t] from 0; gates, initial state and layout are torch's here. It scans in its
arguments' dtype, so they are float32: in 16 bits the product of what is kept would be, too.

warp: CUDA, compiled by nvcc at first use; T a power of two from 32 to 65,536. scalar: Triton; any T, but its backward kernel
reads states up to the next multiple of 2,048, beyond the end of the array, so that it is given whole blocks where it will run.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.implementations.peers._gates import input_gate_and_candidate
from pytest_ecornn.implementations.peers._packages import import_quietly
from pytest_ecornn.implementations.peers._parts import ScanPipeline

KERNELS = ("warp", "scalar")
LONGEST = 65_536  # steps that warp takes
_SHORTEST = 32  # likewise
_BLOCK = 2048  # steps of scalar's


def padded(steps: int, kernel: str, is_training: bool) -> int:
    """How many steps the kernel is given for so many."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
    if kernel == "scalar":
        return -(-steps // _BLOCK) * _BLOCK if is_training else steps
    if steps > LONGEST:
        raise ValueError(f"warp takes at most {LONGEST} steps, got {steps}")
    return max(_SHORTEST, 1 << (steps - 1).bit_length())


def load(kernel: str) -> None:
    """Imports the package's module of that name, which compiles warp."""
    import_quietly(f"accelerated_scan.{kernel}")


def _prepare_bct(x: Tensor, first: Tensor | None, cell: str, kernel: str, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the state's factor and what is added to the state, [B, H, T] as the kernel takes them."""
    opening, candidate = input_gate_and_candidate(x, cell, 1, bias)
    share = opening.sigmoid()
    kept, taken = 1 - share, share * candidate
    if first is not None:
        taken[..., 0] += kept[..., 0] * first
    room = padded(x.shape[-1], kernel, torch.is_grad_enabled() and taken.requires_grad) - x.shape[-1]
    if room:
        kept, taken = pad(kept, (0, room)), pad(taken, (0, room))
    return kept.contiguous(), taken.contiguous()


def _prepare_btd(x: Tensor, first: Tensor | None, cell: str, kernel: str, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return _prepare_bct(x.mT.contiguous(), first, cell, kernel, bias)


def _scan(kept: Tensor, taken: Tensor, kernel: str) -> Tensor:
    from pytest_ecornn.implementations.peers._opaque import accelerated_scan

    return accelerated_scan(kept, taken, kernel)


def _finish_bct(states: Tensor, x: Tensor) -> Tensor:
    return states[..., : x.shape[-1]].to(x.dtype)


def _finish_btd(states: Tensor, x: Tensor) -> Tensor:
    return states[..., : x.shape[1]].to(x.dtype).mT.contiguous()


# Pre-activations [B, G*H, T] -> outputs [B, H, T]; and [B, T, G*H] -> [B, T, H], contiguous, the same between two copies.
BCT = ScanPipeline(_prepare_bct, _scan, _finish_bct)
BTD = ScanPipeline(_prepare_btd, _scan, _finish_btd)
