"""Pictures of stored reports are what is drawn of their stored rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.suites.published import stored

ROOT = Path(__file__).parents[3]
REPORTS = [
    ("scan", "reports/h200"),
    ("scan", "reports/h200/scan_times"),
    ("language_model", "reports/h200"),
    ("language_model", "reports/h100"),
    ("deepbench", "reports/h100"),
]


@pytest.mark.parametrize(("name", "folder"), REPORTS)
def test_stored_pictures_are_what_is_drawn(name: str, folder: str, tmp_path: Path) -> None:
    stored.joined(name, [ROOT / folder / f"{name}.json"]).write(tmp_path)
    pictures = sorted(tmp_path.glob("*.svg"))
    assert pictures
    assert [one.name for one in pictures if one.read_text() != (ROOT / folder / one.name).read_text()] == [], (
        f"run python -m pytest_ecornn join {folder}/{name}.json --output FOLDER, and copy its pictures"
    )


def test_no_picture_is_left_out() -> None:
    """A stored picture that no command draws would stay as it was."""
    stored = (path.relative_to(ROOT) for path in (ROOT / "reports").rglob("*.svg"))
    pictures = {path.as_posix() for path in stored if "local" not in path.parts}
    prefixes = ("scan_", "words_per_s_", "deepbench_")
    others = {path for path in pictures if not Path(path).name.startswith(prefixes)}
    assert others == {"reports/cpu/summary.svg", "reports/h200/summary.svg", "reports/h200/chart.svg"}
