"""Base of the adapters to other people's scans: the cases that they refuse, what they declare, and their layer."""

from __future__ import annotations

import importlib
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import Case, Cost, Layer, Weights, cells
from pytest_ecornn.implementations._common.autograd_ops import refuse_second_gradients
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.reference.precision import tf32_refusal


@cache
def import_quietly(module: str) -> ModuleType:
    """The module, without the warnings of its import: of what it lacks, of what it uses that torch gives up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def can_compile() -> bool:
    """Whether torch can compile their extensions: by nvcc, and ninja."""
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_HOME is not None and shutil.which("ninja") is not None


class ScanPipeline(NamedTuple):
    """prepare(x, first, cell, kernel, bias) -> tensors; scan(*tensors, kernel) -> states; finish(states, x) -> outputs.

    Called, it makes outputs in x's dtype, differentiable once. x: pre-activations. first: [B, H], None for zeros. bias: [G*H],
    added to x. Raises ValueError for a kernel or cell that there is not, and for more steps than a kernel takes.
    """

    prepare: Callable[..., tuple[Any, ...]]
    scan: Callable[..., Tensor]
    finish: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor, first: Tensor | None, cell: str, kernel: str, bias: Tensor | None) -> Tensor:
        given = self.prepare(x, first, cell, kernel, bias)
        refuse_second_gradients(kernel, given)
        return self.finish(self.scan(*given, kernel), x)

    def compiled(self) -> ScanPipeline:
        """Returns a copy whose torch parts are compiled at the first call; the scan is a kernel already."""
        return self._replace(prepare=compiled_copy(self.prepare), finish=compiled_copy(self.finish))


def compiled_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy, as torch counts how often it compiles a piece of code, of whatever layer, and soon gives up.

    Without torch's warnings while it compiles: of precisions that were chosen, of tensors that it looks at.
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, closure=function.__closure__)
    compiled = torch.compile(copy, fullgraph=True, dynamic=False)

    def quiet(*arguments: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiled(*arguments)

    return quiet


def input_gate_and_candidate(x: Tensor, cell: str, dimension: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the pre-activation of the candidate's share, of which sigmoid is that share, and the candidate.

    x: pre-activations, G*H in `dimension`. bias: [G*H], added to x; no extra operation where x is narrower. Computes in float32
    at least: in 16 bits 1 - z loses z where z is small. Raises ValueError for a cell of another kind.
    """
    if cell not in MIN_CELLS:
        raise ValueError(f"cell must be one of {', '.join(MIN_CELLS)}, whose state is linear in the one before; got {cell!r}")
    compute = torch.promote_types(x.dtype, torch.float32)
    if bias is not None and dimension == 1:
        bias = bias[:, None]
    gates = (x.to(compute) if bias is None else x + bias.to(compute)).chunk(len(cells.get(cell).gates), dimension)
    opening = gates[0] if len(gates) == 2 else logsigmoid(gates[1]) - logsigmoid(gates[0])
    return opening, cells.positive(gates[-1]) if cell.endswith("_positive") else gates[-1]


class ThirdPartyScan(Noted):
    """`is_compiled`: torch's part, the gates and the copies, by torch.compile."""

    carry = "float32"
    gate_gradients = "storage"
    products = "storage"
    deterministic = True
    is_compiled = False

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
    return missing_packages(packages, "peers") if device.type == "cuda" else "runs on a CUDA device"


def missing_packages(packages: tuple[str, ...], extra: str) -> str | None:
    """Which of the packages are not installed, and the extra that installs them, or None."""
    missing = [name for name in packages if find_spec(name) is None]
    return f"needs {' and '.join(missing)} (pip install pytest-ecornn[{extra}])" if missing else None
