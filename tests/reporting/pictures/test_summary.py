"""summary.svg: nothing unproven has a point, failures are named, and every run has a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

import pytest_ecornn
from pytest_ecornn.reporting import unproven
from pytest_ecornn.reporting.pictures import summary
from pytest_ecornn.reporting.pictures.case_chart import Band, Mark
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio
from tests.helpers.reporting.pictures import SVG, boxes, of_role, outside, overlaps, texts
from tests.helpers.reporting_samples import (
    CASES,
    concluded,
    drawn,
    hostile_rows,
    many_rows,
    row,
    sample_rows,
    sample_run,
    timing,
)

ROOT = Path(__file__).parents[3]
MAX_BYTES = 100_000


def render(rows: Sequence[Row]) -> ElementTree.Element:
    return ElementTree.fromstring(text_of(rows))


def text_of(rows: Sequence[Row]) -> str:
    return summary.render(sample_run(), concluded(rows, unproven(rows)))


def bands(root: ElementTree.Element) -> list[str]:
    """The texts that are cases."""
    return [text for text in texts(root) if text.startswith(("lstm-", "mingru-", "gru-"))]


def points(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [one for one in of_role(root, "point") if one.tag == f"{SVG}circle"]


def pair(case: str, time_us: float) -> list[Row]:
    return [
        row("torch_cpu", case, timing=timing(900.0, {})),
        row("scan_cpu", case, timing=timing(time_us, {"torch_cpu": 900.0})),
    ]


SKIPPED = [row("a", CASES[0], status="skipped", reason="no")]
FAILED = [row("a", CASES[0], status="failed", reason="wrong")]
COMMITTED = [pytest_ecornn.load_report(ROOT / "reports" / name).rows for name in ("cpu", "h200")]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        SKIPPED,
        FAILED,
        pair(CASES[0], 300.0),
        [drawn("a", "lstm")],
        sample_rows(),
        hostile_rows(),
        many_rows(2000),
        *COMMITTED,
    ],
    ids=["none", "skipped", "failed", "one case", "verified", "sample", "hostile", "500 cases", "cpu", "h200"],
)
def test_a_picture_is_small_and_fetches_nothing_and_its_texts_are_apart(rows: list[Row]) -> None:
    text = text_of(rows)
    root = ElementTree.fromstring(text)
    assert len(text) < MAX_BYTES
    drawn_elements = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert drawn_elements <= {"svg", "style", "rect", "line", "path", "circle", "text"}
    markup = re.sub(r"<text[^>]*>[^<]*</text>", "", text)
    assert re.findall(r"\w+://[^\"]*", markup) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|@import|@font-face| on\w+=", markup)
    assert overlaps(boxes(root)) == []
    assert outside(root, boxes(root)) == []


def test_what_is_unproven_failed_or_refused_is_a_text() -> None:
    root = render(sample_rows())
    shown = texts(root)
    assert "refused: torch.nn has no mingru" in shown
    assert any(text.startswith("failed: scan_wrong on mingru: output[3, 0, 7]") for text in shown)
    assert shown.count("unproven") == 1
    assert "Refused every case: scan_gpu." in shown
    assert sum(text.startswith("failed: ") and "(drawn)" in text for text in shown) == 1
    assert len(points(root)) == 3 + 3 + 2 + 1


def test_cases_that_all_refuse_are_counted_and_not_shown() -> None:
    refused = [row(name, case, status="skipped", reason="no") for name in ("torch_cpu", "mine") for case in CASES[1:3]]
    root = render([*pair(CASES[0], 300.0), *refused])
    assert bands(root) == [CASES[0]]
    assert "2 cases not shown: refused by every implementation." in texts(root)
    assert "refused by every" not in " ".join(texts(render(pair(CASES[0], 300.0))))


def test_failures_come_first_then_the_largest_differences() -> None:
    cases = [f"lstm-T{steps}-B1-H8-float32" for steps in (1, 2, 3, 4)]
    rows = [one for case, time_us in zip(cases, (800.0, 3000.0, 450.0, 890.0), strict=True) for one in pair(case, time_us)]
    rows.append(row("mine", cases[3], status="failed", reason="wrong"))
    assert bands(render(rows)) == [cases[3], cases[1], cases[2], cases[0]]


def test_so_many_cases_are_shown_and_the_others_counted() -> None:
    root = render(many_rows(2000))
    shown = summary.MAX_ROWS // 4
    assert len(of_role(root, "band")) == shown
    lines = " ".join(texts(root))
    assert f"{shown} of 500 cases are shown: failures first, then the largest certain differences." in lines
    assert "report.html has all of them." in lines


def test_a_case_with_more_rows_than_there_is_room_for_is_shown() -> None:
    marks = [Mark(f"n{number}", "faster", Ratio(2, 2, 2)) for number in range(summary.MAX_ROWS + 1)]
    assert summary.select([Band("a", "", "", marks), Band("b", "", "", marks)]) == [Band("a", "", "", marks)]
    assert summary.select([]) == []


MINE = row("mine", CASES[0], timing=timing(300.0, {"sequential": 900.0}))
SAID = {
    "a baseline without a row of its own": (pair(CASES[0], 300.0)[1:], {"900 us", "torch_cpu"}),
    "another baseline": (
        [*pair(CASES[0], 300.0), MINE, row("sequential", CASES[0], timing=timing(900.0, {"torch_cpu": 900.0}))],
        {"mine / sequential"},
    ),
    "alone": ([row("scan_cpu", CASES[0], timing=timing(300.0, {}))], {"timed alone"}),
    "an empty run": ([], {"Nothing was run"}),
    "no proven time": (FAILED, {"No time may be shown: nothing that was timed is proven."}),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_compared_with_what_is_said(name: str) -> None:
    rows, said = SAID[name]
    assert said <= set(texts(render(rows)))


def test_by_an_unproven_baseline() -> None:
    assert summary.render(sample_run(), concluded(pair(CASES[0], 300.0))) != text_of(pair(CASES[0], 300.0)[1:])
    doubted = pair(CASES[0], 300.0)
    root = ElementTree.fromstring(summary.render(sample_run(), concluded(doubted, {doubted[0].key})))
    assert [one.attrib["class"].split()[0] for one in points(root)] == ["fill-page"]


def test_a_run_that_times_nothing_counts_verdicts() -> None:
    rows = [row("mine", CASES[0], "fixed"), row("mine", CASES[1], "fixed", "failed", reason="wrong")]
    rows += [row("theirs", case, "fixed", "skipped", reason="no") for case in CASES]
    root = render(rows)
    assert {"Checks that passed, failed or were refused", "Nothing was timed.", "passed", "failed", "refused"} <= set(
        texts(root)
    )
    bars = [(one.attrib["class"].split()[0], float(one.attrib["width"])) for one in of_role(root, "bar")]
    assert [colour for colour, _ in bars] == ["fill-blue", "fill-red", "fill-weak"]
    assert bars[2][1] == pytest.approx(4 * bars[0][1], abs=0.5)
