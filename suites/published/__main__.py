"""Measures the stored reports of this machine anew, those that are missing or stale, within a time: `make reports`.

`python -m pytest_ecornn.suites.published [NAME ...] [--seconds 540]` writes into reports/CARD, by the GPU's name. What was
measured outlives the run; the next one goes on with it. `--list` measures nothing and says how old each stored report is.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pytest_ecornn.results import journal
from pytest_ecornn.suites.published import kernels, selection, staleness, stored
from pytest_ecornn.suites.published.staleness import RUN, Staleness
from pytest_ecornn.system import machine

# What is measured on a device, and each command's own options. Other suites are `python -m pytest_ecornn.suites.published.NAME`.
_SLOW = "not T16384 and not T65536 and not (T4096 and training)"  # for a loop over time
_BENCH = ("--ecornn-bench", "--ecornn-budget", "2", "--ecornn-device")
REPORTS: dict[str, dict[str, tuple[str, ...]]] = {
    "cuda": {
        RUN: (*_BENCH, "cuda", "--ecornn-cases", "seed", "-k", _SLOW, "-n", "auto"),
        **dict.fromkeys(("persistent", "scan", "sparse", "kernels", "language_model", "selection"), ()),
        **dict.fromkeys(("deepbench", "host_time", "varying", "ecornn"), ()),
    },
    "cpu": {RUN: (*_BENCH, "cpu"), "selection": ("--device", "cpu", "--sets", "scans")},
}
_LEAST_S, _GRACE_S = 60.0, 20.0  # to begin another report, and to end one
_REFUSED = {RUN: 4}  # the exit code of a command that cannot go on with what is stored; of a suite 2
_INTERRUPTED = {RUN: 2}
_ALL = ["all"]


@dataclass(frozen=True)
class Due:
    """A report to be measured. age: None where it is missing, or git does not know its commit. parts: of a suite that lack rows.

    is_resumed: its rows stay.
    """

    name: str
    age: Staleness | None
    parts: list[str]
    is_resumed: bool

    @property
    def order(self) -> tuple[bool, int]:
        """Missing reports first, then those of whose kernels most files changed; what goes on is last."""
        return self.is_resumed, -len(self.age.kernels) if self.age else -sys.maxsize

    def __str__(self) -> str:
        why = str(self.age) if self.age and self.age.is_stale else "goes on" if self.is_resumed else "missing"
        return f"{self.name}: {why}"


def card(device: str) -> str:
    """The folder of this machine's reports: cpu, or the GPU's model, as h100 or rtx4090."""
    return "cpu" if device == "cpu" else card_of(torch.cuda.get_device_name())


def card_of(name: str) -> str:
    """The model in a GPU's name. Raises ValueError where there is none."""
    if not (model := re.search(r"((?:RTX |GTX )?[A-Z]*\d+\w*)", name)):
        raise ValueError(f"expected a GPU's name with a model's number, got {name!r}")
    return model[1].replace(" ", "").lower()


def lacking(name: str, path: Path, device: str) -> list[str]:
    """The parts that a stored report lacks; of one without parts, that it lacks something. Raises ValueError or OSError."""
    if name in stored.NAMES:
        return stored.plan(name).lacking(path)
    if name == "kernels":
        has_all = len(kernels.Report.read(path).rows) >= len(kernels.selected(list(kernels.SETS), kernels.PRECISIONS))
        return [] if has_all else _ALL
    if name == "selection":
        report = selection.Report.read(path)
        sets = selection.DEFAULT_SETS if device == "cuda" else ["scans"]
        return [] if len(report.rows) >= len(selection.selected(sets, report.seed, report.count)) else _ALL
    return []


def due(folder: Path, names: Sequence[str], device: str) -> list[Due]:
    """The reports of a folder that are missing, stale or lack something, in the order in which they are to be measured."""
    return sorted(filter(None, (_due(folder / f"{name}.json", device) for name in names)), key=lambda one: one.order)


