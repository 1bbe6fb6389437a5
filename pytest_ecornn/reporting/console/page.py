"""Output that a terminal can show: text that its encoding has, and tables that fit its width."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

PLAIN_WIDTH = 160  # columns where there is no terminal to fit
_UNLIMITED = 10_000  # columns


class Page(io.StringIO):
    """Text for a stream of that encoding. rich draws lines of ASCII where it is not one of Unicode."""

    def __init__(self, encoding: str):
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def encoding_of(reporter: Any) -> str:
    """Encoding of the stream that pytest's terminal reporter writes to; UTF-8 where it names none."""
    return getattr(reporter._tw._file, "encoding", None) or "utf-8"


def encodable(text: str, encoding: str) -> str:
    """The text with escapes for what the encoding lacks. pytest would escape the ends of lines as well."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_table(console: Console, table: Table) -> None:
    """Prints the table, or where it is too wide each row's first cell and below it a line for each other one."""
    if sum(_min_width(console, column) + 1 for column in table.columns) - 1 <= console.width:  # 1: what parts columns
        console.print(table)
        return
    first, *others = table.columns
    for number, cell in enumerate(first.cells):
        console.print(cell)
        for column in others:
            value = list(column.cells)[number]
            if text := value if isinstance(value, Text) else Text(str(value)):
                console.print(Text.assemble(f"    {column.header}: ", text))


def _min_width(console: Console, column: Column) -> int:
    """Width that a column needs without cutting words, with its padding."""
    options = console.options.update(width=_UNLIMITED)
    sizes = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
    width = max(size.maximum if column.no_wrap else size.minimum for size in sizes)
    return max(width, column.min_width or 0) + 1
