"""Other people's packages, imported when they are first needed."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from types import ModuleType


@cache
def imported(module: str) -> ModuleType:
    """The module, without the warnings of its import: of what it lacks, of what it uses that torch gives up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)
