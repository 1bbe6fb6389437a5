"""The GPU for one test alone, a temporary folder for each process, and tests of `make test-all` alone."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.system.locking import MachineLock
from tests.helpers.foreign import foreign, own_folders  # noqa: F401 - fixtures
from tests.helpers.reporting.browser import browser, open_file, open_report  # noqa: F401 - fixtures
from tests.helpers.reporting.outputs import said  # noqa: F401 - a fixture
from tests.helpers.requirements import lacks_its_gpu
from tests.helpers.whole_suite import IS_TEST_ALL, SEED, hash_of, left_out, seed_of
from tests.simulator import clusters_on_cpu, launch_memo

_COUNTS = pytest.StashKey[Counter[str]]()  # of all workers
_OF_EACH_WORKER = ("left out", "need a GPU")  # what all of them count alike
_TESTS = Path(__file__).parent
_SECONDS = 300  # of a test; rows of the suites have no limit here, since one of the profile "thorough" may take longer
_has_gpu = torch.cuda.is_available()
if not _has_gpu:  # nothing is built beside simulated launches
    os.environ.setdefault("ECORNN_HOST", "python")


@pytest.fixture(autouse=True)
def _share_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `gpu_alone` time on the GPU: no other worker of this run tests meanwhile. Others run beside each other."""
    if not _has_gpu:
        yield
        return
    folder = Path(tempfile.gettempdir())
    lock = MachineLock(folder / "tests.lock", rows=folder)
    with lock.exclusive() if request.node.get_closest_marker("gpu_alone") else lock.shared():
        yield


@pytest.fixture(autouse=True)
def _orders_of_threads(request: pytest.FixtureRequest) -> None:
    """Simulated threads take turns in orders that are the test's own, so that a failure repeats whatever ran before it."""
    clusters_on_cpu.set_first_order(hash_of(seed_of(request.node.nodeid)))


def pytest_configure(config: pytest.Config) -> None:
    """Gives each process a temporary folder, and with it a machine lock, of its own: no test waits for another run's rows.

    Tests that run without a GPU time too briefly, and judge too coarsely, to need the machine alone. On a GPU the workers of a
    run share a folder, as their rows take turns there. Hypothesis draws the same
    examples in each `make test`, so that their launches are remembered, and new ones in `make test-all`.
    """
    config.stash[_COUNTS] = Counter()
    settings.register_profile("make test", derandomize=True)
    settings.load_profile("default" if IS_TEST_ALL else "make test")
    patch = pytest.MonkeyPatch()
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):  # runs of tests say nothing to a job of ours
        patch.delenv(name, raising=False)
    config.add_cleanup(patch.undo)
    is_worker, has_workers = hasattr(config, "workerinput"), bool(config.getoption("numprocesses", None))
    if is_worker if _has_gpu else has_workers and not is_worker:
        return  # a controller runs no test, and a worker's folder within its own would be too long for a socket's path
    folder = tempfile.TemporaryDirectory(prefix="ecornn-", ignore_cleanup_errors=True)
    patch.setenv("TMPDIR", folder.name)
    patch.setattr(tempfile, "tempdir", None)
    config.add_cleanup(folder.cleanup)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Makes none of the parameters of a test whose GPU is not there, unless ECORNN_GPU_TESTS asks for them."""
    if os.environ.get("ECORNN_GPU_TESTS") or not lacks_its_gpu(obj):
        return None
    collector.config.stash[_COUNTS]["need a GPU"] += 1
    return []


def pytest_report_header() -> str | None:
    return f"make test-all: ECORNN_TEST_SEED={SEED} draws the same orders of threads" if IS_TEST_ALL else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what only `make test-all` runs. What takes long comes first, lest one worker end with it alone."""
    dropped = left_out(items)
    if IS_TEST_ALL:
        for item in dropped:
            item.add_marker("only_test_all")
    elif dropped:
        config.stash[_COUNTS]["left out"] = len(dropped)
        config.hook.pytest_deselected(items=list(dropped))
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
    """Whether it runs pytest in another process, compiles for a GPU, or is `make test-all`'s alone."""
    needs = {"foreign", "capability"} & set(getattr(item, "fixturenames", ()))
    return bool(needs) or item.get_closest_marker("only_test_all") is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    counts = session.config.stash[_COUNTS]
    counts.update(launch_memo.counts)
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and counts["need a GPU"]:
        session.exitstatus = pytest.ExitCode.OK  # all of them would have been skipped
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["counts"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    counts, others = node.config.stash[_COUNTS], Counter(getattr(node, "workeroutput", {}).get("counts", {}))
    same = {name: max(counts.pop(name, 0), others.pop(name, 0)) for name in _OF_EACH_WORKER}
    counts.update(others)
    counts.update(same)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash[_COUNTS]
    if launches := counts["simulated"] + counts["remembered"]:
        terminalreporter.write_line(
            f"{launches} simulated launches, {counts['remembered']} of them remembered from earlier runs, "
            f"{counts['compared']} compared with these, {counts['unknown memory']} of unknown memory"
        )
    if counts["left out"]:
        terminalreporter.write_line(f"{counts['left out']} tests are left out: make test-all runs them too")
    if counts["need a GPU"]:
        terminalreporter.write_line(
            f"{counts['need a GPU']} test functions need another GPU: ECORNN_GPU_TESTS=1 makes their parameters too"
        )
