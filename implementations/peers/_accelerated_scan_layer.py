"""The layers that scan by accelerated-scan: which kernel they take, what they refuse, and the product that each makes."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Layer, Weights
from pytest_ecornn.implementations.peers._accelerated_scan import BCT, BTD, LONGEST, load, padded
from pytest_ecornn.implementations.peers._packages import can_compile
from pytest_ecornn.implementations.peers._peer import ThirdPartyScan, skip_reason

_MOST_CHANNELS = 65_535  # the second dimension of a launch


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
        from pytest_ecornn.implementations.peers._sequence_product import sequence_products

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
