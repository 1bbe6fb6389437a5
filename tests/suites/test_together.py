"""What several runs at once promise: the figures that are made of journals, and two runs for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.results.rows import Row
from pytest_ecornn.suites.promises import together
from pytest_ecornn.suites.promises.together import Progress, is_kept, report
from tests.helpers.reporting_samples import row, timing

CASE = "lstm-T8-B4-H16-float32"


def timed(name: str, time_us: float) -> Row:
    return row(name, CASE, timing=timing(time_us, {"sequential": 100.0}, 1))


def progress(*moments: float, rows: tuple[Row, ...] = ()) -> Progress:
    return Progress(Path(), list(moments), list(rows))


def test_a_share_too_small_and_a_wrong_verdict_break_the_promise() -> None:
    right = timed("longer", 200.0)
    assert right.timing is not None
    assert right.timing.against[0].verdict == "slower"
    even = [progress(1, 2, 3, rows=(right,)), progress(2, 3, 4, rows=(right,))]
    assert is_kept(even)
    assert not is_kept([*even, progress(9)])
    assert not is_kept([*even, progress()])
    assert not is_kept([progress(), progress()])
    assert not is_kept([*even, progress(1, 2, 3, rows=(timed("longer", 50.0),))])
    assert not is_kept([*even, progress(1, 2, 3, rows=(timed("again", 200.0),))])
    assert not is_kept([*even, progress(1, 2, 3, rows=(row("again", CASE, status="failed", reason="wrong"),))])


def test_the_longest_pause_lasts_to_the_end() -> None:
    assert progress(3, 4, 9).longest_pause(10) == 5
    assert progress(3, 4).longest_pause(20) == 16
    assert progress().longest_pause(20) == 20
    text = "\n".join(report([progress(1, 2, 3, rows=(timed("again", 200.0),)), progress(9)], 10.0))
    assert "| 1 | 3 | 1.50 | 7 s | 0 | 1 of 1 | again on lstm-T8-B4-H16-float32: slower (2) |" in text
    assert "| 2 | 1 | 0.50 | 1 s | 0 | 0 of 0 | none |" in text


@pytest.mark.test_all(keep=0)
@pytest.mark.parametrize("runs", [2])
def test_runs_at_once_get_their_share(tmp_path: Path, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_CASES", together._CASES[:2])
    output = tmp_path / "note.md"
    assert together.main(["--runs", str(runs), "--budget", "0.1", "--output", str(output)]) == 0, output.read_text()
