"""The published site in Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.publishing import publish
from tests.helpers.reporting.browser import SLACK, OpenFile, check_accessibility, opening_and_filtering_ms, wait_until
from tests.helpers.reporting_samples import many_rows, row, sample_run, timing
from tests.helpers.stored_histories import RUNS, write_history, write_report

QUESTION = "LSTM 2 x 650, B 32, T 35, bfloat16, training"
CASE = "lstm-T35-B32-H650-L2-bfloat16-training"
REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    write_history(folder / "results/steady", {"step": [3_000.0 + run % 3 for run in range(12)] + [3_300.0] * (RUNS - 12)})
    others = ("lstm-T35-B32-H650-L2-float32-training", "lstm-T35-B3-H650-bfloat16", "gru-T35-B32-H650-L2-bfloat16-training")
    rows = [row("torch_cpu", case, timing=timing(7_000.0, {})) for case in (CASE, *others)]
    rows += [row("scan_cpu", case, timing=timing(3_000.0, {"torch_cpu": 7_000.0})) for case in (CASE, *others)]
    write_report(folder / "results/other", sample_run(), rows)
    publish.publish(folder / "results", folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this repository's reports."""
    folder = tmp_path_factory.mktemp("committed")
    (folder / "results").mkdir()
    for name in ("cpu", "h100", "h200"):
        (folder / "results" / name).symlink_to(REPORTS / name)
    publish.publish(folder / "results", folder / "site")
    return folder / "site"


def shown(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        ".searched tbody tr:not([hidden])", "lines => lines.map(line => line.dataset.case)"
    )
    return found


def test_a_question_is_answered_in_two_clicks(site: Path, open_file: OpenFile) -> None:
    page = open_file(site / "index.html")
    page.fill(".search input", QUESTION)
    assert shown(page) == [CASE]
    answer = page.locator(".searched tr:not([hidden]) td", has_text="scan_cpu")
    assert answer.locator("strong").inner_text() == "scan_cpu 3.00 ms"
    assert "0.43 [0.42, 0.44] to torch_cpu, faster" in answer.inner_text()
    answer.locator("a").click()
    wait_until(lambda: page.locator("dialog[open] h2").count() == 1)
    assert page.locator("dialog[open] h2").inner_text() == f"scan_cpu on {CASE}"


COUNTS = {
    "lstm 2x650 b32 t35 bfloat16 training": 1,
    "L2 H650 lstm training bfloat16": 1,
    "T 35; b 32;H650 bf lstm tr": 1,
    "650": 4,
    "scan_cpu 650": 4,
    "torch_cpu 650": 0,  # is the fastest of none
    "lstm 650 inference": 1,
    "LSTM 2 layers hidden 650 batch 32 training": 2,
    "T=35 1 x 650": 1,
    "651": 0,
}


@pytest.mark.parametrize("written", COUNTS)
def test_a_case_is_found_however_it_is_written(written: str, site: Path, open_file: OpenFile) -> None:
    page = open_file(site / "index.html")
    page.fill(".search input", written)
    assert len(shown(page)) == COUNTS[written]
    assert "bf" not in written or shown(page) == [CASE]


def test_a_search_is_in_the_address(site: Path, open_file: OpenFile) -> None:
    page = open_file(site / "index.html")
    page.fill(".search input", QUESTION)
    assert shown(open_file(site / "index.html", page.evaluate("location.hash"))) == [CASE]


def test_a_change_leads_to_its_row(site: Path, open_file: OpenFile) -> None:
    page = open_file(site / "index.html")
    page.locator("section[aria-labelledby=changes] li a").click()
    wait_until(lambda: "steady/index.html" in page.url)
    (step,) = page.locator("tr:target:visible").all()
    assert "slower" in step.inner_text()
    assert step.locator(".step").count() == 1
    page.locator("nav a").click()
    wait_until(lambda: page.url.endswith("site/index.html"))


def test_without_javascript_it_is_a_page_of_tables(site: Path, open_file: OpenFile) -> None:
    page = open_file(site / "index.html", java_script_enabled=False)
    assert page.locator(".searched tbody tr:visible").count() == page.locator(".searched tbody tr").count() > 0
    assert not page.locator(".search").is_visible()


def test_the_committed_reports_answer_the_question_in_two_clicks(committed: Path, open_file: OpenFile) -> None:
    page = open_file(committed / "index.html")
    page.fill(".search input", QUESTION)
    case = "lstm-T35-B32-H650-L2-bfloat16-cuda-training"
    assert case in shown(page)
    line = page.locator(f'.searched tr[data-case="{case}"]').first
    assert "faster; persistent: each ratio alone" in line.inner_text()
    line.locator("a").first.click()
    wait_until(lambda: page.url.endswith((".html", "training")) and "index.html" not in page.url)
    assert "H650" in page.content() or "650" in page.content()


PAGES = [("site", "index.html"), ("site", "steady/index.html"), ("committed", "h200/persistent/persistent.html")]
WIDE = [("committed", name) for name in ("index.html", "h200/index.html", "h200/ecornn.html", "h100/deepbench/deepbench.html")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("of", "name"), PAGES)
def test_axe_finds_nothing(of: str, name: str, scheme: str, request: pytest.FixtureRequest, open_file: OpenFile) -> None:
    check_accessibility(open_file(request.getfixturevalue(of) / name, color_scheme=scheme))


@pytest.mark.parametrize(("of", "name"), [*PAGES, *WIDE])
def test_a_phone_scrolls_tables_and_not_the_page(
    of: str, name: str, request: pytest.FixtureRequest, open_file: OpenFile
) -> None:
    page = open_file(request.getfixturevalue(of) / name, viewport={"width": 390, "height": 800}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_script_that_is_injected_is_blocked(site: Path, open_file: OpenFile, tmp_path: Path) -> None:
    text = (site / "index.html").read_text()
    injected = text.replace("<main>", "<main><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>")
    (tmp_path / "index.html").write_text(injected)
    page = open_file(tmp_path / "index.html", expects_errors=True)
    assert page.evaluate("window.ran") is None
    assert page.locator(".search").is_visible()  # the page's own script runs


def test_5000_rows_open_in_1500_ms_and_are_filtered_in_100(open_file: OpenFile, tmp_path: Path) -> None:
    rows = many_rows(5000)
    for one in rows:
        assert one.timing
        one.timing.samples_us = one.timing.samples_us[:1]
    for number in range(2):
        run = sample_run()
        run.started = f"2026-01-{number + 1:02}T00:00:00+00:00"
        write_report(tmp_path / f"results/one/{number}", run, rows)
    publish.publish(tmp_path / "results", tmp_path / "site")
    for name in ("index.html", "one/index.html"):
        page = open_file(tmp_path / "site" / name)
        opened_ms, filtered_ms = opening_and_filtering_ms(page, ".search input")
        size = (tmp_path / "site" / name).stat().st_size
        assert size < 4e6
        assert 0 < opened_ms < SLACK * 1500
        assert filtered_ms < SLACK * 100
        assert 0 < len(shown(page)) < 400
