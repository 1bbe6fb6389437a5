"""Verify and time every implementation of a recurrent layer, from pytest.

Importing this package imports neither torch nor anything else that is slow: the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ecornn.contract import Case, Cost, Implementation, Unsupported, Weights
    from pytest_ecornn.contract.cells import Cell

__version__ = "0.1.0"
__all__ = ["Case", "Cell", "Cost", "Implementation", "Unsupported", "Weights", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("pytest_ecornn.contract.cells" if name == "Cell" else "pytest_ecornn.contract"), name)
