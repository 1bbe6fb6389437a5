"""Reports of the published suites as pages: their Markdown, with its pictures inside."""

from __future__ import annotations

import tempfile
from base64 import b64encode
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from pytest_ecornn.reporting import files
from pytest_ecornn.suites.published import stored as published

_PICTURE = "data:image/svg+xml;base64,"


def read(report: Path) -> tuple[str, Markup]:
    """Returns title and HTML of a suite's report, from the Markdown beside its JSON file, else rendered anew from that.

    HTML in it is escaped. Pictures are SVG files of the same folder; others are left out. Raises ReportError.
    """
    if (text := report.with_suffix(".md")).is_file():
        return _html(files.read(text), report.parent)
    with tempfile.TemporaryDirectory() as folder:
        published.joined(report.stem, [report]).write(Path(folder))
        return _html(files.read(Path(folder) / f"{report.stem}.md"), Path(folder))


def _html(text: str, folder: Path) -> tuple[str, Markup]:
    first, _, rest = text.partition("\n")
    title, text = (first.removeprefix("# "), rest) if first.startswith("# ") else ("", text)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.add_render_rule("image", lambda self, tokens, index, options, env: _picture(tokens[index], folder))
    numbers, region = count(1), '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>'
    markdown.add_render_rule("table_open", lambda *given: region.format(next(numbers)))
    markdown.add_render_rule("table_close", lambda *given: "</table></div>")
    markdown.add_render_rule("link_open", _outside_link)
    for kind in ("th_open", "td_open"):
        markdown.add_render_rule(kind, _aligned_cell)
    return title, Markup(markdown.render(text))


def _outside_link(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
    """A link to another site; one to a file of the repository leads nowhere here."""
    address = str(tokens[index].attrGet("href"))
    return str(Markup('<a href="{}">').format(address)) if address.startswith(("https://", "http://")) else "<a>"


def _aligned_cell(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
    """A cell of a table with a class in place of its style, which the page's policy forbids."""
    token = tokens[index]
    is_right = "right" in str(token.attrs.pop("style", ""))
    return f'<{token.tag} class="right">' if is_right else f"<{token.tag}>"


def _picture(token: Any, folder: Path) -> str:
    """The picture that a token names, inlined: a page needs no other file."""
    name = str(token.attrGet("src"))
    path = folder / name
    if "/" in name or path.suffix != ".svg":
        return ""
    try:
        encoded = b64encode(path.read_bytes()).decode()
    except OSError:  # no such file, among others
        return ""
    return str(Markup('<img src="{}{}" alt="{}">').format(_PICTURE, encoded, path.stem))
