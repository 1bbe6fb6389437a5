"""A directory that knows nothing of this repository, in which end-to-end tests run the plugin as its users do."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.configuration
import pytest
from torch.utils._python_dispatch import _disable_current_modes

from pytest_ecornn.system import memory

BRIEFLY = ("--ecornn-budget", "0.1")
QUICK = (*BRIEFLY, "-p", "quickly")
_FORK_CLIENT = str(Path(__file__).with_name("fork_client.py"))
# What takes seconds and few tests are about: measuring the machine's ceilings, and simplifying a drawn case that failed.
_QUICKLY = """
from pytest_ecornn.measurement import roofline
from pytest_ecornn.run import exploration
from pytest_ecornn.run.items import drawn_items
exploration.SHRINK_SECONDS = 1.0
drawn_items.TIMED_REPEATS = 2
roofline.measure_ceilings = lambda dtypes, device: roofline.Ceilings({1: 1e6}, {1: 1e6}, dict.fromkeys(dtypes, 1e6))
"""
# Other tests run beside this: time in which another process runs is not counted, and no row is in doubt for it.
QUIET = """
from time import process_time
from pytest_ecornn.measurement.noise import baselines
from pytest_ecornn.measurement.noise.baselines import BaselineProbe
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.noise.watch import MachineLoad
WallTimer.time.__kwdefaults__["now"] = process_time
MachineLoad.load = lambda self: None
BaselineProbe.doubts = lambda self, name, beside_us: []
baselines.compare_with_own_rows = lambda rows: None
"""


def environment() -> dict[str, str]:
    """Ours, without what pytest and torch's compiler leave in it. One thread: other tests run beside.

    Bytecode is kept whatever we do: pytest rewrites all of Hypothesis and this plugin, in half of a short run's time.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TORCHINDUCTOR_", "TRITON_"))}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**own, "OMP_NUM_THREADS": "1"}


@functools.cache
def _fork_server() -> str:
    """The socket of this process's fork server, which has imported torch, Numba and Hypothesis. It ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="fork-server-"))
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(folder / "socket")]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, cwd=folder, env=environment(), start_new_session=True, **streams)  # type: ignore[call-overload]
    assert server.stdout.readline() == b"ready\n", f"the fork server ended with {server.wait()}"
    _running.append(server)
    return str(folder / "socket")


_running: list[subprocess.Popen[bytes]] = []  # whose standard input stays open as long as this process lives


# What pytest itself would change in this process: rewritten assertions of what is imported already, the dump of a crash.
HERE = ("-p", "no:cacheprovider", "-p", "no:faulthandler", "--assert=plain", "--capture=sys", "--noconftest")


class _RefusesRows:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        assert not item.nodeid.startswith("pytest_ecornn/"), "a row touches settings of its process: use Foreign.run"


@contextlib.contextmanager
def _same_process_after(folder: Path) -> Iterator[None]:
    """Within it, directory, environment and torch are those of a new process there; what that leaves is taken back."""
    allocator = memory.allocator_behaviour()
    variables = mock.patch.dict(os.environ, {**environment(), "COLUMNS": "80"}, clear=True)
    with variables, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), _disable_current_modes():
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr(hypothesis.configuration, "__hypothesis_home_directory", None)
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        try:
            yield
        finally:
            if allocator is not None:
                memory.set_allocator(allocator)
            for name, module in list(sys.modules.items()):
                if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
                    del sys.modules[name]


class Foreign:
    """A directory that is not this repository, with a virtual environment's pytest at hand.

    Its processes, workers of pytest-xdist among them, are forked from one that has imported what takes seconds and has run
    nothing. `fresh` is for tests of what is imported when, or of how a process starts: these get a new Python.
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def command(self, *arguments: str, fresh: bool = False) -> list[str]:
        if "quickly" in arguments:
            self.write("quickly.py", _QUICKLY)
        python = [sys.executable] if fresh else [sys.executable, "-IS", _FORK_CLIENT, _fork_server()]
        return [*python, "-m", "pytest", "-p", "no:cacheprovider", *arguments]

    def run(self, *arguments: str, check: int | None = None, fresh: bool = False) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, fresh=fresh)
        done = subprocess.run(command, cwd=self.path, env=environment(), capture_output=True, text=True, timeout=240)
        if check is not None:
            assert done.returncode == check, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    def run_here(self, *arguments: str, check: int) -> subprocess.CompletedProcess[str]:
        """In this process, without conftest.py: for usage errors, help and collection. Rows touch settings and are refused."""
        output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with _same_process_after(self.path), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = int(pytest.main([*HERE, *arguments], plugins=[_RefusesRows()]))
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read())
        assert status == check, "".join(text[-3000:] for text in texts)
        return subprocess.CompletedProcess(arguments, status, *texts)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Of `-m MODULE ...` or `-c CODE ...`."""
        command = [sys.executable, "-IS", _FORK_CLIENT, _fork_server(), *arguments]
        return subprocess.run(command, cwd=self.path, env=environment(), capture_output=True, text=True, timeout=240)

    def report(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.path / "reports/local/report.json").read_text())
        return data

    def junit(self) -> dict[str, ElementTree.Element]:
        """Each test of junit.xml by its name."""
        return {case.get("name") or "": case for case in ElementTree.parse(self.path / "junit.xml").iter("testcase")}

    def rows(self) -> dict[str, dict[str, Any]]:
        rows = sorted(self.report()["rows"], key=lambda row: row["kind"] == "benchmark")  # which stand for their cases
        return {f"{row['implementation']}-{row['case']}": row for row in rows if row["kind"] != "control"}

    def rows_by_key(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """By kind, implementation and case."""
        return {(row["kind"], row["implementation"], row["case"]): row for row in self.report()["rows"]}


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


@pytest.fixture
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary and a cache folder of its own, so that no other run on this machine takes part."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def only(*names: str) -> list[str]:
    """The options that select implementations."""
    return [argument for name in names for argument in ("--ecornn-only", name)]
