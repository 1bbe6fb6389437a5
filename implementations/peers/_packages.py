"""Other people's packages, imported when they are first needed."""

from __future__ import annotations

import importlib
import shutil
import warnings
from functools import cache
from types import ModuleType


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
