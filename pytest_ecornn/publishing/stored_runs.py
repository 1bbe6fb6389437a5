"""Stored results of machines: RESULTS/MACHINE/RUN/*.json, or RESULTS/MACHINE/*.json where a machine has one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.stored.load import REPORT_NAME, Report, load_report
from pytest_ecornn.results import formatting
from pytest_ecornn.suites.published import stored as published

_LAYOUT = "RESULTS/MACHINE/RUN/report.json, or RESULTS/MACHINE/report.json"


@dataclass(frozen=True)
class StoredRun:
    """One run. name: its folder below the machine's; empty where that holds it. suites: JSON files of published suites."""

    machine: str
    name: str
    folder: Path
    report: Report | None
    suites: list[Path]

    @property
    def path(self) -> str:
        """Where the site has it."""
        return f"{self.machine}/{self.name}" if self.name else self.machine

    @property
    def started(self) -> str:
        """ISO 8601, empty where no report says so."""
        return self.report.run.started if self.report else ""

    @property
    def files(self) -> list[Path]:
        """The JSON files that it was read from."""
        return [*([self.folder / REPORT_NAME] if self.report else []), *self.suites]


@dataclass(frozen=True)
class Machine:
    """Runs on one machine, the newest last."""

    name: str
    runs: list[StoredRun] = field(default_factory=list)

    @property
    def reports(self) -> list[StoredRun]:
        """The runs that have a report of rows."""
        return [run for run in self.runs if run.report]

    @property
    def label(self) -> str:
        """What the newest report says that it ran on: the GPUs, else the CPU; the folder's name where none says so."""
        for run in reversed(self.reports):
            assert run.report
            found = run.report.run
            return formatting.one_line(" and ".join(found.gpu_names) or found.machine.get("cpu") or self.name)
        named = (name for run in self.runs for name in map(_gpu_of_suite, run.suites) if name)
        return next(named, self.name)


def _gpu_of_suite(path: Path) -> str:
    """The GPU that a suite's report names; empty where it names none."""
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["machine"]["gpu"]["names"]
        return formatting.one_line(" and ".join(dict.fromkeys(map(str, names))))
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return ""


def load(results: Path) -> tuple[list[Machine], list[str]]:
    """Returns the machines by name, and a line for each report that cannot be read.

    Raises ReportError where there is no folder, or nothing in it can be published.
    """
    if not results.is_dir():
        raise ReportError(f"{results}: expected a folder, {_LAYOUT}")
    refused: list[str] = []
    machines = []
    for folder in _folders(results):
        runs = [run for where in (folder, *_folders(folder)) for run in _run(folder, where, refused)]
        if runs:
            machines.append(Machine(folder.name, sorted(runs, key=lambda run: (run.started, run.name))))
    if not machines:
        raise ReportError(refused[0] if refused else f"{results}: holds no report; expected {_LAYOUT}")
    return machines, refused


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))


def _run(machine: Path, folder: Path, refused: list[str]) -> Iterator[StoredRun]:
    """Yields the run that a folder holds, if any."""
    report, path = None, folder / REPORT_NAME
    if path.is_file():
        try:
            report = load_report(path)
        except ReportError as error:
            refused.append(str(error))
    others = (one for one in sorted(folder.glob("*.json")) if one.name != REPORT_NAME)
    suites = [one for one in others if one.with_suffix(".md").is_file() or one.stem in published.NAMES]
    if report or suites:
        yield StoredRun(machine.name, "" if folder == machine else folder.name, folder, report, suites)
