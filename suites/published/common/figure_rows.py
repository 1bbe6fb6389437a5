"""Rows of one figure each, beside the bar that it has to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.suites.published.common.bars import MaxTarget, Times
from pytest_ecornn.suites.published.common.item_rows import list_reasons, measure_each

Item = TypeVar("Item")


@dataclass(frozen=True)
class Row:
    """One figure, with its interval, in the unit; or the reason why there is none."""

    what: str
    case: str
    unit: str
    found: Times | None = None
    bar: MaxTarget | None = None
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.what}, {self.case}"


def measure_figures(
    deadline: float,
    items: Iterable[Item],
    figures: Mapping[str, tuple[str, MaxTarget | None]],
    measure: Callable[[Item], Sequence[Times]],
) -> Iterator[Row]:
    """Rows of each item, one for each figure, whose unit and bar are given. measure: returns an item's figures, in order.

    Of an item that begins after `deadline` (of time.monotonic), or fails, they have only the reason.
    """

    def rows(item: Item) -> list[Row]:
        values = zip(figures.items(), measure(item), strict=True)
        return [Row(what, str(item), unit, value, bar) for (what, (unit, bar)), value in values]

    def without(item: Item, reason: str) -> list[Row]:
        return [Row(what, str(item), unit, None, bar, reason) for what, (unit, bar) in figures.items()]

    return chain.from_iterable(measure_each(items, deadline, rows, without))


def render_rows(rows: Sequence[Row]) -> str:
    """A table of the figures, and a list of the reasons."""
    header = ("what", "case", "measured", "unit", "bar", "holds")
    lines = [[escape(row.what), escape(row.case), *_cells(row)] for row in rows if not row.reason]
    return document([table(header, lines, header[2:3]) if lines else "", list_reasons(rows)]).strip()


def _cells(row: Row) -> Iterator[str]:
    figure = row.found
    assert figure
    yield from (ratio_interval(*figure) if figure[1] < figure[2] else f"{figure[0]:.3g}", row.unit)
    yield from (str(row.bar), row.bar.is_met(figure)) if row.bar else ("-", "-")
