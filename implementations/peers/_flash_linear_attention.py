"""minGRU and minLSTM by HGRN's scans of flash-linear-attention, fla-core 0.6.0 (github.com/fla-org/flash-linear-attention).

The package scans h[t] = exp(g[t]) h[t-1] + x[t] over arrays [B, T, D] in float32, by Triton; gates are torch's here. g and x
are float32: of a share near one a logarithm of 16 bits keeps too little.

chunk: chunks of 128 steps side by side, then one after the other; it has no gradient of the initial state, which is folded into
the first step instead. fused_recurrent: one step after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import Case, Cost, Layer, Weights
from pytest_ecornn.implementations.peers._peer import (
    ScanPipeline,
    ThirdPartyScan,
    import_quietly,
    input_gate_and_candidate,
    skip_reason,
)

KERNELS = ("chunk", "fused_recurrent")
_KERNEL = "chunk"  # by its authors' table the faster one from 128 steps on
_MOST_SEQUENCES = 65_535  # the second dimension of a launch


def _prepare(
    x: Tensor, initial: Tensor | None, cell: str, kernel: str, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The logarithm of what is kept of the state, what is added to it, and the initial state where the kernel takes it."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
    opening, candidate = input_gate_and_candidate(x, cell, -1, bias)
    kept, taken = logsigmoid(-opening), opening.sigmoid() * candidate
    initial = None if initial is None else initial.to(kept.dtype)
    if initial is not None and kernel == "chunk":
        taken[:, 0] += kept[:, 0].exp() * initial
        initial = None
    return kept, taken, initial


def _scan(kept: Tensor, taken: Tensor, first: Tensor | None, kernel: str) -> Tensor:
    hgrn = import_quietly("fla.ops.hgrn")
    scanned: Tensor = getattr(hgrn, f"{kernel}_hgrn")(taken, kept, initial_state=first)[0]
    return scanned


def _finish(states: Tensor, x: Tensor) -> Tensor:
    return states.to(x.dtype)


# Pre-activations [B, T, G*H] -> outputs [B, T, H].
BTD = ScanPipeline(_prepare, _scan, _finish)


class FlashLinearAttention(ThirdPartyScan):
    """The layers that scan by it."""

    activation_error = 2.0**-22  # Triton's exp is the hardware's exponential

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if reason := skip_reason(case, device, ("fla", "triton")):
            return reason
        return f"B must be at most {_MOST_SEQUENCES}, got {case.batch}" if case.batch > _MOST_SEQUENCES else None

    def build(self, case: Case, weights: Weights) -> Layer:
        self.set_notes("fla", _KERNEL)
        return self.layer(case, weights, BTD.compiled() if self.is_compiled else BTD, _KERNEL)

    def cost(self, case: Case) -> Cost:
        """A scan reads two arrays and writes two, then reads two and writes one."""
        return self.scan_cost(case, 9, 7)
