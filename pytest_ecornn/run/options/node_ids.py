"""Node ids of the shipped suites: pytest_ecornn/suites/FILE::TEST wherever the package lies, and valid as arguments.

Outside its root directory pytest would give a module no id of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SUITES = Path(__file__).parents[2] / "suites"
_PREFIX = "pytest_ecornn/suites"


def make_module(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """The module of a shipped suite, with its id; None for any other file."""
    if module_path.parent not in (_SUITES, _SUITES.resolve()):
        return None
    module: pytest.Module = pytest.Module.from_parent(parent, path=module_path, nodeid=f"{_PREFIX}/{module_path.name}")
    return module


def resolve_argument(config: pytest.Config, argument: str) -> str:
    """The argument, as the path of a shipped suite where it is the id of one that does not lie there."""
    path, *names = argument.split("::")
    absolute = Path(os.path.normpath(config.invocation_params.dir / path))
    for folder in (config.rootpath, config.invocation_params.dir):
        if absolute.is_relative_to(folder / _PREFIX) and not absolute.exists():
            return "::".join([str(_SUITES / absolute.relative_to(folder / _PREFIX)), *names])
    return argument
