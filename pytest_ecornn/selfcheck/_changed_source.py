"""fused_cpu with a fault in its text: of a compiled kernel no part can be replaced from outside.

All files of the package are copied, and what registers its ops, so that no module or op of the right one is touched.
"""

from __future__ import annotations

import atexit
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import torch

from pytest_ecornn.contract import Case, Implementation, Layer, Precision, WeightRounding, Weights
from pytest_ecornn.implementations import fused_cpu
from pytest_ecornn.implementations._common import autograd_ops
from pytest_ecornn.system.scratch import Scratch

_PARENT = "ecornn_changed_sources"  # a package that stands for the folder of copies


class ChangedFusedCpu(Implementation):
    """fused_cpu, where a file has `replacement` in the place of `text`."""

    carry: Precision = "float32"
    weight_rounding: WeightRounding = "none"
    deterministic = True
    takes_resets = True
    file: ClassVar[str]
    text: ClassVar[str]
    replacement: ClassVar[str]

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return fused_cpu.FusedCpu().unsupported(case, device)

    def build(self, case: Case, weights: Weights) -> Layer:
        package = changed_package(f"fused_cpu_{type(self).__name__}", self.file, self.text, self.replacement)
        implementation = package.FusedCpu()
        implementation.weight_rounding = self.weight_rounding
        layer: Layer = implementation.build(case, weights)
        return layer


@cache
def changed_package(name: str, file: str, text: str, replacement: str) -> ModuleType:
    """A copy of the package, imported. Raises ValueError where the file has the text not exactly once."""
    package, folder = f"{_PARENT}.{name}", _parent() / name
    renamed = {
        fused_cpu.__name__: package,
        autograd_ops.__name__: f"{package}.autograd_ops",
        "torch.ops.pytest_ecornn": f"torch.ops.{name}",
        '"pytest_ecornn"': f'"{name}"',
        '"pytest_ecornn::': f'"{name}::',
    }
    folder.mkdir()
    for source in (*Path(fused_cpu.__file__).parent.glob("*.py"), Path(autograd_ops.__file__)):
        content = source.read_text(encoding="utf-8")
        if source.name == file:
            if (count := content.count(text)) != 1:
                raise ValueError(f"{file}: expected once the text that a fault replaces, got it {count} times: {text}")
            content = content.replace(text, replacement)
        for old, new in renamed.items():
            content = content.replace(old, new)
        (folder / source.name).write_text(content, encoding="utf-8")
    return import_module(package)


@cache
def _parent() -> Path:
    scratch, package = Scratch(), ModuleType(_PARENT)
    atexit.register(scratch.remove)
    package.__path__ = [str(scratch.path)]
    sys.modules[_PARENT] = package
    return scratch.path
