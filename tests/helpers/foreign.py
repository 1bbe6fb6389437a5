"""A directory that knows nothing of this repository, in which end-to-end tests run the plugin as its users do."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
BaselineProbe.doubts = lambda self, beside: {}
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


class Foreign:
    """A directory that is not this repository, with a virtual environment's pytest at hand.

    Its processes, workers of pytest-xdist among them, are forked from one that has imported what takes seconds and has run
    nothing. `fresh` is for tests of what is imported when, or of how a process starts: these get a new Python.
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, name: str, text: str) -> Path:
        (self.path / name).write_text(text)
        return self.path / name

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

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Of `-m MODULE ...` or `-c CODE ...`."""
        command = [sys.executable, "-IS", _FORK_CLIENT, _fork_server(), *arguments]
        return subprocess.run(command, cwd=self.path, env=environment(), capture_output=True, text=True, timeout=240)

    def rows(self) -> dict[str, dict[str, Any]]:
        report = json.loads((self.path / "reports/local/report.json").read_text())
        rows = sorted(report["rows"], key=lambda row: row["kind"] == "benchmark")  # which stand for their cases
        return {f"{row['implementation']}-{row['case']}": row for row in rows if row["kind"] != "control"}

    def rows_by_key(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """By kind, implementation and case."""
        report = json.loads((self.path / "reports/local/report.json").read_text())
        return {(row["kind"], row["implementation"], row["case"]): row for row in report["rows"]}