def _due(path: Path, device: str) -> Due | None:
    if path.stem == RUN and (path.parent / journal.NAME).exists():
        return Due(RUN, None, _ALL, True)
    try:
        age, parts = staleness.of_report(path), lacking(path.stem, path, device)
    except (OSError, ValueError):  # none yet, or one of an older schema
        return Due(path.stem, None, [], False)
    if age is None or age.is_stale:
        return Due(path.stem, age, [], False)
    return Due(path.stem, age, parts, True) if parts else None


def command(one: Due, folder: Path, device: str, seconds: float) -> list[str]:
    """What measures a report for so long."""
    options = REPORTS[device][one.name]
    if one.name == RUN:
        return [sys.executable, "-m", "pytest", *options, "--ecornn-report", str(folder), *["--ecornn-resume"] * one.is_resumed]
    parts = ["--parts", *one.parts] if one.parts and one.parts != _ALL else []
    resumed = ["--resume", *parts] if one.is_resumed else []
    module = f"pytest_ecornn.suites.published.{one.name}"
    return [sys.executable, "-m", module, "--output", str(folder), "--seconds", f"{seconds:.0f}", *options, *resumed]


def measure(one: Due, folder: Path, device: str, seconds: float) -> int:
    """Runs the command, and interrupts it when its time is over. Returns the exit code; 0 where it was interrupted."""
    print(f"{one}; {seconds:.0f} s are left", flush=True)
    begin_until = max(1.0, seconds - _GRACE_S)
    with subprocess.Popen(command(one, folder, device, begin_until)) as process:
        for signal_number, wait_s in ((signal.SIGINT, begin_until if one.name == RUN else seconds), (signal.SIGKILL, _GRACE_S)):
            try:
                process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal_number)
    if one.is_resumed and process.returncode == _REFUSED.get(one.name, 2):
        return measure(replace(one, parts=[], is_resumed=False), folder, device, seconds)
    if one.name == RUN and process.returncode in (0, 1):  # all rows have run
        (folder / journal.NAME).unlink(missing_ok=True)
    return 0 if process.returncode == _INTERRUPTED.get(one.name, -signal.SIGINT) else process.returncode


def table(results: Path) -> Iterator[str]:
    """Yields a line for each stored report: how old it is."""
    for path in stored.reports(results):
        age = staleness.of_report(path)
        yield f"{path.relative_to(results).with_suffix('')}: {age or 'its commit is not in the history of this clone'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 where a command failed."""
    parser = argparse.ArgumentParser(prog="python -m pytest_ecornn.suites.published", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"these reports alone, of {', '.join(REPORTS['cuda'])}; on a CPU fewer")
    add("--seconds", type=float, default=540.0, help="after which nothing more is begun, and what runs is interrupted")
    add("--device", choices=tuple(REPORTS), default="cuda", help="what is measured on. Default: cuda")
    add("--results", type=Path, default=Path("reports"), metavar="FOLDER", help="that holds a folder for each card")
    add("--list", dest="is_listed", action="store_true", help="say how old each stored report is, and measure nothing")
    given = parser.parse_args(arguments)
    if given.is_listed:
        print(*table(given.results), sep="\n")
        return 0
    if not given.seconds > 0:
        parser.error(f"--seconds: expected a number over 0, got {given.seconds:g}")
    if unknown := set(given.names) - REPORTS[given.device].keys():
        parser.error(f"expected names of {', '.join(REPORTS[given.device])}, got {', '.join(sorted(unknown))}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device on this machine")
    if not machine.own_root():
        parser.error("expected a clone of the project, whose commit the reports record")
    folder = given.results / card(given.device)
    return _measure_all(due(folder, given.names or [*REPORTS[given.device]], given.device), folder, given.device, given.seconds)


def _measure_all(reports: Sequence[Due], folder: Path, device: str, seconds: float) -> int:
    deadline, codes = time.monotonic() + seconds, list[int]()
    for one in reports:
        left = deadline - time.monotonic()
        if codes and left < _LEAST_S:
            print(f"{one}; no time is left")
        else:
            codes.append(measure(one, folder, device, left))
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(main())
