"""Where the time of a benchmark run goes: `python -m tests.proof_time [--root FOLDER] [OPTION ...]`.

Runs `pytest --ecornn-bench` with a kernel cache of its own, and prints seconds by kind of row. FOLDER: of another checkout of
this repository, whose package is run instead. OPTION: pytest's, by default those of a short run on a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

OPTIONS = ("--ecornn-device", "cuda", "--ecornn-budget", "2")
_PLUGIN = """
import json
from collections import Counter

seconds = Counter()

def pytest_runtest_logreport(report):
    seconds[report.nodeid.partition("::")[2].partition("[")[0]] += report.duration

def pytest_sessionfinish():
    with open("seconds.json", "w") as file:
        json.dump(seconds, file)
"""


def measure(root: Path, options: list[str]) -> int:
    """Prints the total and each kind's seconds; returns pytest's exit status."""
    has_plugin = any(one.name == "ecornn" for one in metadata.entry_points(group="pytest11"))
    named = [] if has_plugin else ["-p", "pytest_ecornn.plugin"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *named,
        "-p",
        "seconds_of_rows",
        "--ecornn-bench",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "seconds_of_rows.py").write_text(_PLUGIN)
        environment = {**os.environ, "PYTHONPATH": f"{root}:{folder}", "XDG_CACHE_HOME": str(folder / "cache")}
        start = time.monotonic()
        done = subprocess.run([*command, *options], cwd=folder, env=environment, check=False)
        print(f"{root}: {time.monotonic() - start:.0f} s in all, status {done.returncode}")
        print((folder / "seconds.json").read_text())
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    given, options = parser.parse_known_args()
    return measure(given.root.resolve(), options or list(OPTIONS))


if __name__ == "__main__":
    sys.exit(main())
