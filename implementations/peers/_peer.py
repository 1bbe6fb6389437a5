"""Base of the adapters to other people's scans: the cases that they refuse, what they declare, and their layer."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, Weights, cells
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS
from pytest_ecornn.implementations.peers._packages import import_quietly
from pytest_ecornn.implementations.peers._parts import ScanPipeline
from pytest_ecornn.reference.precision import tf32_refusal

INSTALL = "pip install pytest-ecornn[peers]"


class ThirdPartyScan(Implementation):
    """`is_compiled`: torch's part, the gates and the copies, by torch.compile."""

    carry = "float32"
    gate_gradients = "storage"
    products = "storage"
    deterministic = True
    is_compiled = False

    def __init__(self) -> None:
        self._notes = ""

    def layer(self, case: Case, weights: Weights, run: ScanPipeline, kernel: str) -> Layer:
        """Makes the layer of a scan over [B, T, G*H]."""
        from pytest_ecornn.implementations._common.input_projection import gate_products
        from pytest_ecornn.implementations._common.scan_layer import make_layer

        def product(x: Tensor, weight: Tensor) -> Tensor:
            return gate_products(x, weight, case.precision == "tf32")

        def scan(x: Tensor, first: Tensor | None, bias: Tensor | None) -> Tensor:
            if case.batch_first:
                return run(x, first, case.cell, kernel, bias)
            return run(x.transpose(0, 1), first, case.cell, kernel, bias).transpose(0, 1)

        return make_layer(case, weights, product, scan)

    def scan_cost(self, case: Case, eager: int, scan: int) -> Cost:
        """eager: values that minGRU's operations of torch move for an output element where each runs by itself."""
        from pytest_ecornn.implementations._common.scan_layer import scan_cost

        gates = len(cells.get(case.cell).gates)
        more = 7 * (gates == 3) + 9 * case.cell.endswith("_positive")
        return scan_cost(case, scan + (gates + 2 if self.is_compiled else eager + more))

    def set_notes(self, package: str, kernel: str) -> None:
        version = getattr(import_quietly(package), "__version__", "of unknown version")
        self._notes = f"{package} {version}, {kernel}"

    def notes(self) -> str:
        return self._notes


def skip_reason(case: Case, device: torch.device, packages: tuple[str, ...]) -> str | None:
    """Why none of them runs the case on the device, or None."""
    if case.cell not in MIN_CELLS:
        return f"no {case.cell}: {', '.join(MIN_CELLS)} only, whose state is linear in the one before"
    if case.ragged:
        return "runs sequences of one length"
    if case.dtype == "float64":
        return "scans in float32"
    if "infinite" in case.contents:
        return "makes NaN of what is infinite, by a product of what is kept that underflows"
    return tf32_refusal(case) or device_skip_reason(device, packages)


def device_skip_reason(device: torch.device, packages: tuple[str, ...]) -> str | None:
    """Why nothing that needs the packages runs on the device, or None."""
    if device.type != "cuda":
        return "runs on a CUDA device"
    if missing := [name for name in packages if find_spec(name) is None]:
        return f"needs {' and '.join(missing)} ({INSTALL})"
    return None
