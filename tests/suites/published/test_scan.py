"""minGRU and minLSTM over the number of steps: the page about a run's rows."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import Row, Timing
from pytest_ecornn.suites.published import scan
from tests.helpers.foreign import Foreign
from tests.helpers.report_rows import report_row, timing
from tests.helpers.studies import cells_of

LOGARITHMS = "T at most 4: the error of a scan in logarithms grows with T"


def case(cell: str, steps: int, device: str = "cuda") -> Case:
    return Case(cell=cell, steps=steps, batch=8, hidden_size=256, batch_first=True, projected=True, device=device)


def spread(time_us: float, low_us: float, high_us: float) -> Timing:
    return replace(timing(time_us), low_us=low_us, high_us=high_us)


def rows_of(cell: str, steps: int, cpu: Timing, gpu: Timing) -> list[Row]:
    return [
        report_row("scan_cpu", case(cell, steps, "cpu"), timing=cpu),
        report_row("scan_gpu", case(cell, steps), timing=gpu, replay=timing(1.0)),
        report_row("scan_gpu_log", case(f"{cell}_positive", steps), timing=spread(5e3, 4e3, 6e3)),
        report_row("scan_torch", case(f"{cell}_positive", steps), LOGARITHMS),
    ]


def text_of(rows: list[Row]) -> str:
    (section,) = scan.sections(rows)
    return section.text


def test_a_line_has_times_of_both_devices_and_of_the_positive_cell_in_ms() -> None:
    rows = [
        *rows_of("mingru", 1024, spread(600.0, 500.0, 700.0), spread(100.0, 90.0, 125.0)),
        report_row("sequential", case("mingru", 1024, "cpu"), timing=spread(30e3, 29e3, 31e3)),
        report_row("sequential", case("mingru", 1024), timing=timing(9.0)),  # on the GPU: not shown
    ]
    (line,) = cells_of(text_of(rows), "1,024")
    measured = ["30.0 [29.0, 31.0]", "0.600 [0.500, 0.700]", "0.100 [0.0900, 0.125]", "6.00 [4.00, 7.78]"]
    assert line == ["1,024", *measured, "5.00 [4.00, 6.00]", "see below", "2,395", "97.6", "92.1", "1.06"]
    assert text_of(rows).count(LOGARITHMS) == 1


def test_the_ratio_of_two_devices_is_bounded_by_both_intervals() -> None:
    (length,) = scan.rows_of(rows_of("minlstm", 256, spread(600.0, 500.0, 800.0), spread(100.0, 80.0, 125.0)))
    assert length.cpu_over_gpu
    assert astuple(length.cpu_over_gpu) == pytest.approx((6.0, 4.0, 10.0))
    (alone,) = scan.rows_of([report_row("scan_gpu", case("minlstm", 256), timing=timing(9.0))])
    assert alone.cpu_over_gpu is None


def test_each_reason_stands_once_and_what_has_no_row_none() -> None:
    rows = [row for steps in (256, 65_536) for row in rows_of("mingru", steps, timing(2000.0), timing(100.0))]
    rows[4] = report_row("scan_cpu", case("mingru", 65_536, "cpu"), "needs Numba")
    text = text_of(rows)
    assert text.count(f"- scan_torch: {LOGARITHMS}") == 1
    assert "- scan_cpu: needs Numba" in text
    assert cells_of(text, "65,536")[0][1:5] == ["-", "see below", "0.100", "-"]
    assert "### minlstm" not in text


def test_the_bar_is_of_the_most_steps_and_of_the_whole_interval() -> None:
    rows = [
        *rows_of("mingru", 65_536, spread(2e3, 1.9e3, 2.1e3), timing(100.0)),
        *rows_of("minlstm", 65_536, spread(2e3, 1.9e3, 2.1e3), spread(100.0, 90.0, 140.0)),
        *rows_of("minlstm", 256, timing(1.0), timing(100.0)),
    ]
    text = text_of(rows)
    assert cells_of(text, "mingru, 65,536 steps")[0][1:] == ["20.0 [19.0, 21.0]", "at least 15", "yes"]
    assert cells_of(text, "minlstm, 65,536 steps")[0][1:] == ["20.0 [13.6, 23.3]", "at least 15", "unclear"]
    assert "256 steps" not in text


def test_a_chart_of_each_cell_has_its_times_and_the_published_ones_dashed() -> None:
    (section,) = scan.sections(rows_of("minlstm", 256, timing(600.0), timing(100.0)))
    assert list(section.charts) == ["scan_minlstm.svg"]
    assert "stroke-dasharray" in section.charts["scan_minlstm.svg"]
    assert "scan_cpu, published" in section.charts["scan_minlstm.svg"]


def test_the_run_has_the_rows_that_the_page_shows_and_no_long_loop(tmp_path: Path) -> None:
    done = Foreign(tmp_path).run("--ecornn-bench", *scan.PAGE.options, "--collect-only", "-q", check=0)
    rows = re.findall(r"test_benchmark\[(\w+?-minlstm-T\d+)-", done.stdout)
    loops = [f"sequential-minlstm-T{steps}" for steps in (256, 1024, 4096)]
    assert sorted(rows) == sorted(
        [*loops, *(f"scan_cpu-minlstm-T{case.steps}" for case in scan.origins() if case.cell == "minlstm")]
    )
