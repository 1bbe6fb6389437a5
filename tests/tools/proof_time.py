"""Where the time of a benchmark run goes: `python -m tests.tools.proof_time [--root FOLDER] [OPTION ...]`.

Runs `pytest --ecornn-bench` with a kernel cache of its own, and prints each row's seconds as it comes: of this process, and in
brackets of the process that proved it. FOLDER: of another checkout of this repository, whose package is run instead. OPTION:
pytest's, by default those of a short run on a GPU.
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
import os, time
from collections import Counter

seconds, start, stdout = Counter(), time.monotonic(), os.fdopen(os.dup(1), "w")  # before pytest captures it

def say(text):
    print(f"{time.monotonic() - start:4.0f} s {text}", file=stdout, flush=True)

def totals():
    say("by kind: " + ", ".join(f"{kind} {spent:.0f} s" for kind, spent in seconds.items()))

def pytest_runtest_logreport(report):
    label = report.nodeid.partition("::")[2]
    seconds[label.partition("[")[0]] += report.duration
    if report.when == "call":
        own = getattr(report, "ecornn_row", {}).get("seconds", 0.0)
        say(f"{label} {report.duration:.1f} ({own:.1f})")
        if label.startswith("test_benchmark"):
            totals()

def pytest_sessionfinish():
    totals()
"""


def measure(root: Path, options: list[str]) -> int:
    """Prints the total and each kind's seconds; returns pytest's exit status."""
    has_plugin = any(one.name == "ecornn" for one in metadata.entry_points(group="pytest11"))
    named = [] if has_plugin else ["-p", "pytest_ecornn.plugin"]
    plugins = ["-p", "no:cacheprovider", *named, "-p", "seconds_of_rows"]
    command = [sys.executable, "-m", "pytest", "-qq", *plugins, "--ecornn-bench"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "seconds_of_rows.py").write_text(_PLUGIN)
        environment = {**os.environ, "PYTHONPATH": f"{root}:{folder}", "XDG_CACHE_HOME": str(folder / "cache")}
        start = time.monotonic()
        done = subprocess.run([*command, *options], cwd=folder, env=environment, check=False)
        print(f"{root}: {time.monotonic() - start:.0f} s in all, status {done.returncode}")
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    given, options = parser.parse_known_args()
    return measure(given.root.resolve(), options or list(OPTIONS))


if __name__ == "__main__":
    sys.exit(main())
