"""report.html in Chromium: filters, order, details, links, keyboard, phone, dark, without JavaScript, and what is blocked.

Needs Playwright and Chromium: without them these tests are skipped, but fail in CI.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pytest_ecornn
from pytest_ecornn.reporting import html, unproven
from pytest_ecornn.reporting.conclusions import Conclusions
from tests.helpers.reporting.browser import SLACK, OpenFile, check_accessibility, opening_and_filtering_ms, wait_until
from tests.helpers.reporting_samples import CASES, concluded, many_rows, row, sample_run, timing

ROOT = Path(__file__).parents[2]
TABLE = ".scroll:not([hidden])"  # as called, or device only


@pytest.fixture(scope="module")
def stored() -> str:
    """The page of the stored report of an H200."""
    report = pytest_ecornn.load_report(ROOT / "reports/h200")
    return html.render(report.run, Conclusions.of_run(report.run, report.rows))


def shown(page: Any) -> list[str]:
    """The cases that are shown, in their order."""
    return list(page.eval_on_selector_all(f"{TABLE} tbody tr:not([hidden])", "lines => lines.map(line => line.dataset.case)"))


def test_a_search_shows_the_cases_that_have_all_its_words(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored)
    everything = shown(page)
    page.fill("#search", "LSTM B20, training")
    assert shown(page) == [case for case in everything if {"lstm", "B20", "training"} <= {*case.split("-")}]
    assert 0 < len(shown(page)) < len(everything)
    assert page.inner_text("#count") == f"{len(shown(page))} of {len(everything)} cases"
    page.fill("#search", everything[0])
    assert shown(page)[0] == everything[0]
    page.fill("#search", "B2")  # not a part of B20
    assert shown(page) == []
    page.click("[type=reset]")
    wait_until(lambda: shown(page) == everything)
    assert page.input_value("#search") == ""


def test_a_choice_filters_and_combines_with_the_search(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored)
    page.select_option("[data-filter=mode]", "training")
    training = shown(page)
    assert training
    assert all(case.endswith("training") for case in training)
    page.fill("#search", "T35")
    assert shown(page) == [case for case in training if "-T35-" in case]


def test_a_header_sorts_both_ways_and_back(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored)
    first = shown(page)
    header = page.locator(f"{TABLE} thead th", has_text="transposed_gpu")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    column = page.locator(f"{TABLE} thead th").all_inner_texts().index(header.inner_text())
    speeds = page.eval_on_selector_all(
        f"{TABLE} tbody tr", f"lines => lines.map(line => parseFloat(line.children[{column}].dataset.speed) || 0)"
    )
    assert speeds == sorted(speeds, reverse=True)
    missing = speeds.count(0)
    descending = shown(page)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert missing > 0
    assert shown(page) == [*descending[:-missing][::-1], *descending[-missing:]]
    header.locator("button").click()
    assert header.get_attribute("aria-sort") is None
    assert shown(page) == first


def test_a_cell_shows_its_details_and_the_command_that_repeats_it(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored)
    page.fill("#search", "B20 training")
    names = page.locator(f"{TABLE} thead th").all_inner_texts()
    page.locator(f"{TABLE} tr:not([hidden]) > :nth-child({names.index('row_major_gpu') + 1}) button[data-row]").first.click()
    details = page.locator("dialog[open]")
    case = shown(page)[0]
    assert details.locator("h2").inner_text() == f"row_major_gpu on {case}"
    assert f"pytest --ecornn-bench --ecornn-only row_major_gpu --ecornn-case {case}" in details.inner_text()
    assert "times as fast, faster" in details.inner_text()
    wait_until(lambda: details.locator("canvas").count() == 2)  # samples as called and device only
    assert "row=row_major_gpu" in page.url
    page.keyboard.press("Escape")
    wait_until(lambda: "row=" not in page.evaluate("location.hash"))
    assert page.locator("dialog[open]").count() == 0


def test_a_link_shows_what_its_sender_saw_device_only_times_as_a_table_of_their_own(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored)
    page.fill("#search", "B20")
    assert page.locator(TABLE).get_attribute("data-column") == "timing"
    page.check("[name=column][value=replay]")
    assert page.locator(TABLE).get_attribute("data-column") == "replay"
    page.locator(f"{TABLE} thead th button", has_text="sequential").click()
    page.locator(f"{TABLE} tr:not([hidden]) button[data-row]").first.click()
    other = open_report(stored, page.url[page.url.index("#") :])
    assert shown(other) == shown(page)
    assert other.locator("dialog[open] h2").inner_text() == page.locator("dialog[open] h2").inner_text()
    assert other.locator(TABLE).get_attribute("data-column") == "replay"
    other.evaluate("location.hash = '#mode=training'")
    wait_until(lambda: other.locator("dialog[open]").count() == 0)
    assert all(case.endswith("training") for case in shown(other))
    nonsense = open_report(stored, "#row=none+such&column=none&sort=9.down&mode=none")
    assert shown(nonsense) == []


def test_the_keyboard_reaches_headers_and_cells(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored)
    page.locator(f"{TABLE} thead th button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(f"{TABLE} thead th").first.get_attribute("aria-sort") == "ascending"
    assert shown(page) == sorted(
        shown(page), key=lambda case: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", case)]
    )
    cell = page.locator(f"{TABLE} tr:not([hidden]) button[data-row]").first
    cell.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.row") == cell.get_attribute("data-row")


def test_without_javascript_it_is_a_page_of_tables(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored, java_script_enabled=False)
    assert page.locator(".scroll tbody tr:visible").count() == page.locator(".scroll tbody tr").count() > 0
    assert page.locator("caption:visible").all_inner_texts() == ["As called", "Device only"]
    assert not page.locator("#filters").is_visible()


def test_markup_in_names_runs_nothing(open_report: OpenFile) -> None:
    name = "<img src=x onerror='window.ran=1'><script>window.ran=1</script>"
    page = open_report(html.render(sample_run(), concluded([row(name, CASES[0], timing=timing(300.0, {}))])))
    page.locator("button[data-row]").first.click()
    assert page.locator("dialog[open] h2").inner_text().startswith(name)
    assert page.evaluate("window.ran") is None


def test_a_script_that_is_injected_is_blocked(open_report: OpenFile, stored: str) -> None:
    injected = stored.replace("<main>", "<main><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>")
    page = open_report(injected, expects_errors=True)
    assert page.evaluate("window.ran") is None
    assert len(shown(page)) > 0  # the page's own script runs


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("has_details", [False, True], ids=["tables", "details"])
def test_axe_finds_nothing(scheme: str, has_details: bool, open_report: OpenFile, stored: str) -> None:
    page = open_report(stored, color_scheme=scheme)
    if has_details:
        page.locator(f"{TABLE} button[data-row]").first.click()
    check_accessibility(page)


def test_a_phone_scrolls_the_table_and_not_the_page(open_report: OpenFile, stored: str) -> None:
    page = open_report(stored, viewport={"width": 390, "height": 800}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator(f"{TABLE} button[data-row]").first.tap()
    assert page.locator("dialog[open]").is_visible()


def test_5000_rows_open_in_1500_ms_and_are_filtered_in_100(open_report: OpenFile) -> None:
    rows = many_rows(5000)
    page = open_report(html.render(sample_run(), concluded(rows, unproven(rows))))
    opened_ms, filtered_ms = opening_and_filtering_ms(page, "#search")
    assert 0 < opened_ms < SLACK * 1500
    assert filtered_ms < SLACK * 100
    assert 0 < len(shown(page)) < 100
