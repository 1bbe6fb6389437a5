"""Verify and time every implementation of a recurrent layer, from pytest.

Importing this package imports neither torch nor anything else that is slow: the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ecornn.contract import Case, Cost, Implementation, SupportedCases, Unsupported, Weights
    from pytest_ecornn.contract.cells import Cell
    from pytest_ecornn.kernels.checking import check
    from pytest_ecornn.kernels.comparing import compare
    from pytest_ecornn.kernels.report import KernelReport, WrongKernel
    from pytest_ecornn.reporting import ReportError
    from pytest_ecornn.reporting.stored.load import Report, load_report

__version__ = "0.2.0"
__all__ = [
    "Case", "Cell", "Cost", "Implementation", "KernelReport", "Report", "ReportError", "SupportedCases", "Unsupported",
    "Weights", "WrongKernel", "__version__", "check", "compare", "load_report",
]  # fmt: skip
_MODULES = {
    "KernelReport": "pytest_ecornn.kernels.report", "WrongKernel": "pytest_ecornn.kernels.report",
    "check": "pytest_ecornn.kernels.checking", "compare": "pytest_ecornn.kernels.comparing",
    "Cell": "pytest_ecornn.contract.cells", "Report": "pytest_ecornn.reporting.stored.load",
    "ReportError": "pytest_ecornn.reporting", "load_report": "pytest_ecornn.reporting.stored.load",
}  # fmt: skip

if not (Path(__file__).parent / "implementations").is_dir():
    __path__.append(str(Path(__file__).parents[1]))  # a clone, where implementations/ and suites/ lie beside this package


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "pytest_ecornn.contract")), name)
