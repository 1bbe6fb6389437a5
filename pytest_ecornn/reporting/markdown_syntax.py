"""The few pieces of Markdown that a report needs, safe for any text: no name can end its cell, its table or its block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_ecornn.results.formatting import one_line, printable

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "`": "&#96;"}
_SPECIAL = re.compile(r"[\\*\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escape(text: object, limit: int = 0) -> str:
    """`text` in one line, to be read as it is. Underscores within a word mean nothing to Markdown and stay bare."""
    line = one_line(text, limit)
    return re.sub("[&<>|`]", lambda match: _ENTITIES[match[0]], _SPECIAL.sub(r"\\\g<0>", line))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> str:
    """A table whose cells are Markdown already. `right` names the columns aligned to the right."""
    right = set(right)
    lines = [header, ["---:" if name in right else "---" for name in header], *rows]
    assert all(len(line) == len(header) for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code_block(text: object) -> str:
    """A fenced block, with a fence longer than any in the text."""
    text = printable(text).strip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def document(parts: Iterable[str]) -> str:
    """Blocks set apart by empty lines; empty ones are left out."""
    return "\n\n".join(part for part in parts if part) + "\n"
