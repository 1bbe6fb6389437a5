"""Node ids of the shipped suites: pytest_ecornn/suites/FILE::TEST wherever the package lies, and valid as arguments.

Outside its root directory pytest would give a module no id of its own, and in a clone import it as suites.FILE.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from pytest_ecornn.system.package_folders import SUITES

_PREFIX = "pytest_ecornn/suites"
_FOLDERS = (SUITES, SUITES.resolve())


class _ShippedModule(pytest.Module):
    def _getobj(self) -> ModuleType:
        return import_module(f"pytest_ecornn.suites.{self.path.stem}")


def make_folder(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """The folder of the shipped suites, which pytest would import as suites in a clone; None for any other folder."""
    folder: pytest.Dir | None = pytest.Dir.from_parent(parent, path=path) if path in _FOLDERS else None
    return folder


def make_module(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """The module of a shipped suite, with its id; None for any other file."""
    if module_path.parent not in _FOLDERS:
        return None
    module: pytest.Module = _ShippedModule.from_parent(parent, path=module_path, nodeid=f"{_PREFIX}/{module_path.name}")
    return module


def resolve_argument(config: pytest.Config, argument: str) -> str:
    """The argument, as the path of a shipped suite where it is the id of one that does not lie there."""
    path, *names = argument.split("::")
    absolute = Path(os.path.normpath(config.invocation_params.dir / path))
    for folder in (config.rootpath, config.invocation_params.dir):
        if absolute.is_relative_to(folder / _PREFIX) and not absolute.exists():
            return "::".join([str(SUITES / absolute.relative_to(folder / _PREFIX)), *names])
    return argument
