"""Stored reports of the published suites, by the names of their files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.stored.load import REPORT_NAME

if TYPE_CHECKING:
    from pytest_ecornn.suites.published.common.parted import Report, ReportPlan
    from pytest_ecornn.suites.published.common.published_page import PublishedPage

# Pages about the report of a run.
PAGES = ("deepbench", "persistent", "scan", "sparse")
NAMES = (
    "clocks", "ecornn", "host_time", "language_model", "persistent_kernel", "scan_kernel", "selection", "sparse_kernel",
    "streaming", "varying",
)  # fmt: skip
OF_CPU = ("streaming",)  # which measure on a CPU alone


def reports(results: Path) -> list[Path]:
    """The JSON files of the reports in RESULTS/CARD and below: each has its Markdown beside it, or a page about it."""
    paths = (path for path in results.glob("*/**/*.json") if path.with_suffix(".md").is_file() or is_of_set(path))
    return sorted(path for path in paths if path.relative_to(results).parts[0] != "local")


def file_of(folder: Path, name: str) -> Path:
    """The JSON file of a report: that of a run of a published set lies in a folder of the set's name."""
    return folder / name / REPORT_NAME if name in PAGES else folder / f"{name}.json"


def is_of_set(path: Path) -> bool:
    """Whether it is the report of a run of a published set, which lies in a folder of the set's name."""
    return path.name == REPORT_NAME and path.parent.name in PAGES


def page(name: str) -> PublishedPage:
    """Returns a page about a published set, by its name."""
    page: PublishedPage = import_module(f"{__package__}.{name}").PAGE
    return page


def plan(name: str) -> ReportPlan:
    """Returns the plan by which a suite's report is read and rendered. It imports the suite, and with it torch."""
    plan: ReportPlan = import_module(f"{__package__}.{name}").PLAN
    return plan


def load(path: Path) -> Report:
    """The report of a file of its name. Raises ReportError, in one line, for a file that holds no such report."""
    try:
        return plan(path.stem).load(path)
    except (OSError, ValueError) as error:
        raise ReportError(str(error)) from error
