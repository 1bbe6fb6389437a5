"""report.html without a browser: what stands in it, that nothing in a row becomes markup, and how large it gets."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ecornn.reporting import html, unproven
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.reporting.html import plots
from pytest_ecornn.results.rows import Row
from tests.helpers.reporting.outputs import Page
from tests.helpers.reporting_samples import CASES, HOSTILE, concluded, drawn, many_rows, row, sample_rows, sample_run, timing

LIBRARY = Path(html.__file__).parent / "vendor/uplot"
SCRIPTS = 7  # data, numbers, the library, three that draw by it, and the page's own
MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


def render(rows: list[Row]) -> str:
    return html.render(sample_run(), concluded(rows, unproven(rows)))


def data_of(text: str) -> Any:
    return json.loads(Page(text).raw["script"][0])


def test_a_run_that_timed_nothing_counts_what_it_verified() -> None:
    text = render([drawn("sequential", "lstm"), drawn("scan_cpu", "mingru"), row("scan_gpu", CASES[0], status="skipped")])
    assert "<h1>Recurrent layers, verified</h1>" in text
    assert '<p class="lead">2 implementations on 2 cases, ' in text
    assert "with a float64 reference; nothing was timed." in text
    assert "nothing was timed" in render([row("scan_cpu", CASES[0], status="failed", reason="wrong")])
    assert "nothing was timed" not in render(sample_rows())
    for rows in ([one for one in sample_rows() if one.kind != "benchmark"], []):
        assert "Nothing was timed." in render(rows)


def test_each_timed_row_has_a_cell_that_leads_to_its_figures() -> None:
    text, rows = render(sample_rows()), [one for one in sample_rows() if one.kind == "benchmark" and one.status != "skipped"]
    data, expected = data_of(text), {(one.implementation, one.case) for one in rows}
    names, cases = ([data["texts"][number] for number in data[column]] for column in ("implementation", "case"))
    assert set(zip(names, cases, strict=True)) == expected
    numbers = {attributes["data-row"] for attributes in Page(text).all("button") if "data-row" in attributes}
    assert {str(number) for number in range(len(rows))} >= numbers
    assert len(numbers) == len(expected)


def texts_of(text: str) -> list[str]:
    return re.findall(r'data-row="\d+">([^<]*)<', text)


def test_a_cell_without_a_ratio_says_why() -> None:
    alone = row("scan_cpu", CASES[0], timing=timing(300.0, {}))
    assert texts_of(render([alone])) == ["timed alone"]
    assert texts_of(render([alone, row("sequential", CASES[0], timing=timing(900.0, {}))])) == ["no ratio", "no ratio"]
    base = row("torch_cpu", CASES[0], timing=timing(900.0, {}))
    odd = timing(300.0, {"torch_cpu": 900.0})
    odd.against[0].ratio, odd.against[0].verdict = float("nan"), "unclear"
    assert texts_of(render([base, row("scan_cpu", CASES[0], timing=odd)])) == ["baseline", "unclear"]


def test_a_ratio_to_another_baseline_names_it() -> None:
    rows = [
        row("torch_cpu", CASES[0], timing=timing(900.0, {})),
        row("blocked_cpu", CASES[0], timing=timing(450.0, {"torch_cpu": 900.0})),
        row("scan_cpu", CASES[0], timing=timing(300.0, {"sequential": 900.0})),
        row("sequential", CASES[0], timing=timing(900.0, {"torch_cpu": 900.0})),
    ]
    assert "3.00x sequential" in texts_of(render(rows))


def test_what_failed_stands_before_everything_else() -> None:
    failed = row("scan_cpu", CASES[0], status="failed", reason="output: off by 1\nagain: pytest -k x")
    text = render([failed, *sample_rows()])
    assert text.index("off by 1") < text.index("<table>") < text.index("How sure this is")
    assert "again: pytest -k x" in text


def page_without_markup(text: str) -> Page:
    """Fails where markup of a row or run is markup of the page."""
    page = Page(text)
    assert (len(page.all("script")), page.all("img")) == (SCRIPTS, [])
    return page


@pytest.mark.parametrize("text", [HOSTILE, MARKUP], ids=["odd", "markup"])
@pytest.mark.parametrize("name", ["implementation", "case", "cell", "dtype", "device", "mode", "notes", "reason"])
def test_markup_in_a_row_is_text(name: str, text: str) -> None:
    bad = row("scan_cpu", CASES[0], timing=timing(300.0, {"torch_cpu": 900.0}))
    setattr(bad, name, text)
    failed = replace(bad, status="failed", timing=None, case=CASES[1] if name != "case" else text)
    page = page_without_markup(render([bad, failed, *sample_rows()]))
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    assert all(len(attributes) <= 8 for _, attributes in page.elements)
    json.loads(page.raw["script"][0])


def test_markup_in_the_run_is_text() -> None:
    run = replace(sample_run(), command=MARKUP, started=MARKUP, settings={MARKUP: MARKUP})
    run.machine["cpu"] = MARKUP
    page_without_markup(html.render(run, Conclusions.of_run(run, sample_rows())))


def test_the_page_runs_its_own_script_alone_and_fetches_nothing() -> None:
    text = render(sample_rows())
    page = Page(text)
    (policy,) = (one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    directives = dict(one.strip().split(" ", 1) for one in policy.split(";"))
    for tag, texts in (("script", page.raw["script"][1:]), ("style", page.raw["style"])):
        digests = [b64encode(sha256(text.encode()).digest()).decode() for text in texts]
        assert directives[f"{tag}-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not {key for _, attributes in page.elements for key in attributes} & {"src", "href", "srcset", "style", "action"}
    assert not re.findall(r"@import|url\(", page.raw["style"][0])


def test_the_library_is_inlined_unchanged_with_its_licence_where_there_are_pictures() -> None:
    """The digests are those of the published package."""
    published = {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    assert {name: sha256((LIBRARY / name).read_bytes()).hexdigest() for name in published} == published
    text, licence = render(sample_rows()), (LIBRARY / "LICENSE").read_text()
    script, style = ((LIBRARY / name).read_text() for name in published)
    assert script in Page(text).raw["script"]
    assert style in Page(text).raw["style"][0]
    assert f"<!-- {licence} -->" in text
    without = render([row("scan_cpu", CASES[0], status="failed", reason="off by 1")])
    assert "uPlot" not in without
    assert licence not in without


def test_what_is_no_number_is_still_json() -> None:
    odd = row("scan_cpu", CASES[0], timing=timing(float("nan"), {"torch_cpu": 900.0}))
    timing_of_row = data_of(render([odd]))["timing"][0]
    assert (timing_of_row[0][0], timing_of_row[3][0]) == (None, None)


def over_steps(name: str, steps: Sequence[int], us: float) -> list[Row]:
    return [row(name, f"mingru-T{one}-B8-H64-float32", timing=timing(us * one, {})) for one in steps]


def test_cases_that_differ_in_one_size_are_a_curve() -> None:
    rows = [*over_steps("scan_cpu", (16, 64, 256), 0.5), *over_steps("sequential", (16, 64, 256), 3.0)]
    ((curve,), omitted) = plots.curves_of(rows, set())
    assert (curve.title, omitted) == ("mingru-B8-H64-float32, as called", 0)
    picture = ElementTree.fromstring(curve.svg)
    assert len([one for one in picture.iter() if one.tag.endswith("polyline")]) == 2
    assert len([one for one in picture.iter() if "interval" in one.get("class", "").split()]) == 6
    assert {"T, time steps", "16", "64", "256", "scan_cpu", "sequential"} <= {one.text for one in picture.iter()}
    assert curve.svg in render(rows)
    shown, _ = data_of(render(rows))["pictures"]  # a roofline is the other one
    assert shown["axes"] == ["T, time steps", "us a call"]
    assert shown["column"] == "timing"
    assert shown["x"] == [[16, 64, 256], [16, 64, 256]]
    assert sorted(number for numbers in shown["rows"] for number in numbers) == [0, 1, 2, 3, 4, 5]
    assert {*shown} == {"axes", "colours", "column", "rows", "x"}  # times are those of the rows


def test_two_sizes_and_unproven_times_are_no_curve() -> None:
    assert plots.curves_of(over_steps("scan_cpu", (16, 64), 0.5), set()) == ([], 0)
    rows = over_steps("scan_cpu", (16, 64, 256), 0.5)
    assert plots.curves_of(rows, {rows[0].key}) == ([], 0)
    assert plots.curves_of([replace(one, case="not a case") for one in rows], set()) == ([], 0)


def test_the_input_size_follows_the_hidden_size() -> None:
    rows = [row("scan_cpu", f"lstm-T4-B2-H{size}-float32", timing=timing(size, {})) for size in (32, 64, 128)]
    ((curve,), _) = plots.curves_of(rows, set())
    assert "hidden units" in curve.svg


def test_so_many_curves_are_drawn_and_the_others_counted() -> None:
    rows = [
        row("scan_cpu", f"mingru-T{steps}-B{batch}-H64-float32", timing=timing(steps, {}))
        for batch in range(100, 100 + 2 * plots.MAX_CURVES, 2)
        for steps in (4, 8, 16)
    ]
    drawn, omitted = plots.curves_of(rows, set())
    assert len(drawn) == plots.MAX_CURVES
    assert omitted == 3  # over B, for each number of steps
    assert f"{omitted} more are left out." in render(rows)


def test_a_roofline_has_a_point_a_row_below_what_was_measured() -> None:
    ceilings = {"copy_points": {"1024": 500.0, "1000000": 50.0}, "matmul_gflop_per_s": {"float32": 800.0}}
    rows = over_steps("scan_cpu", (16, 64), 0.5)
    for one in rows:
        assert one.timing
        one.timing.operations, one.timing.bytes, one.timing.gflop_per_s = 4000, 1000, 120.0
    rows[0].timing.gflop_per_s = 60.0  # type: ignore[union-attr]
    (picture,) = plots.rooflines_of(rows, set(), ceilings)
    assert picture.title == "float32 on cpu"
    drawn = ElementTree.fromstring(picture.svg)
    (roof,) = [one.attrib for one in drawn.iter() if one.tag.endswith("polyline")]
    assert len(roof["points"].split()) == 3
    circles = [one.attrib for one in drawn.iter() if one.tag.endswith("circle") and "fill-page" not in one.attrib["class"]]
    assert len({circle["cy"] for circle in circles}) >= 2
    assert any("memory 50.0 GB/s, products 800 GFLOP/s" in (one.text or "") for one in drawn.iter())
    text = html.render(replace(sample_run(), ceilings=ceilings), concluded(rows))
    assert picture.svg in text
    (shown,) = data_of(text)["pictures"]
    assert (shown["rows"], shown["x"], shown["y"]) == ([[0, 1]], [[4.0, 4.0]], [[60.0, 120.0]])
    assert shown["roof"] == [50.0, 800.0]


def test_what_has_no_ceiling_or_work_has_no_roofline() -> None:
    rows = over_steps("scan_cpu", (16,), 0.5)
    whole = {"copy_points": {"1": 2.0}, "matmul_gflop_per_s": {"float32": 3.0}}
    odd = ({"x": 1.0}, {"1": "fast"}, {"1": float("nan")}, {"9" * 5000: 1.0}, "fast", None, 3, {"float16": 3.0})
    for ceilings in ({}, *({**whole, name: points} for points in odd for name in whole)):
        assert plots.rooflines_of(rows, set(), ceilings) == []
    assert rows[0].timing
    rows[0].timing.operations = 0
    assert plots.rooflines_of(rows, set(), whole) == []


def test_5000_rows_are_4_mb_at_most() -> None:
    assert len(render(many_rows(5000)).encode()) < 4e6
