"""A picture is whole by itself or part of a page, and nothing in a text is markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pytest_ecornn.reporting.pictures import svg
from tests.helpers.reporting.pictures import SVG, texts
from tests.helpers.reporting_samples import HOSTILE

PICTURE = svg.Picture(
    HOSTILE, 100, 50.25, [svg.text(1, 2, HOSTILE), svg.line(0, 0, 9.96, 1, "red", role="interval"), svg.turned(5, 5, "up")]
)


def test_a_document_has_its_style_background_and_name() -> None:
    root = ElementTree.fromstring(PICTURE.document())
    style = root.find(f"{SVG}style")
    assert style is not None
    assert "@media (prefers-color-scheme: dark)" in (style.text or "")
    assert set(re.findall(r"\.([\w-]+) \{", style.text or "")) == {"fill-page", "fill-ink", "stroke-red"}
    assert root.attrib["viewBox"] == "0 0 100 50.2"
    assert (root.attrib["role"], root.attrib["aria-label"]) == ("img", svg.one_line(HOSTILE))
    background = root[1]
    assert (background.tag, background.attrib["class"], background.attrib["height"]) == (f"{SVG}rect", "fill-page", "50.2")


def test_an_element_of_a_page_has_neither_style_nor_name() -> None:
    root = ElementTree.fromstring(PICTURE.inline())
    assert root.find(f"{SVG}style") is None
    assert "aria-label" not in root.attrib


def test_texts_are_escaped_and_one_line() -> None:
    for text in (PICTURE.document(), PICTURE.inline()):
        assert "<script" not in text
        assert "\x1b" not in text
        assert texts(ElementTree.fromstring(text)) == [svg.one_line(HOSTILE), "up"]


def test_positions_are_tenths_of_a_pixel() -> None:
    assert '<line class="stroke-red interval" x1="0" y1="0" x2="10" y2="1" />' in PICTURE.document()
