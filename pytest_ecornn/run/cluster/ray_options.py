"""The option --ecornn-ray: what goes with it.

It is read before pytest-xdist reads its options, so neither torch nor Ray here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from pytest_ecornn.run.processes import xdist_setup


def configure_options(config: pytest.Config) -> None:
    """Sets what pytest-xdist needs. Raises UsageError for what cannot go with a cluster."""
    xdist_setup.require_plugins(config, "--ecornn-ray")
    if hasattr(config, "workerinput"):
        xdist_setup.limit_rows(config)
        return
    if importlib.util.find_spec("ray") is None:
        raise pytest.UsageError("--ecornn-ray needs Ray: pip install 'pytest-ecornn[ray]'")
    if given := next(_given_beside(config), ""):
        raise pytest.UsageError(f"--ecornn-ray places workers itself: leave out {given}")
    if config.getoption("--ecornn-compare"):
        raise pytest.UsageError("--ecornn-ray: leave out --ecornn-compare, which measures rows again in this process")
    for device in config.getoption("--ecornn-device"):
        if device.startswith("cuda:"):
            raise pytest.UsageError(f"--ecornn-ray gives each worker one GPU: expected --ecornn-device cuda, got {device}")
    xdist_setup.restart_workers(config)
    config.option.dist = "load"


def _given_beside(config: pytest.Config) -> Iterator[str]:
    """Options that place workers too, as given."""
    setting = config.option
    if setting.numprocesses is not None:
        yield f"-n {setting.numprocesses}"
    if setting.dist != "no":
        yield f"--dist {setting.dist}"
    if setting.tx:
        yield f"--tx {setting.tx[0]}"
    yield from (flag for flag, is_given in (("-d", setting.distload), ("--pdb", setting.usepdb)) if is_given)
