"""Layer and implementation of scan_gpu and scan_gpu_log, which differ only in their kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Layer, State, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.noted import OwnKernels
from pytest_ecornn.implementations._cuda.compile import skip_reason, with_index
from pytest_ecornn.implementations._cuda.rows import index_overflow_reason
from pytest_ecornn.reference.precision import tf32_refusal

Masks = tuple[Tensor | None, Tensor | None]  # on x's device: lengths, int64 [B]; resets, uint8, laid out as x


class Scan(Protocol):
    def __call__(
        self, x: Tensor, bias: Tensor | None, first: Tensor | None, masks: Masks, reverse: bool, overwrites_x: bool
    ) -> tuple[Tensor, Tensor]:
        """One layer in one direction: the gates' product [.., G*H] -> output [.., H] and final state [B, H].

        bias: [G*H], not added yet. first: [B, H], None for zeros. overwrites_x: x's gradient may be written over it.
        """


class GpuScanBase(OwnKernels):
    """A product for the gates of all steps, then one kernel. why: no cell but those of `cell_names` is run."""

    cell_names: tuple[str, ...]
    skip_reason: str
    operations: int  # of a gate

    def scan(self, case: Case, device: torch.device) -> tuple[Scan, str]:
        """The scan of the case's cell, compiled, and its form in words."""
        raise NotImplementedError

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in self.cell_names:
            return f"no {case.cell}: {', '.join(self.cell_names)} only, {self.skip_reason}"
        if reason := tf32_refusal(case):
            return reason
        return index_overflow_reason(case) or skip_reason(device)

    def build(self, case: Case, weights: Weights) -> Layer:
        device = with_index(case.device)
        scan, self._notes = self.scan(case, device)
        return _make_layer(case, weights, device, scan)

    def cost(self, case: Case) -> Cost:
        """A scan reads the pre-activations and writes the output; backward it reads both and a gradient, and writes one."""
        from pytest_ecornn.implementations._common.input_projection import product_cost

        product, gates = product_cost(case), len(cells.get(case.cell).gates)
        scans, passes = (3 * gates + 3, 3) if case.training else (gates + 1, 1)
        elements = case.layers * case.directions * case.hidden_size * case.steps * case.batch
        moved = scans * elements * getattr(torch, case.dtype).itemsize
        return Cost(product.bytes + moved, product.operations + passes * elements * gates * self.operations)


def _make_layer(case: Case, weights: Weights, device: torch.device, scan: Scan) -> Layer:
    """All layers and directions of the case by `scan`, on `device`."""
    from pytest_ecornn.implementations._common.input_projection import gate_products

    def layer(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
        on_device = None if lengths is None else lengths.to(device, non_blocking=True)
        masks = on_device, None if resets is None else resets.view(torch.uint8)

        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
        ) -> tuple[Tensor, cells.GateTensors]:
            bias = None
            if not is_projected:
                x = gate_products(x, weights["weight_ih" + suffix], case.precision == "tf32")
                bias = weights.get("bias_ih" + suffix)
            output, final = scan(x, bias, state[0] if state else None, masks, reverse, not is_projected)
            return output, (final,)

        with torch.cuda.device(device):
            return run_layers(case, x, state, run_layer)

    return layer
