"""The GPU for one test alone, and tests of CI alone."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.system.locking import MachineLock
from tests.helpers.ci_only import is_left_out
from tests.helpers.reporting.browser import browser, open_file  # noqa: F401 - fixtures

_DESELECTED = pytest.StashKey[int]()
_GPU_LOCK = Path(tempfile.gettempdir()) / f"pytest-ecornn-tests-{os.getuid() if hasattr(os, 'getuid') else 'all'}.lock"
_TESTS = Path(__file__).parent
_SECONDS = 300  # of a test; rows of the suites have no limit here, since one of the profile "thorough" may take longer
_has_gpu = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _share_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `gpu_alone` time on the GPU: no test of another worker runs meanwhile. Others run beside each other."""
    if not _has_gpu:
        yield
        return
    lock = MachineLock(_GPU_LOCK)
    with lock.exclusive() if request.node.get_closest_marker("gpu_alone") else lock.shared():
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Gives each worker a temporary folder, and with it a machine lock, of its own: or all timed rows would queue in one line.

    Tests that run without a GPU time too briefly, and judge too coarsely, to need the machine alone.
    """
    if _has_gpu or not hasattr(config, "workerinput"):
        return
    folder, patch = tempfile.TemporaryDirectory(prefix="ecornn-", ignore_cleanup_errors=True), pytest.MonkeyPatch()
    patch.setenv("TMPDIR", folder.name)
    patch.setattr(tempfile, "tempdir", None)
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what only CI runs, unless ECORNN_CI is set. What takes long comes first, lest one worker end with it alone."""
    left_out = [item for item in items if is_left_out(item)]
    config.stash[_DESELECTED] = len(left_out)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [item for item in items if item not in dropped]
    for item in items:
        if item.path.is_relative_to(_TESTS):
            item.add_marker(pytest.mark.timeout(_SECONDS, method="thread"))
    items.sort(key=lambda item: not _takes_long(item))


def pytest_collection_finish() -> None:
    """Spares each search for garbage, one before each measurement, the 5,000 tests and all modules.

    Hypothesis registers its random numbers in the first run, and 6.100 warns where it finds no owner. It finds no frozen one.
    """
    settings(max_examples=1, database=None)(given(st.none())(lambda _: None))()
    gc.collect()
    gc.freeze()


def _takes_long(item: pytest.Item) -> bool:
    """Whether it runs pytest in another process, compiles for a GPU, or is CI's alone."""
    needs = {"foreign", "capability"} & set(getattr(item, "fixturenames", ()))
    return bool(needs) or item.get_closest_marker("ci_only") is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["deselected"] = session.config.stash.get(_DESELECTED, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    count = getattr(node, "workeroutput", {}).get("deselected", 0)
    node.config.stash[_DESELECTED] = max(count, node.config.stash.get(_DESELECTED, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(_DESELECTED, 0):
        terminalreporter.write_line(f"{count} tests are left out: ECORNN_CI=all runs them too")
