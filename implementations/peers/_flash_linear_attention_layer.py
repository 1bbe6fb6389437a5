"""The layers that scan by flash-linear-attention's HGRN."""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case, Cost, Layer, Weights
from pytest_ecornn.implementations.peers._flash_linear_attention import BTD
from pytest_ecornn.implementations.peers._peer import ThirdPartyScan, skip_reason

_KERNEL = "chunk"  # by its authors' table the faster one from 128 steps on
_MOST_SEQUENCES = 65_535  # the second dimension of a launch


class FlashLinearAttention(ThirdPartyScan):
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
