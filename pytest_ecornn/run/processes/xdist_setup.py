"""Rows in workers of pytest-xdist: what it and pytest-timeout are told before they read their options.

Usage errors come before torch, or Ray, is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest

from pytest_ecornn.run.suites import is_narrowed

# pytest-benchmark's options for what it measured, which is nothing in workers.
_USES_OF_BENCHMARKS = ("json", "save", "autosave", "compare", "histogram", "only")
_NEEDED = {"xdist": "pytest-xdist", "timeout": "pytest-timeout"}


def configure_isolation(config: pytest.Config) -> None:
    """Sets the options that isolation needs and the user did not give. Raises UsageError for what cannot go with it."""
    if _is_worker_set_up(config, "--ecornn-isolate"):
        return
    setting = config.option
    if setting.numprocesses == 0:
        raise pytest.UsageError("--ecornn-isolate runs rows in workers, so -n must not be 0")
    if setting.dist not in ("no", "load"):
        raise pytest.UsageError(f"--ecornn-isolate hands out rows itself: leave out --dist {setting.dist}")
    if setting.numprocesses is None and not setting.tx:
        setting.numprocesses = 1
    _restart_workers(config)


def configure_gpu_run(config: pytest.Config) -> None:
    """Makes `-n auto` the default of a run on a GPU."""
    if hasattr(config, "workerinput"):
        config.option.benchmark_disable = True  # as it is anyway; else each worker warns of that
        return
    if not config.pluginmanager.hasplugin("xdist"):
        return
    _restart_workers(config)
    if not _may_have_workers(config):
        return
    from pytest_ecornn.run.processes.gpu_workers import auto_worker_count

    count = auto_worker_count(config.getoption("--ecornn-device")) or 1
    if count > 1:  # one worker would do what this process can
        config.option.numprocesses = count
        config.option.benchmark_disable = True  # as pytest-xdist makes it, with a warning


def _may_have_workers(config: pytest.Config) -> bool:
    """Whether all shipped rows run and nothing else, and the user has not said where or asked to look on."""
    setting = config.option
    is_placed = setting.numprocesses is not None or setting.dist != "no" or setting.tx or setting.distload
    is_watched = setting.usepdb or setting.trace or setting.collectonly
    is_part = bool(config.getoption("--ecornn-case")) or is_narrowed(config)
    is_own = config.args_source == pytest.Config.ArgsSource.ARGS or bool(config.invocation_params.plugins)
    is_kept = any(getattr(setting, f"benchmark_{name}", None) for name in _USES_OF_BENCHMARKS)
    return not (is_placed or is_watched or is_part or is_own or is_kept)


def _is_worker_set_up(config: pytest.Config, flag: str) -> bool:
    """Whether this is a worker, the time of whose rows is set then. Raises UsageError where the flag lacks a plugin."""
    missing = [package for name, package in _NEEDED.items() if not config.pluginmanager.hasplugin(name)]
    if missing:
        raise pytest.UsageError(f"{flag} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if not hasattr(config, "workerinput"):
        return False
    config.option.timeout, config.option.timeout_method = config.getoption("--ecornn-timeout"), "thread"
    return True


def _restart_workers(config: pytest.Config) -> None:
    """Lifts pytest-xdist's limit on workers that are replaced, unless one was given."""
    if config.option.maxworkerrestart is None:
        config.option.maxworkerrestart = str(sys.maxsize)


def configure_ray_run(config: pytest.Config) -> None:
    """Sets what pytest-xdist needs for --ecornn-ray. Raises UsageError for what cannot go with a cluster."""
    if _is_worker_set_up(config, "--ecornn-ray"):
        return
    if importlib.util.find_spec("ray") is None:
        raise pytest.UsageError("--ecornn-ray needs Ray: pip install 'pytest-ecornn[ray]'")
    if placing := next(_placing_options(config), ""):
        raise pytest.UsageError(f"--ecornn-ray places workers itself: leave out {placing}")
    if config.getoption("--ecornn-compare"):
        raise pytest.UsageError("--ecornn-ray: leave out --ecornn-compare, which measures rows again in this process")
    if config.getoption("--ecornn-replicates") != 1:
        raise pytest.UsageError("--ecornn-ray: leave out --ecornn-replicates, whose processes would lack the workers' places")
    for device in config.getoption("--ecornn-device"):
        if device.startswith("cuda:"):
            raise pytest.UsageError(f"--ecornn-ray gives each worker one GPU: expected --ecornn-device cuda, got {device}")
    _restart_workers(config)
    config.option.dist = "load"


def _placing_options(config: pytest.Config) -> Iterator[str]:
    """Options that place workers too, as given."""
    setting = config.option
    if setting.numprocesses is not None:
        yield f"-n {setting.numprocesses}"
    if setting.dist != "no":
        yield f"--dist {setting.dist}"
    if setting.tx:
        yield f"--tx {setting.tx[0]}"
    yield from (flag for flag, is_given in (("-d", setting.distload), ("--pdb", setting.usepdb)) if is_given)
