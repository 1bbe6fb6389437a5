"""Rows in processes that may die: what pytest-xdist and pytest-timeout must be told for it, and the hooks of either side.

It is set before pytest-xdist reads its options, so no torch here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ecornn.run.hooks.running import RunPlugin

_NEEDED = {"xdist": "pytest-xdist", "timeout": "pytest-timeout"}


def configure_options(config: pytest.Config) -> None:
    """Sets the options that isolation needs and the user did not give. Raises UsageError for what cannot go with it."""
    require_plugins(config, "--ecornn-isolate")
    if hasattr(config, "workerinput"):
        limit_rows(config)
        return
    setting = config.option
    if setting.numprocesses == 0:
        raise pytest.UsageError("--ecornn-isolate runs rows in workers, so -n must not be 0")
    if setting.dist not in ("no", "load"):
        raise pytest.UsageError(f"--ecornn-isolate hands out rows itself: leave out --dist {setting.dist}")
    if setting.numprocesses is None and not setting.tx:
        setting.numprocesses = 1
    restart_workers(config)


def require_plugins(config: pytest.Config, flag: str) -> None:
    """Raises UsageError where the flag cannot work for lack of a plugin."""
    missing = [package for name, package in _NEEDED.items() if not config.pluginmanager.hasplugin(name)]
    if missing:
        raise pytest.UsageError(f"{flag} needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def limit_rows(config: pytest.Config) -> None:
    """Sets the time that a row may take in a worker."""
    config.option.timeout, config.option.timeout_method = config.getoption("--ecornn-timeout"), "thread"


def restart_workers(config: pytest.Config) -> None:
    """Lifts pytest-xdist's limit on workers that are replaced, unless one was given."""
    if config.option.maxworkerrestart is None:
        config.option.maxworkerrestart = str(sys.maxsize)


def register(config: pytest.Config, running: RunPlugin) -> None:
    """Registers the hooks of the process that hands out rows, or of one that runs them."""
    if hasattr(config, "workerinput"):
        from pytest_ecornn.run.processes.worker import Worker

        config.pluginmanager.register(Worker(config, running.session), "ecornn-worker")
    elif config.option.collectonly:
        return
    elif config.getoption("--ecornn-ray") is not None:
        from pytest_ecornn.run.cluster.ray_options import register_cluster

        register_cluster(config, running)
    else:
        from pytest_ecornn.run.processes.controller import XdistController

        config.pluginmanager.register(XdistController(running), "ecornn-controller")
