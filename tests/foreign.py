"""A directory that knows nothing of this repository, in which end-to-end tests run the plugin as its users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BRIEFLY = ("--ecornn-budget", "0.1")
QUICK = (*BRIEFLY, "-p", "quickly")
# What takes seconds and few tests are about: measuring the machine's ceilings, and simplifying a drawn case that failed.
_QUICKLY = """
from pytest_ecornn import exploration, roofline
exploration.SIMPLIFY_SECONDS = 1.0
roofline.measure_ceilings = lambda dtypes, device: roofline.Ceilings({1: 1e6}, {1: 1e6}, dict.fromkeys(dtypes, 1e6))
"""


def environment() -> dict[str, str]:
    """Ours, without what a run under xdist leaves in it. One thread: other tests run beside.

    Bytecode is kept whatever we do: pytest rewrites all of Hypothesis and this plugin, in half of a short run's time.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**own, "OMP_NUM_THREADS": "1"}


class Foreign:
    """A directory that is not this repository, with a virtual environment's pytest at hand."""

    def __init__(self, path: Path):
        self.path = path

    def write(self, name: str, text: str) -> Path:
        (self.path / name).write_text(text)
        return self.path / name

    def command(self, *arguments: str) -> list[str]:
        if "quickly" in arguments:
            self.write("quickly.py", _QUICKLY)
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]

    def run(self, *arguments: str, check: int | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments), cwd=self.path, env=environment(), capture_output=True, text=True, timeout=240
        )
        if check is not None:
            assert done.returncode == check, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    def rows(self) -> dict[str, dict[str, Any]]:
        report = json.loads((self.path / "reports/local/report.json").read_text())
        return {f"{row['implementation']}-{row['case']}": row for row in report["rows"] if row["kind"] != "control"}
