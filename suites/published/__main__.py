"""Measures the stored reports of this machine anew, those that are missing or stale, within a time: `make reports`.

`python -m pytest_ecornn.suites.published [NAME ...] [--seconds 540]` writes into reports/CARD, by the GPU's name. What was
measured outlives the run; the next one goes on with it. `--list` measures nothing, and says how old each stored report is and
which are missing.
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

from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.stored.load import load_report
from pytest_ecornn.results import journal
from pytest_ecornn.run.hooks.running import NOT_REACHED
from pytest_ecornn.suites.published import staleness, stored
from pytest_ecornn.suites.published.staleness import RUN, Staleness
from pytest_ecornn.system import machine

_SLOW = "not T16384 and not T65536 and not (T4096 and training)"  # by a loop over time
_BENCH = ("--ecornn-bench", "--ecornn-budget", "2", "--ecornn-device")
# What is measured on a device, and the options of each command.
REPORTS: dict[str, dict[str, tuple[str, ...]]] = {
    "cuda": {
        RUN: (*_BENCH, "cuda", "--ecornn-cases", "seed", "-k", _SLOW, "-n", "auto"),
        **{name: (*_BENCH, "cuda", *stored.page(name).options) for name in stored.PAGES},
        **{name: () for name in stored.NAMES if name not in stored.OF_CPU},
    },
    "cpu": {RUN: (*_BENCH, "cpu"), "selection": ("--device", "cpu", "--sets", "scans"), **dict.fromkeys(stored.OF_CPU, ())},
}
_LEAST_S, _GRACE_S = 60.0, 20.0  # to begin another report, and to end one
_RUNS = (RUN, *stored.PAGES)
# Exit codes: of what is cut short, and where stored rows cannot be gone on with.
_ENDED = (0, 1, 5)  # where all rows have run, of which some may have failed, or none was to be timed
_CUT_SHORT, _REFUSED = dict.fromkeys(_RUNS, 2), dict.fromkeys(_RUNS, 4)


@dataclass(frozen=True)
class DueReport:
    """A report to be measured. age: None where it is missing, or of an unknown commit. parts: of a suite, that lack rows.

    is_resumed: the rows that it has stay.
    """

    name: str
    age: Staleness | None
    parts: list[str]
    is_resumed: bool

    @property
    def order(self) -> tuple[bool, float]:
        """The harness's own and missing ones first, then those of whose kernels most files changed; last what goes on."""
        return self.is_resumed and self.name not in _RUNS, -len(self.age.kernels) if self.age else -float("inf")

    def __str__(self) -> str:
        return f"{self.name}: {'goes on' if self.is_resumed else self.age or 'missing'}"


def card(device: str) -> str:
    """The folder of this machine's reports: cpu, or the GPU's model."""
    return "cpu" if device == "cpu" else model(torch.cuda.get_device_name())


def model(gpu: str) -> str:
    """The model in a GPU's name, as h100 or rtx4090. Raises ValueError for a name without a number."""
    if not (match := re.search(r"(?:RTX |GTX )?[A-Z]*\d+\w*", gpu)):
        raise ValueError(f"expected a GPU's name with a model's number, got {gpu!r}")
    return match[0].replace(" ", "").lower()


def due_reports(folder: Path, names: Sequence[str]) -> list[DueReport]:
    """The reports of a card that are missing, stale or lack something, in the order in which they are measured."""
    reports = (_due_report(name, stored.file_of(folder, name)) for name in names)
    return sorted(filter(None, reports), key=lambda report: report.order)


def _due_report(name: str, path: Path) -> DueReport | None:
    if name in _RUNS and (path.parent / journal.NAME).exists():
        return DueReport(name, None, [], True)
    try:
        age = staleness.of_report(path)
        parts = stored.plan(name).lacking(path) if name in stored.NAMES else []
    except (OSError, ValueError):  # none yet, or of another schema
        return DueReport(name, None, [], False)
    if age is None or age.is_stale:
        return DueReport(name, age, [], False)
    return DueReport(name, age, parts, True) if parts else None


def command(report: DueReport, folder: Path, device: str, seconds: float) -> list[str]:
    """What measures a report, beginning nothing more after `seconds`."""
    options = REPORTS[device][report.name]
    if report.name in _RUNS:
        resumed = ["--ecornn-resume"] * report.is_resumed
        where = ["--ecornn-report", str(stored.file_of(folder, report.name).parent)]
        return [sys.executable, "-m", "pytest", *options, f"--ecornn-seconds={seconds:.0f}", *where, *resumed]
    resumed = ["--resume", "--parts", *report.parts] if report.is_resumed else []
    module = f"pytest_ecornn.suites.published.{report.name}"
    return [sys.executable, "-m", module, "--output", str(folder), "--seconds", f"{seconds:.0f}", *options, *resumed]


