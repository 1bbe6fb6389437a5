"""summary.svg: the summary table as a picture that needs nothing from anywhere: no fonts to fetch, no scripts, no links."""

from __future__ import annotations

import io
import re
from html import escape, unescape

from rich.console import Console
from rich.table import Table
from rich.terminal_theme import TerminalTheme

from pytest_ecornn.results.formatting import one_line

# Each of them legible on white.
COLOURS = (
    (31, 35, 40),
    (190, 30, 40),
    (20, 120, 50),
    (150, 100, 0),
    (20, 80, 180),
    (130, 60, 160),
    (20, 120, 130),
    (110, 119, 129),
)
FONTS = "'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace"
_THEME = TerminalTheme((255, 255, 255), COLOURS[0], list(COLOURS))
_TEXT = re.compile(
    r'x="(?P<x>[\d.]+)" (?P<y>y="[\d.]+") textLength="(?P<length>[\d.]+)"(?P<rest>[^>]*)>'
    r"(?P<before>(&#160;)*)(?P<text>[^<]*?)(?P<after>(&#160;)*)</text>"
)
_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: FONTS; font-size: {char_height}px; line-height: {line_height}px; }}
text {{ white-space: pre; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect width="100%" height="100%" fill="white"/>
<text class="{unique_id}-matrix" x="{terminal_x}" y="26" fill="dimgray">TITLE</text>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
""".replace("FONTS", FONTS)


def render_svg(table: Table, title: str = "") -> str:
    """The table on one line a row, as wide as it needs to be."""
    measuring = Console(file=io.StringIO(), width=10_000, _environ={})
    width = max(measuring.measure(table).maximum, len(title) + 2)
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True, color_system="truecolor", _environ={})
    console.print(table)
    svg = console.export_svg(theme=_THEME, code_format=_FORMAT)
    return _TEXT.sub(_without_margins, svg).replace("TITLE", escape(one_line(title)), 1)


def _without_margins(match: re.Match[str]) -> str:
    """Places a text where its first letter is: some viewers drop the spaces before it, and with them the alignment."""
    before, text, after = (unescape(match[group]) for group in ("before", "text", "after"))
    step = float(match["length"]) / len(before + text + after)
    x = float(match["x"]) + step * len(before)
    return f'x="{x:g}" {match["y"]} textLength="{step * len(text):g}"{match["rest"]}>{match["text"]}</text>'
