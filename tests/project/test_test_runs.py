"""Runs of this project's own tests: none waits for other runs' rows, with a GPU or without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ecornn.system.locking import MachineLock
from tests.helpers.foreign import environment

ROOT = Path(__file__).parents[2]
_PLUGIN = """
from pathlib import Path
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "_has_gpu"):
            plugin._has_gpu = {has_gpu}

def pytest_runtest_call(item):
    from pytest_ecornn.system.locking import MachineLock
    lock = MachineLock()
    with lock.exclusive(), lock.turn() as waited, Path({log!r}).open("a") as log:
        print(lock.path, waited, file=log)
"""
_TESTS = "tests/results/test_shard.py"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("has_gpu", [False, True])
def test_no_test_waits_for_the_machine_that_another_run_has(tmp_path: Path, workers: int, has_gpu: bool) -> None:
    log = tmp_path / "log"
    (tmp_path / "looks.py").write_text(_PLUGIN.format(has_gpu=has_gpu, log=str(log)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "looks", "-p", "no:cacheprovider", "-n", str(workers), _TESTS]
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    lock = MachineLock()
    with lock.exclusive(), lock.turn():
        done = subprocess.run(
            command, cwd=ROOT, env={**environment(), "PYTHONPATH": paths}, capture_output=True, text=True, timeout=50
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    places, waits = zip(*(line.split() for line in log.read_text().splitlines()), strict=True)
    assert str(lock.path) not in places
    assert max(map(float, waits)) < 10
    assert len({*places}) == (2 if workers and not has_gpu else 1), "workers on a GPU share it"
