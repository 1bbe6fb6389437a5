"""Fresh Python processes for what a process does but once, with caches of their own; of several one measures at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

_MAX_S = 120  # of a process, once all are ready


def own_caches(folder: Path) -> dict[str, str]:
    """Variables of a process whose caches lie in the folder, which is made. NVRTC keeps what it compiled in the driver's."""
    caches = {"ECORNN_CACHE_DIR": folder / "ecornn", "CUDA_CACHE_PATH": folder / "driver"}
    for path in caches.values():
        path.mkdir(parents=True, exist_ok=True)
    return {name: str(path) for name, path in caches.items()}


def run_in_turn(runs: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[tuple[str, str]]:
    """Runs Python once for each run, arguments and further variables: (the last line printed, why there is none) of each.

    All start at once. When each has printed a line or ended, they are sent a line one after the other, and waited for. So a
    process that prints "ready" after its imports and then reads a line measures alone.
    """
    with ExitStack() as stack:
        processes = []
        for arguments, variables in runs:
            command, environment = [sys.executable, *arguments], {**os.environ, **variables}
            process = subprocess.Popen(
                command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        first_lines = [process.stdout.readline() if process.stdout else "" for process in processes]
        return [_finish(*pair) for pair in zip(processes, first_lines, strict=True)]


def _finish(process: subprocess.Popen[str], first_line: str) -> tuple[str, str]:
    try:
        output, errors = process.communicate("\n", timeout=_MAX_S)
    except subprocess.TimeoutExpired:
        return "", f"not done after {_MAX_S} s"
    lines = (first_line + output).strip().splitlines()
    if process.returncode or not lines:
        return "", next(iter(errors.strip().splitlines()[-1:]), f"ended with {process.returncode}")
    return lines[-1], ""