def measure(report: DueReport, folder: Path, device: str, seconds: float) -> int:
    """Runs the command, and interrupts it when its time is over. Returns its exit code; 0 where it was interrupted."""
    print(f"{report}; {seconds:.0f} s are left", flush=True)
    begin_s = max(1.0, seconds - _GRACE_S)  # until it begins no more
    with subprocess.Popen(command(report, folder, device, begin_s)) as process:
        for wait_s, ending in ((seconds, signal.SIGINT), (_GRACE_S, signal.SIGKILL)):
            try:
                process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(ending)
    if report.is_resumed and process.returncode == _REFUSED.get(report.name, 2):
        return measure(replace(report, is_resumed=False), folder, device, seconds)
    path = stored.file_of(folder, report.name)
    if report.name in _RUNS and process.returncode in _ENDED and not _rows_left(path):
        (path.parent / journal.NAME).unlink(missing_ok=True)
    if report.name in stored.PAGES and path.exists():
        stored.page(report.name).write(path.parent)
    return 0 if process.returncode == _CUT_SHORT.get(report.name, -signal.SIGINT) else process.returncode


def _rows_left(path: Path) -> int:
    """How many rows the report of a run says that it has not reached; 0 where there is no report."""
    try:
        return int(load_report(path).run.settings.get(NOT_REACHED, 0))
    except ReportError:
        return 0


def measure_all(reports: Sequence[DueReport], folder: Path, device: str, seconds: float) -> int:
    """Measures what the time suffices for, and says what not. Returns 1 where a command failed, else 0."""
    deadline, codes = time.monotonic() + seconds, list[int]()
    for report in reports:
        left_s = deadline - time.monotonic()
        if codes and left_s < _LEAST_S:
            print(f"{report}; no time is left")
        else:
            try:
                codes.append(measure(report, folder, device, left_s))
            except ReportError as error:  # of one report must not end the others' measurement
                print(error, file=sys.stderr)
                codes.append(1)
    return int(any(codes))


def render(results: Path) -> None:
    """Writes the pages of all stored reports anew from their JSON files. Raises ReportError for one that cannot be read."""
    for path in stored.reports(results):
        if stored.is_of_set(path):
            stored.page(path.parent.name).write(path.parent)
        elif path.stem in stored.NAMES:
            stored.load(path).write_page(path.parent)


def ages(results: Path) -> Iterator[str]:
    """Yields a line for each stored report, how old it is, and one for each card of which reports are missing."""
    names = {path.relative_to(results).with_suffix(""): path for path in stored.reports(results)}
    for name, path in names.items():
        yield f"{name}: {staleness.of_report(path) or 'its commit is not in the history of this clone'}"
    for folder in dict.fromkeys(results / name.parts[0] for name in names):
        of_card = REPORTS["cpu" if folder.name == "cpu" else "cuda"]
        if missing := [name for name in of_card if not stored.file_of(folder, name).exists()]:
            yield f"{folder.name}: missing {', '.join(missing)}"


def _names(device: str) -> str:
    return ", ".join(REPORTS[device])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_ecornn.suites.published", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"these reports alone, of {_names('cuda')}; on a CPU of {_names('cpu')}")
    add("--seconds", type=float, default=540.0, help="after which nothing more is begun, and what runs is interrupted")
    add("--device", choices=tuple(REPORTS), default="cuda", help="what is measured on. Default: cuda")
    add("--results", type=Path, default=Path("reports"), metavar="FOLDER", help="that holds a folder for each card")
    help_text = "say how old stored reports are and which are missing; measure nothing"
    add("--list", dest="is_listed", action="store_true", help=help_text)
    add("--render", dest="is_rendered", action="store_true", help="write the stored pages anew, and measure nothing")
    parsed = parser.parse_args(arguments)
    if parsed.is_rendered:
        try:
            render(parsed.results)
        except ReportError as error:
            parser.error(str(error))
        return 0
    if parsed.is_listed:
        print(*ages(parsed.results), sep="\n")
        return 0
    names = parsed.names or [*REPORTS[parsed.device]]
    if not parsed.seconds > 0:
        parser.error(f"--seconds: expected a number over 0, got {parsed.seconds:g}")
    if unknown := sorted(set(names) - REPORTS[parsed.device].keys()):
        parser.error(f"expected names of {_names(parsed.device)}, got {', '.join(unknown)}")
    if parsed.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device on this machine")
    if not machine.own_root():
        parser.error("expected a clone of the project, whose commit the reports record")
    folder = parsed.results / card(parsed.device)
    return measure_all(due_reports(folder, names), folder, parsed.device, parsed.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
