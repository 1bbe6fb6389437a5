"""Primitives of all pictures: texts, lines and shapes in the colours of the palette, and the SVG that they make.

Whatever text is drawn is escaped, and stays one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, tostring

from pytest_ecornn.reporting.pictures import palette
from pytest_ecornn.results.formatting import one_line

TEXT_SIZE, TITLE_SIZE = 13, 16
BASELINE = 0.35  # of a text's size: from its middle down to its baseline
_FONTS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_ROOT_CLASS = palette.fill_class("ink")


@dataclass(frozen=True)
class Picture:
    """A whole picture. width, height: in pixels. title: what a screen reader says."""

    title: str
    width: float
    height: float
    parts: Sequence[Element]

    def document(self) -> str:
        """Returns a file of its own, with its style and background."""
        root = self._root([_style(self.parts), *self._shapes()])
        root.set("role", "img")
        root.set("aria-label", one_line(self.title))
        return tostring(root, encoding="unicode") + "\n"

    def inline(self) -> str:
        """Returns an element for a page that has `palette.style_sheet()` and names the picture."""
        return tostring(self._root(self._shapes()), encoding="unicode")

    def _shapes(self) -> list[Element]:
        return [rectangle(0, 0, self.width, self.height, "page"), *self.parts]

    def _root(self, children: Iterable[Element]) -> Element:
        width, height = _number(self.width), _number(self.height)
        attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}"}
        style = {"class": _ROOT_CLASS, "font-family": _FONTS, "font-size": str(TEXT_SIZE)}
        root = Element("svg", {**attributes, "width": width, "height": height, **style})
        root.text = "\n"
        for child in children:
            child.tail = "\n"
            root.append(child)
        return root


def text(
    x: float, y: float, content: object, *, anchor: str = "start", size: float = TEXT_SIZE, is_bold: bool = False,
    fill: str = "",
) -> Element:  # fmt: skip
    """A line of text from the left end of its baseline, or from its middle or end by the anchor. fill: ink where empty."""
    element = _element("text", fill, "", x=x, y=y)
    if anchor != "start":
        element.set("text-anchor", anchor)
    if size != TEXT_SIZE:
        element.set("font-size", _number(size))
    if is_bold:
        element.set("font-weight", "bold")
    element.text = one_line(content)
    return element


def line(
    x1: float, y1: float, x2: float, y2: float, stroke: str = "grid", *, width: float = 1, dashes: str = "", role: str = ""
) -> Element:
    """A straight line. role: a class that says what it shows."""
    return _stroked(_element("line", "", stroke, role, x1=x1, y1=y1, x2=x2, y2=y2), width, dashes)


def polyline(points: Iterable[tuple[float, float]], stroke: str, *, width: float = 1, dashes: str = "") -> Element:
    """Points that are joined."""
    element = _stroked(_element("polyline", "", stroke, fill_none=True), width, dashes)
    element.set("points", " ".join(f"{_number(x)},{_number(y)}" for x, y in points))
    return element


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, *, stroke: str = "", radius: float = 0, dashes: str = "",
    role: str = "",
) -> Element:  # fmt: skip
    """A rectangle. fill: none where empty. radius: of its corners."""
    element = _element("rect", fill, stroke, role, x=x, y=y, width=width, height=height, fill_none=not fill)
    if radius:
        element.set("rx", _number(radius))
    return _stroked(element, 1, dashes)


def circle(x: float, y: float, radius: float, fill: str, stroke: str, role: str = "") -> Element:
    """A point of a chart."""
    return _stroked(_element("circle", fill, stroke, role, cx=x, cy=y, r=radius), 1.5, "")


def path(data: str, *, fill: str = "", stroke: str = "", width: float = 1, dashes: str = "", role: str = "") -> Element:
    """A shape by its path data. fill: none where empty."""
    element = _stroked(_element("path", fill, stroke, role, fill_none=not fill), width, dashes)
    element.set("d", data)
    return element


def diamond(x: float, y: float, half: float, fill: str, stroke: str = "", role: str = "") -> Element:
    """A square on its corner around (x, y)."""
    left, size = _number(x - half), _number(half)
    data = f"M{left} {_number(y)}l{size} -{size}l{size} {size}l-{size} {size}z"
    return path(data, fill=fill, stroke=stroke, width=1.5, role=role)


def turned(x: float, y: float, content: object) -> Element:
    """A text that reads upwards, its middle at (x, y)."""
    element = text(0, 0, content, anchor="middle")
    element.set("transform", f"translate({_number(x)}, {_number(y)}) rotate(-90)")
    return element


def _element(tag: str, fill: str, stroke: str, role: str = "", *, fill_none: bool = False, **numbers: float) -> Element:
    classes = [palette.fill_class(fill) if fill else "", palette.stroke_class(stroke) if stroke else "", role]
    attributes = {"class": " ".join(filter(None, classes))} if any(classes) else {}
    element = Element(tag, {**attributes, **{name: _number(value) for name, value in numbers.items()}})
    if fill_none:
        element.set("fill", "none")
    return element


def _stroked(element: Element, width: float, dashes: str) -> Element:
    if width != 1:
        element.set("stroke-width", _number(width))
    if dashes:
        element.set("stroke-dasharray", dashes)
    return element


def _style(parts: Iterable[Element]) -> Element:
    """The rules of the classes that the parts have."""
    classes = {name for part in parts for element in part.iter() for name in element.get("class", "").split()}
    style = Element("style")
    style.text = "\n" + palette.style_sheet({*classes, _ROOT_CLASS, palette.fill_class("page")})
    return style


def _number(value: float) -> str:
    """Tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
