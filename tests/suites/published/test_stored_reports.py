"""Tables and pictures of stored reports are what is rendered of their stored rows."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from pytest_ecornn.suites.published import stored

ROOT = Path(__file__).parents[3]
REPORTS = {
    "reports/cpu": ("selection",),
    "reports/h100": ("deepbench", "host_time", "kernels", "language_model", "selection"),
    "reports/h200": ("kernels", "language_model", "persistent", "scan", "sparse"),
    "reports/h200/scan_times": ("scan",),
}


def tables(file: Path) -> list[str]:
    """What a report says of its rows: its headings, tables and lists. Prose between them may be written anew."""
    return [line for line in file.read_text().splitlines() if line.startswith(("#", "|", "- ", "!"))]


def write(name: str, file: Path, folder: Path) -> None:
    if name in stored.NAMES:
        stored.joined(name, [file]).write(folder)
    else:
        import_module(f"pytest_ecornn.suites.published.{name}").Report.read(file).write(folder)


@pytest.mark.parametrize(("folder", "name"), [(folder, name) for folder, names in REPORTS.items() for name in names])
def test_a_stored_report_is_what_is_rendered(folder: str, name: str, tmp_path: Path) -> None:
    write(name, ROOT / folder / f"{name}.json", tmp_path)
    again = f"run python -m pytest_ecornn join {folder}/{name}.json --output FOLDER, and copy what differs"
    assert tables(tmp_path / f"{name}.md") == tables(ROOT / folder / f"{name}.md"), again
    pictures = sorted(tmp_path.glob("*.svg"))
    assert bool(pictures) == (name in ("deepbench", "language_model", "scan"))
    assert [one.name for one in pictures if one.read_text() != (ROOT / folder / one.name).read_text()] == [], again


def test_no_report_or_picture_is_left_out() -> None:
    """A stored one that no command renders would stay as it was."""
    files = [path.relative_to(ROOT) for path in (ROOT / "reports").rglob("*.*") if "local" not in path.parts]
    reports = {str(path) for path in files if path.suffix == ".md" and path.with_suffix(".json") in files}
    rendered = {f"{folder}/{name}.md" for folder, names in REPORTS.items() for name in names}
    assert reports - rendered == {"reports/cpu/report.md", "reports/h200/report.md", "reports/h200/ecornn.md"}
    prefixes = ("scan_", "words_per_s_", "deepbench_")
    others = {str(path) for path in files if path.suffix == ".svg" and not path.name.startswith(prefixes)}
    assert others == {"reports/cpu/summary.svg", "reports/h200/summary.svg", "reports/h200/chart.svg"}
