"""The README's chart shows every measured case of its reports, and the committed picture is what its command draws."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ecornn.reporting.pictures.ratio_chart import Group, Series, render_chart
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import front_chart
from pytest_ecornn.suites.published.common.bars import mean_ratio
from tests.helpers.reporting.pictures import SVG, texts

ROOT = Path(__file__).parents[3]
REPORTS = ROOT / "reports/h200"
FOLDERS = [ROOT / folder for folder in front_chart.FOLDERS]
RED, BLUE, GREY = "stroke-red", "stroke-blue", "stroke-weak"


def series(*ratios: Ratio, planned: int = 0) -> Series:
    return Series("some cases", ratios, mean_ratio(ratios), planned or len(ratios))


def parse(*chart_series: Series) -> ElementTree.Element:
    return ElementTree.fromstring(render_chart("speedup", [Group("ours & theirs", chart_series)], ["a note"]).document())


def case_ticks(picture: ElementTree.Element, colour: str) -> int:
    """Number of cases drawn in this colour; the legend's own ticks are opaque."""
    paths = (path for path in picture.iter(f"{SVG}path") if "stroke-opacity" in path.attrib)
    return sum(path.attrib["d"].count("M") for path in paths if path.attrib["class"] == colour)


def test_the_committed_chart_is_what_the_command_draws(tmp_path: Path) -> None:
    assert front_chart.main(["--reports", *map(str, [tmp_path, *FOLDERS])]) == 0
    assert (tmp_path / "chart.svg").read_text() == (REPORTS / "chart.svg").read_text(), (
        "run python -m pytest_ecornn.suites.published.front_chart"
    )


def test_no_measured_case_is_left_out() -> None:
    rows = {name: report.rows for name, report in front_chart.stored_reports(FOLDERS).items()}

    def timed(name: str, implementation: str, baseline: str, *columns: str) -> int:
        own = [row for row in rows[name] if row.implementation == implementation]
        timings = [[timing for column in columns if (timing := getattr(row, column))] for row in own]
        return sum(any(one.baseline == baseline for timing in of_row for one in timing.against) for of_row in timings)

    drawn = front_chart.persistent_series(rows["persistent"])
    assert sum(len(shown.ratios) for shown in drawn) == 2 * timed("persistent", "persistent_gpu", "cudnn", "replay")
    over_cudnn = front_chart.sparse_series(rows["sparse"])[:2]
    assert sum(len(shown.ratios) for shown in over_cudnn) == timed("sparse", "sparse_persistent_gpu", "cudnn", "replay")
    peers = rows["scan_kernel"]["peers"]
    assert [len(shown.ratios) for shown in front_chart.scan_series(rows["scan_kernel"])] == [len(peers)] * 2
    models = front_chart.language_model_series(rows["language_model"])
    assert sum(len(shown.ratios) for shown in models) == len(rows["language_model"]["words"])
    layers = front_chart.deepbench_series(rows["deepbench"])
    assert sum(len(shown.ratios) for shown in layers) == timed("deepbench", "auto", "cudnn", "timing", "replay")


def test_a_report_is_the_first_folder_s_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "scan_kernel.json").write_text('{"machine": {"of": "the first"}, "rows": {}}')
    reports = front_chart.stored_reports([tmp_path, *FOLDERS])
    assert reports["scan_kernel"].machine == {"of": "the first"}
    content = json.loads((REPORTS / "language_model.json").read_text())
    assert reports["language_model"] == (content["machine"], content["rows"])


def test_means_are_those_of_the_report() -> None:
    picture = ElementTree.fromstring((REPORTS / "chart.svg").read_text())
    report = (REPORTS / "persistent/persistent.md").read_text()
    means = re.findall(r"^\| (?:\S+ and backward|forward|decoding), all, .*? \| \d+ of \d+ \| (.*?) \|", report, re.M)
    assert len(means) == 6
    assert set(means) <= set(texts(picture))


def test_a_lost_case_is_red_and_counted_and_an_undecided_one_is_neither() -> None:
    picture = parse(series(Ratio(2, 1.9, 2.1), Ratio(1.02, 0.99, 1.05), Ratio(0.5, 0.4, 0.6), Ratio(0.8, 0.7, 0.9), planned=6))
    assert [case_ticks(picture, colour) for colour in (BLUE, GREY, RED)] == [1, 1, 2]
    assert {"4 of 6", "2", "0.500 to 2.00", "ours & theirs", "a note"} <= set(texts(picture))


@pytest.mark.parametrize("ratio", [Ratio(1, 1, 1), Ratio(0.02, 0.01, 0.03), Ratio(300, 200, 500)])
def test_every_case_lies_within_the_axis(ratio: Ratio) -> None:
    picture = parse(series(ratio))
    lines = [float(line.attrib["x1"]) for line in picture.iter(f"{SVG}line") if line.attrib["class"] == "stroke-grid"]
    tick = next(path for path in picture.iter(f"{SVG}path") if "stroke-opacity" in path.attrib)
    assert min(lines) <= float(tick.attrib["d"][1:].split()[0]) <= max(lines)


def test_an_empty_series_and_a_missing_report_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="at least one case in each series, got none in 'none'"):
        parse(Series("none", [], Ratio(1, 1, 1), 3))
    with pytest.raises(SystemExit):
        front_chart.main(["--reports", str(tmp_path)])
    assert "persistent/report.json: cannot be read (No such file or directory)" in capsys.readouterr().err
