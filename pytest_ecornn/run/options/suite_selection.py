"""Selects the tests that a run collects: the shipped suites, and beside them the user's own where paths are given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_ecornn.run.options.node_ids import resolve_argument
from pytest_ecornn.system.package_folders import SUITES

_PACKAGE = __name__.partition(".")[0]


def select_suites(config: pytest.Config, names: Iterable[str]) -> None:
    """Collects the shipped suites of these file names: alone where no path is given, else after what the paths hold.

    A path into the suites, also as a repository's own suites/ or by --pyargs, is the user's choice of them: none is added.
    """
    shipped = [str(SUITES / name) for name in names]
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        config.args[:] = shipped
        return
    config.args[:] = [_shipped(config, resolve_argument(config, argument)) for argument in config.args]
    if not any(_is_shipped(config, argument) for argument in config.args):
        config.args += shipped


def _shipped(config: pytest.Config, argument: str) -> str:
    """The argument, as a path into the installed suites where it means them."""
    path, *rest = argument.split("::")
    real, suites = (config.invocation_params.dir / path).resolve(), SUITES.resolve()
    return "::".join([str(SUITES / real.relative_to(suites)), *rest]) if real.is_relative_to(suites) else argument


def _is_shipped(config: pytest.Config, argument: str) -> bool:
    name = argument.partition("::")[0]
    is_module = config.option.pyargs and (name == _PACKAGE or name.startswith(f"{_PACKAGE}."))
    return is_module or Path(name).is_relative_to(SUITES)
