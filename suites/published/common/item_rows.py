"""A row for each item that a part of a report measures, within a time."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from pytest_ecornn.reporting.markdown_syntax import escape
from pytest_ecornn.system.error_line import error_line

NOT_REACHED = "not reached in the time allowed"  # the reason where a part's time was over before
OUT_OF_MEMORY = torch.OutOfMemoryError.__name__  # in the reason where a device's memory did not suffice
_IMPLEMENTATIONS = "pytest_ecornn.implementations"
Item = TypeVar("Item")
Row = TypeVar("Row")
Key = TypeVar("Key")


def item_of(row: Any) -> Any:
    """A row's first field."""
    return next(iter(vars(row).values()))


class ItemRow:
    """A row by the name of its first field, the item that it is of."""

    @property
    def label(self) -> str:
        return str(item_of(self))


def list_reasons(rows: Iterable[Any]) -> str:
    """A Markdown list of the rows that have only a reason."""
    return "\n".join(f"- {escape(row.label)}: {escape(row.reason)}" for row in rows if row.reason)


class Unavailable(Exception):
    """One line: why there is no such thing here."""


def import_optional(module: str, name: str) -> Any:
    """`name` of a module of the implementations. Raises Unavailable where it, or a package that it needs, is absent."""
    path = f"{_IMPLEMENTATIONS}.{module}"
    if importlib.util.find_spec(path) is None:
        raise Unavailable("absent from this version")
    try:
        return getattr(importlib.import_module(path), name)
    except ImportError as error:
        raise Unavailable(f"cannot be imported: {error}") from error


def reason(error: BaseException) -> str:
    """An exception in one line, as a table's cell has it."""
    return str(error) if isinstance(error, Unavailable) else error_line(error, 160)


def group(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """The items of each key, in the order in which they come: which rows have a reason, to say it once."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def measure_each(
    items: Iterable[Item], deadline: float, row: Callable[[Item], Row], without: Callable[[Item, str], Row]
) -> Iterator[Row]:
    """A row for each; of those that begin after `deadline` (of time.monotonic), or fail, one `without` figures, with why."""
    for item in items:
        if time.monotonic() >= deadline:
            yield without(item, NOT_REACHED)
            continue
        try:
            yield row(item)
        except Exception as error:  # one row's failure must not end the others' measurement
            yield without(item, reason(error))
        torch.cuda.empty_cache()


def measure_rest(
    items: Iterable[Item],
    earlier: Sequence[Row],
    deadline: float,
    row: Callable[[Item], Row],
    without: Callable[[Item, str], Row],
    item_of: Callable[[Row], Item | None] = item_of,
) -> Iterator[Row]:
    """Earlier rows, then those of the items that none of them is of, as `measure_each` makes them."""
    yield from earlier
    measured = {*map(item_of, earlier)}
    yield from measure_each([item for item in items if item not in measured], deadline, row, without)


def attempt_each(names: Iterable[str], make: Callable[[str], Item]) -> tuple[dict[str, Item], dict[str, str]]:
    """What `make` returns of each name, and why others failed: one's failure must not end the others' measurement."""
    made: dict[str, Item] = {}
    reasons: dict[str, str] = {}
    for name in names:
        try:
            made[name] = make(name)
        except Exception as error:
            reasons[name] = reason(error)
    return made, reasons
