"""Widths of texts without a font at hand: never less than what common sans-serif fonts take, so that nothing overlaps.

For each character of ASCII the larger advance of DejaVu Sans and Liberation Sans, in hundredths of the size.
"""

from __future__ import annotations

import re

_CHARS_BY_ADVANCE = {
    28: "'ijl", 30: "I", 32: " ,.", 34: "/:;\\|", 36: "f", 37: "-", 40: "()[]t", 41: "!", 42: "r", 46: "\"", 50: "*J`",
    53: "sz", 55: "c", 56: "?L_", 58: "k", 60: "vxy", 62: "FTaeo", 64: "0123456789$bdghnpqu{}", 67: "EKPSY", 69: "ABVXZ",
    73: "CR", 74: "U", 75: "N", 76: "H", 78: "&DG", 79: "OQ", 82: "w", 84: "#+<=>^~", 87: "M", 96: "%", 98: "m", 99: "W",
    102: "@",
}  # fmt: skip
_ADVANCES = {char: advance / 100 for advance, chars in _CHARS_BY_ADVANCE.items() for char in chars}
_OTHER = 1.1  # advance of a character beyond ASCII
_BOLD = 1.15  # of a bold text over the same in regular
_CUT = "..."
_PIECES = re.compile(r"[^\s-]*(?:-+|\s+|$)")  # a line may break after each


def width(text: str, size: float, is_bold: bool = False) -> float:
    """Returns the most pixels that a line of text takes."""
    return size * sum(_ADVANCES.get(char, _OTHER) for char in text) * (_BOLD if is_bold else 1.0)


def cut(text: str, room: float, size: float, is_bold: bool = False) -> str:
    """Returns the text, or as much of it as has room with three dots after it."""
    if width(text, size, is_bold) <= room:
        return text
    text = text[: int(room / (size * min(_ADVANCES.values()))) + 1]
    while text and width(text.rstrip() + _CUT, size, is_bold) > room:
        text = text[:-1]
    return text.rstrip() + _CUT


def wrap(text: str, room: float, size: float, is_bold: bool = False, max_lines: int = 2) -> list[str]:
    """Returns lines, broken after spaces and hyphens. The last is cut where the text takes more lines."""
    lines = [""]
    for piece in _PIECES.findall(text):
        if lines[-1] and len(lines) < max_lines and width((lines[-1] + piece).rstrip(), size, is_bold) > room:
            lines.append("")
        lines[-1] += piece
    return [cut(line.rstrip(), room, size, is_bold) for line in lines]
