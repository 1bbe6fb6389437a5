"""How old a stored report is: its commit, and the files it is about that changed since then.

A report is about the implementations that it names, what these share, and its suite's own files. Git tells what changed; where
it does not know the commit, nothing is said.
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
_SOURCES = (".py", ".cu", ".cuh", ".csv")
_RUN_FILES = ("suites/test_benchmark.py", "pytest_ecornn/cases/case_sets.py")
_LAYERS = ("pytest_ecornn/nn/", "pytest_ecornn/autotune/")  # of reports on auto, or on modules alone
_FOLDERS = ("implementations", "suites", *_LAYERS, *_RUN_FILES)
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
    about = tuple(_implementations(path.stem, text, report, root, bool(fingerprint.get("gpu"))))
    of_suite = _RUN_FILES if path.stem == RUN else tuple(
        f"suites/published/{name}" for name in (f"{path.stem}.py", f"{path.stem}_parts/", "common/")
    )  # fmt: skip
    return Staleness(
        commit,
        tuple(one for one in changed if one.startswith(about)),
        tuple(one for one in changed if one.startswith(of_suite)),
    )


def _fingerprint(report: Any) -> dict[str, Any]:
    """Returns the machine of a run's or a suite's report; empty where it has none."""
    holder = report.get("run", report) if isinstance(report, dict) else {}
    found = holder.get("machine") if isinstance(holder, dict) else None
    return found if isinstance(found, dict) else {}


def _changed(root: Path, commit: str, until: str) -> tuple[str, ...] | None:
    """Returns the sources that another commit has otherwise, or has alone; moved ones do not count. None without the commits."""
    shown = machine.git(root, "diff", "--name-status", "-M", "--diff-filter=d", commit, until, "--", *_FOLDERS)
    if shown is None:
        return None
    lines = [line.split("\t") for line in shown.splitlines()]
    return tuple(path for status, *_, path in lines if status != "R100" and path.endswith(_SOURCES))


def _implementations(name: str, text: str, report: Any, root: Path, has_gpu: bool) -> Iterator[str]:
    """Yields paths of what a report is about: of a run all but what skipped every row, of a suite what it names, or all."""
    folder = root / "implementations"
    files = [*folder.iterdir(), *folder.glob("peers/*.py")] if has_gpu else folder.iterdir()
    of_gpu = () if has_gpu else (*folder.glob("*_gpu*"), folder / "peers")
    paths = {path.stem: path for path in files if path.stem[0] != "_" and path not in of_gpu}
    if name == RUN:
        ran = {row["implementation"] for row in report["rows"] if row["status"] != "skipped"}
        names = paths.keys() - ({row["implementation"] for row in report["rows"]} - ran)
    else:
        named = paths.keys() & set(re.findall(r'"(\w+)"', text))
        names = named or paths.keys()
        yield from _LAYERS if "auto" in names else ()
    shared = [folder / "_common", *([folder / "_cuda"] if has_gpu else [])]
    for path in (*shared, *(paths[one] for one in names)):
        yield path.relative_to(root).as_posix() + "/" * path.is_dir()
