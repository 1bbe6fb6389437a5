"""The shipped suites: which tests a run collects, the ids of these, and what a test does by its id.

Their node ids are pytest_ecornn/suites/FILE::TEST wherever the package lies, and valid as arguments. Outside its root directory
pytest would give a module no id of its own, and in a clone import it as suites.FILE.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from pytest_ecornn.system.package_folders import SUITES

_PACKAGE = __name__.partition(".")[0]
_FOLDERS = (SUITES, SUITES.resolve())
_PREFIX = f"{_PACKAGE}/suites"
_KINDS = {  # of the rows that each test fills
    "test_benchmark": "benchmark",
    "test_control": "control",
    "test_fixed_case": "fixed",
    "test_drawn_cases": "drawn",
    "test_properties": "properties",
}
_TIMED_KINDS = ("benchmark", "control")


class _ShippedModule(pytest.Module):
    def _getobj(self) -> ModuleType:
        return import_module(f"{_PACKAGE}.suites.{self.path.stem}")


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


def label_of_node(nodeid: str) -> str:
    """The text in the node id's brackets; empty without brackets."""
    return nodeid.partition("[")[2].removesuffix("]")


def kind_of_node(nodeid: str) -> str | None:
    """The kind of the row that one of our tests fills, by its id; None for another test."""
    return _KINDS.get(nodeid.partition("[")[0].rpartition("::")[2])


def is_timed_node(nodeid: str) -> bool:
    """Whether a test, by its id, fills a timed row."""
    return kind_of_node(nodeid) in _TIMED_KINDS


def is_narrowed(config: pytest.Config) -> bool:
    """Whether the user left tests out by name or by an earlier run's failures."""
    setting = config.option
    return any(getattr(setting, name, None) for name in ("keyword", "markexpr", "deselect", "lf", "stepwise"))


def select_suites(config: pytest.Config, names: Iterable[str]) -> None:
    """Collects the shipped suites of these file names: alone where no path is given, else after what the paths hold.

    A path into the suites, also as a repository's own suites/ or by --pyargs, is the user's choice of them: none is added.
    """
    shipped = [str(SUITES / name) for name in names]
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        config.args[:] = shipped
        return
    config.args[:] = [_shipped(config, _resolved(config, argument)) for argument in config.args]
    if not any(_is_shipped(config, argument) for argument in config.args):
        config.args += shipped


def _resolved(config: pytest.Config, argument: str) -> str:
    """The argument, as the path of a shipped suite where it is the id of one that does not lie there."""
    path, *names = argument.split("::")
    absolute = Path(os.path.normpath(config.invocation_params.dir / path))
    for folder in (config.rootpath, config.invocation_params.dir):
        if absolute.is_relative_to(folder / _PREFIX) and not absolute.exists():
            return "::".join([str(SUITES / absolute.relative_to(folder / _PREFIX)), *names])
    return argument


def _shipped(config: pytest.Config, argument: str) -> str:
    """The argument, as a path into the installed suites where it means them."""
    path, *rest = argument.split("::")
    real, suites = (config.invocation_params.dir / path).resolve(), SUITES.resolve()
    return "::".join([str(SUITES / real.relative_to(suites)), *rest]) if real.is_relative_to(suites) else argument


def _is_shipped(config: pytest.Config, argument: str) -> bool:
    name = argument.partition("::")[0]
    is_module = config.option.pyargs and (name == _PACKAGE or name.startswith(f"{_PACKAGE}."))
    return is_module or Path(name).is_relative_to(SUITES)
