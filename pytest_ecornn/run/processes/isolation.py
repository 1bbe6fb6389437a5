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
    missing = [package for name, package in _NEEDED.items() if not config.pluginmanager.hasplugin(name)]
    if missing:
        raise pytest.UsageError(f"--ecornn-isolate needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    setting = config.option
    if hasattr(config, "workerinput"):
        setting.timeout, setting.timeout_method = config.getoption("--ecornn-timeout"), "thread"
        return
    if setting.numprocesses == 0:
        raise pytest.UsageError("--ecornn-isolate runs rows in workers, so -n must not be 0")
    if setting.dist not in ("no", "load"):
        raise pytest.UsageError(f"--ecornn-isolate hands out rows itself: leave out --dist {setting.dist}")
    if setting.numprocesses is None and not setting.tx:
        setting.numprocesses = 1
    if setting.maxworkerrestart is None:
        setting.maxworkerrestart = str(sys.maxsize)


def register(config: pytest.Config, running: RunPlugin) -> None:
    """Registers the hooks of the process that hands out rows, or of one that runs them."""
    if hasattr(config, "workerinput"):
        from pytest_ecornn.run.processes.worker import Worker

        config.pluginmanager.register(Worker(config, running.session), "ecornn-worker")
    elif not config.option.collectonly:
        from pytest_ecornn.run.processes.controller import XdistController

        config.pluginmanager.register(XdistController(running), "ecornn-controller")
