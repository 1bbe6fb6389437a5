"""Sizes that were tried because kernels break there: a line an implementation for report.md, their number for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_ecornn.reporting.markdown_syntax import escape, table
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row

_DIMS = {"T": "T", "B": "B", "H": "H", "I": "I", "K": "I + H"}


def covered(rows: Iterable[Row]) -> dict[str, dict[str, list[int]]]:
    """The boundary sizes of all rows, by implementation and dimension."""
    found: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        for dim, sizes in row.boundaries.items():
            before = found.setdefault(row.implementation, {})
            before[dim] = sorted({*before.get(dim, ()), *sizes})
    return found


def ranges(sizes: list[int]) -> str:
    """Sorted sizes, neighbours as from-to."""
    parts: list[list[int]] = []
    for size in sizes:
        if parts and size == parts[-1][-1] + 1:
            parts[-1].append(size)
        else:
            parts.append([size])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def line(rows: Iterable[Row]) -> str:
    """How many implementations were tried at boundary sizes, for the terminal; empty without sizes."""
    number = len(covered(rows))
    return f"boundary sizes of {formatting.count(number, 'implementation')} were tried: report.md lists them" if number else ""


def section(rows: Iterable[Row]) -> Iterator[str]:
    """Paragraph and table for report.md; nothing without sizes."""
    if found := covered(rows):
        yield (
            "Sizes tried around constants of the implementation's sources and around powers of two, where shares of the work "
            "end. The rows of report.json say which of them each cell and dtype had."
        )
        cells = [[escape(name), *(ranges(dims.get(dim, [])) for dim in _DIMS)] for name, dims in found.items()]
        yield table(["Implementation", *_DIMS.values()], cells)
