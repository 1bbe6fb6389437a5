"""minGRU and minLSTM by the scans of accelerated-scan 0.3.1 (github.com/proger/accelerated-scan), over arrays [B, C, T].

The package scans h[t] = kept[t] h[t-1] + taken[t] from 0; gates, initial state and layout are torch's here. It scans in its
arguments' dtype, so they are float32: in 16 bits the product of what is kept would be, too.

warp: CUDA, compiled by nvcc at first use; T a power of two from 32 to 65,536. scalar: Triton; any T, but its backward kernel
reads states up to the next multiple of 2,048, beyond the end of the array, so that it is given whole blocks where it will run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.contract import Case, Cost, Layer, Weights
from pytest_ecornn.implementations.peers._peer import (
    ScanPipeline,
    ThirdPartyScan,
    can_compile,
    import_quietly,
    input_gate_and_candidate,
    skip_reason,
)
from pytest_ecornn.reference.held_products import held_products

KERNELS = ("warp", "scalar")
LONGEST = 65_536  # steps that warp takes
_SHORTEST = 32  # likewise
_BLOCK = 2048  # steps of scalar's
_MOST_CHANNELS = 65_535  # the second dimension of a launch


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


class AcceleratedScan(ThirdPartyScan):
    """`is_by_sequence`: the product of each sequence writes [G*H, T], as the package scans, and outputs are a view of its
    result; else the product writes [B, T, G*H], copied there and back."""

    is_by_sequence = False

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.projected and self.is_by_sequence:
            return "writes pre-activations as [B, G*H, T] by a product of its own; a projected case has [B, T, G*H]"
        if reason := skip_reason(case, device, ("accelerated_scan", "triton")):
            return reason
        kernel = _kernel(case)
        largest = case.batch * case.hidden_size * padded(case.steps, kernel, case.training)
        if largest >= 2**31:
            return f"B * H * T must be below 2^31 with T as {kernel} takes it, got {largest}"
        if case.hidden_size > _MOST_CHANNELS:
            return f"H must be at most {_MOST_CHANNELS}, got {case.hidden_size}"
        return None

    def build(self, case: Case, weights: Weights) -> Layer:
        kernel = _kernel(case)
        load(kernel)
        self.set_notes("accelerated_scan", kernel)
        run = BCT if self.is_by_sequence else BTD
        run = run.compiled() if self.is_compiled else run
        if not self.is_by_sequence:
            return self.layer(case, weights, run, kernel)
        from pytest_ecornn.implementations._common.scan_layer import make_layer

        def product(x: Tensor, weight: Tensor) -> Tensor:
            return sequence_products(x if case.batch_first else x.transpose(0, 1), weight, case.precision == "tf32")

        def scan(x: Tensor, first: Tensor | None, bias: Tensor | None) -> Tensor:
            output = run(x, first, case.cell, kernel, bias)  # [B, H, T]
            return output.mT if case.batch_first else output.permute(2, 0, 1)

        return make_layer(case, weights, product, scan)

    def cost(self, case: Case) -> Cost:
        """A scan reads two arrays and writes one; warp's is cleared before."""
        gates = 3 if case.cell.startswith("minlstm") else 2
        return self.scan_cost(case, 7 + (0 if self.is_by_sequence else 2 * gates), 4 + (0 if self.is_by_sequence else 2))


def _kernel(case: Case) -> str:
    """warp, which its author calls the faster one, where it can be compiled and takes so many steps."""
    return "warp" if can_compile() and case.steps <= LONGEST else "scalar"


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tf32: bool) -> Tensor:
        ctx.tf32 = tf32
        ctx.save_for_backward(x, weight)
        return _batched(weight.expand(len(x), -1, -1), x.mT, tf32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x, weight), (of_x, of_weight, _) = ctx.saved_tensors, ctx.needs_input_grad
        d_x = _batched(gradient.mT, weight.expand(len(x), -1, -1), ctx.tf32) if of_x else None
        d_weight = _batched(gradient, x, ctx.tf32).sum(0, dtype=_wide(x)).to(x.dtype) if of_weight else None
        return d_x, d_weight, None


def _batched(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    with held_products(a.dtype, tf32):
        return torch.bmm(a, b)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def sequence_products(x: Tensor, weight: Tensor, tf32: bool) -> Tensor:
    """W x^T for each sequence, [B, T, I], [G*H, I] -> [B, G*H, T], contiguous: as a scan over contiguous time takes it.

    torch's matmul would multiply x W^T and return a view of it; this is a batched product, in the case's precision both ways.
    """
    found: Tensor = _Product.apply(x, weight, tf32)  # type: ignore[no-untyped-call]
    return found
