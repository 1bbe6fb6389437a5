"""Stored reports of the published suites, by the names of their files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ecornn.reporting.files import ReportError

if TYPE_CHECKING:
    from pytest_ecornn.suites.published.common.parted import Report, ReportPlan

NAMES = (
    "deepbench", "host_time", "language_model", "persistent", "scan", "selection", "sparse", "varying",
)  # fmt: skip


def report_files(path: Path) -> dict[str, Path]:
    """Returns the suites' reports by name: those of a folder, or the file itself."""
    if path.is_dir():
        return {name: file for name in NAMES if (file := path / f"{name}.json").is_file()}
    return {path.stem: path} if path.stem in NAMES and path.suffix == ".json" else {}


def reports(results: Path) -> list[Path]:
    """The JSON files of the reports in RESULTS/CARD and below: each has its Markdown beside it."""
    paths = (path for path in results.glob("*/**/*.json") if path.with_suffix(".md").is_file())
    return sorted(path for path in paths if path.relative_to(results).parts[0] != "local")


def plan(name: str) -> ReportPlan:
    """Returns the plan by which a suite's report is read and rendered. It imports the suite, and with it torch."""
    found: ReportPlan = import_module(f"{__package__}.{name}").PLAN
    return found


def joined(name: str, paths: Sequence[Path]) -> Report:
    """Returns one report of these, not written yet.

    Raises ReportError, in one line, for a file that holds no such report, was made otherwise, or has other figures of a row.
    """
    try:
        return plan(name).joined(paths)
    except (OSError, ValueError) as error:
        raise ReportError(str(error)) from error
