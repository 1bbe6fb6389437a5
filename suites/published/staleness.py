"""How old a stored report is: its commit, and the files it is about that changed since then.

A report is about the implementations that it names, what these share, its suite's own files and case set. Git tells what
changed; where it does not know the commit, nothing is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ecornn.results import formatting
from pytest_ecornn.system import machine

RUN = "report"  # the harness's own; the others have the names of their suites
_LAYERS = ("pytest_ecornn/nn/", "pytest_ecornn/autotune/")  # of what chooses at run time
KERNEL_FOLDERS = ("implementations", *_LAYERS)
_RUN_FILES = ("suites/test_benchmark.py", "pytest_ecornn/cases/case_sets.py")
_CASE_SETS = "pytest_ecornn/cases/sets/"
_SOURCES = (".py", ".cu", ".cuh", ".csv")
_COMMIT = re.compile("[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Staleness:
    """Files that changed since a report's commit. kernels: of its implementations. suite: of its suite."""

    commit: str
    kernels: tuple[str, ...] = ()
    suite: tuple[str, ...] = ()

    @property
    def is_stale(self) -> bool:
        return bool(self.kernels or self.suite)

    def __str__(self) -> str:
        counts = [("kernel file", self.kernels), ("suite file", self.suite)]
        changed = " and ".join(formatting.count(len(files), noun) for noun, files in counts if files)
        return f"measured at commit {self.commit[:7]}, {changed or 'no kernel file'} changed since"


def of_report(path: Path, until: str = "HEAD", root: Path | None = None) -> Staleness | None:
    """How old the report of a JSON file is. None where it names no commit, or this clone's history lacks that.

    root: of a clone; this package's own unless given.
    """
    root = root or machine.own_root()
    try:
        report = json.loads(text := path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    fingerprint = _fingerprint(report)
    commit = str(fingerprint.get("commit"))
    if not root or not _COMMIT.fullmatch(commit) or (changed := _changed(root, commit, until)) is None:
        return None
    kernels = tuple(_implementations(path.stem, text, report, root, bool(fingerprint.get("gpu"))))
    suite = tuple(f"suites/published/{name}" for name in (f"{path.stem}.py", f"{path.stem}_parts/", "common/"))
    if path.stem == RUN:
        of_suite = (*_RUN_FILES, *(f"{_CASE_SETS}{name}.csv" for name in _case_sets(report)))
    else:
        of_suite = (*suite, f"{_CASE_SETS}{path.stem}")
    return Staleness(commit, *(tuple(file for file in changed if file.startswith(about)) for about in (kernels, of_suite)))


def _case_sets(report: Any) -> list[str]:
    """The names of a run's case sets, or its cases."""
    settings = report["run"].get("settings") if isinstance(report.get("run"), dict) else {}
    return str((settings or {}).get("cases", "")).split(", ")


def _fingerprint(report: Any) -> dict[str, Any]:
    """Returns the machine of a run's or a suite's report; empty where it has none."""
    holder = report.get("run", report) if isinstance(report, dict) else {}
    fingerprint = holder.get("machine") if isinstance(holder, dict) else None
    return fingerprint if isinstance(fingerprint, dict) else {}


def _changed(root: Path, commit: str, until: str) -> list[str] | None:
    """Returns the sources that differ at `until`, or are new. Moved ones do not count. None where a commit is not known."""
    folders = (*KERNEL_FOLDERS, "suites", _CASE_SETS, *_RUN_FILES)
    shown = machine.git(root, "diff", "--name-status", "-M", "--diff-filter=d", commit, until, "--", *folders)
    if shown is None:
        return None
    lines = [line.split("\t") for line in shown.splitlines()]
    return [path for status, *_, path in lines if status != "R100" and path.endswith(_SOURCES)]


def _implementations(name: str, text: str, report: Any, root: Path, has_gpu: bool) -> Iterator[str]:
    """Yields paths of what a report is about: of a run all but what skipped every row, else what it names, or all.

    The run of a published set is about what it names too.
    """
    is_of_set = name == RUN and any((root / f"{_CASE_SETS}{case_set}.csv").exists() for case_set in _case_sets(report))
    folder = root / "implementations"
    of_gpu = {folder / "peers", *folder.glob("*_gpu*")}
    files = {*folder.iterdir(), *folder.glob("peers/*.py")} if has_gpu else {*folder.iterdir()} - of_gpu
    paths = {path.stem: path for path in files if not path.stem.startswith("_")}
    if name == RUN and not is_of_set:
        ran = {row["implementation"] for row in report["rows"] if row["status"] != "skipped"}
        names = {*paths} - ({row["implementation"] for row in report["rows"]} - ran)
    else:
        names = {*paths} & set(re.findall(r'"(\w+)"', text)) or {*paths}
        yield from _LAYERS if "auto" in names else ()
    shared = [folder / "_common", *[folder / "_cuda"] * has_gpu]
    for path in (*shared, *(paths[name] for name in names)):
        yield path.relative_to(root).as_posix() + "/" * path.is_dir()
