"""Pictures in Chromium, with the fonts of the machine: no text lies over another, and a dark page has a dark picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.reporting import unproven
from pytest_ecornn.reporting.pictures import summary
from tests.helpers.reporting.pictures import Box, overlaps
from tests.helpers.reporting_samples import concluded, drawn, hostile_rows, many_rows, sample_rows, sample_run

ROOT = Path(__file__).parents[3]
TEXTS = """() => [...document.querySelectorAll("text")].filter(one => !one.hasAttribute("transform")).map(one => {
    const box = one.getBBox(), size = parseFloat(getComputedStyle(one).fontSize), baseline = parseFloat(one.getAttribute("y"));
    return [one.textContent, box.x, box.x + box.width, baseline - 0.8 * size, baseline + 0.2 * size] })"""
PICTURES = (path for folder in ("reports", "docs") for path in (ROOT / folder).rglob("*.svg"))
COMMITTED = sorted(path.relative_to(ROOT).as_posix() for path in PICTURES if "local" not in path.parts)
ROWS = {"sample": sample_rows(), "hostile": hostile_rows(), "500 cases": many_rows(2000), "verified": [drawn("a", "lstm")]}


def texts_are_apart(browser: Any, path: Path) -> None:
    page = browser.new_page(viewport={"width": 830, "height": 900})
    page.goto(path.as_uri())
    found = [Box(*one) for one in page.evaluate(TEXTS)]
    width = float(page.evaluate("() => document.documentElement.getAttribute('width')"))
    page.close()
    assert len(found) > 2
    assert overlaps(found) == []
    assert [one.text for one in found if one.left < 0 or one.right > width] == []


@pytest.mark.parametrize("rows", ROWS)
def test_texts_of_a_summary_are_apart(browser: Any, tmp_path: Path, rows: str) -> None:
    (tmp_path / "summary.svg").write_text(summary.render(sample_run(), concluded(ROWS[rows], unproven(ROWS[rows]))))
    texts_are_apart(browser, tmp_path / "summary.svg")


@pytest.mark.parametrize("name", COMMITTED)
def test_texts_of_a_committed_picture_are_apart(browser: Any, name: str) -> None:
    texts_are_apart(browser, ROOT / name)


@pytest.mark.parametrize(("scheme", "page", "ink"), [("light", "rgb(255, 255, 255)", "rgb(31, 35, 40)"),
                                                     ("dark", "rgb(13, 17, 23)", "rgb(230, 237, 243)")])  # fmt: skip
def test_a_picture_follows_its_readers_scheme(browser: Any, scheme: str, page: str, ink: str) -> None:
    opened = browser.new_page(color_scheme=scheme)
    opened.goto((ROOT / "reports/cpu/summary.svg").as_uri())
    fill = "selector => getComputedStyle(document.querySelector(selector)).fill"
    assert (opened.evaluate(fill, "rect"), opened.evaluate(fill, "text")) == (page, ink)
    opened.close()
