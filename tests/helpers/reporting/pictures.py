"""What tests read of pictures: elements by what they show, texts, and the place that each text takes at most."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg
from pytest_ecornn.reporting.pictures.text_width import width

SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    """Where a text is, in pixels."""

    text: str
    left: float
    right: float
    top: float
    bottom: float


def of_role(picture: Element, role: str) -> list[Element]:
    """Elements with this class, in order."""
    return [element for element in picture.iter() if role in element.get("class", "").split()]


def texts(picture: Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def boxes(picture: Element) -> list[Box]:
    """One for each text that does not lie on its side."""
    return [_box(text) for text in picture.iter(f"{SVG}text") if text.text and "transform" not in text.attrib]


def _box(text: Element) -> Box:
    size = float(text.get("font-size", svg.TEXT_SIZE))
    wide = width(text.text or "", size, text.get("font-weight") == "bold")
    left = float(text.attrib["x"]) - {"start": 0.0, "middle": wide / 2, "end": wide}[text.get("text-anchor", "start")]
    baseline = float(text.attrib["y"])
    return Box(text.text or "", left, left + wide, baseline - 0.8 * size, baseline + 0.2 * size)


def overlaps(found: list[Box]) -> list[tuple[str, str]]:
    """Pairs of texts of which one lies over the other, by over half a pixel."""
    return [
        (one.text, other.text)
        for one, other in combinations(found, 2)
        if min(one.right, other.right) - max(one.left, other.left) > 0.5
        and min(one.bottom, other.bottom) - max(one.top, other.top) > 0.5
    ]


def outside(picture: Element, found: list[Box]) -> list[str]:
    """Texts that leave the picture."""
    wide, high = float(picture.attrib["width"]), float(picture.attrib["height"])
    return [one.text for one in found if one.left < 0 or one.right > wide + 0.5 or one.top < 0 or one.bottom > high]
