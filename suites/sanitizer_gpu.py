"""Runs the persistent kernels under compute-sanitizer on a CUDA device, each case of `soak_gpu` (8 steps at most) once.

`python -m pytest_ecornn.suites.sanitizer_gpu` does so under memcheck and racecheck, for a limited time each. Exit code 0: none
found anything; 1: one did, or ran out of time, as is said; 2: there is no compute-sanitizer here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

TOOLS = ("memcheck", "racecheck")
FOUND = 9  # the exit code for what a tool has found
_KERNELS = "kns=persistent_"  # a part of the names of those that are watched
_TOLD = 6000  # characters


def command(sanitizer: str, tool: str) -> list[str]:
    watched = [sanitizer, "--tool", tool, "--kernel-name", _KERNELS, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    once = ["--parts", "alone", "--launches", "0", "--patience", "600"]
    return [*watched, sys.executable, "-m", "pytest_ecornn.suites.soak_gpu", *once]


def run(sanitizer: str, tool: str, timeout_s: float) -> bool:
    """Whether the tool found nothing within the time, which it prints."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # or what lies beside an array is torch's, too
    started = subprocess.Popen(
        command(sanitizer, tool),
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        told, _ = started.communicate(timeout=timeout_s)
        verdict = {0: "clean", FOUND: "found something"}.get(started.returncode, f"ended with {started.returncode}")
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # what is watched is a process of its own
        told, _ = started.communicate()
        verdict = f"not done after {timeout_s:g} s"
    print(f"{tool}: {verdict}\n{told[-_TOLD:]}", flush=True)
    return verdict == "clean"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sanitizer_gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", nargs="+", default=TOOLS, help="of compute-sanitizer")
    parser.add_argument("--timeout", type=float, default=1800, metavar="SECONDS", help="for each tool")
    parser.add_argument("--sanitizer", default="compute-sanitizer", metavar="PATH", help="where it is, if not on the PATH")
    given = parser.parse_args(arguments)
    sanitizer = shutil.which(given.sanitizer)
    if sanitizer is None:
        print(f"{parser.prog}: no {given.sanitizer} on this machine; it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    clean = [run(sanitizer, tool, given.timeout) for tool in given.tools]
    return int(not all(clean))


if __name__ == "__main__":
    raise SystemExit(main())
