"""A row for each item that a part of a report measures, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from pytest_ecornn.suites.published.common.optional import NOT_REACHED, reason

Item = TypeVar("Item")
Row = TypeVar("Row")


def measure_each(
    items: Iterable[Item], deadline: float, row: Callable[[Item], Row], without: Callable[[Item, str], Row]
) -> Iterator[Row]:
    """A row for each; of those that begin after `deadline` (of time.monotonic), or fail, one `unmeasured_row`, with why."""
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
    item_of: Callable[[Row], Item | None],
    deadline: float,
    row: Callable[[Item], Row],
    without: Callable[[Item, str], Row],
) -> Iterator[Row]:
    """Earlier rows, then those of the items that none of them is of, as `measure_each` makes them."""
    yield from earlier
    measured = {item_of(one) for one in earlier}
    yield from measure_each([item for item in items if item not in measured], deadline, row, without)
