"""What wide charts share: a title above, footnotes below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from pytest_ecornn.reporting.pictures import svg

# In pixels: the width, what is left free around, and from a footnote to the next.
WIDTH, MARGIN, FOOTNOTE = 1000, 20, 19
_TITLE_BASELINE, _BELOW = 30, 13


def page(title: str, parts: Iterable[Element], footnotes: Sequence[str], first_footnote: float) -> svg.Picture:
    """A picture with a title, parts, and footnotes, a line each. first_footnote: the first one's baseline."""
    lines = [svg.text(MARGIN, first_footnote + FOOTNOTE * row, note, fill="weak") for row, note in enumerate(footnotes)]
    height = first_footnote + FOOTNOTE * (len(footnotes) - 1) + _BELOW
    head = svg.text(MARGIN, _TITLE_BASELINE, title, size=svg.TITLE_SIZE, is_bold=True)
    return svg.Picture(title, WIDTH, height, [head, *parts, *lines])
