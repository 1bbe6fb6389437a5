"""Claims that a row may make, and the order in which rows are shown.

Every output asks here, so that none publishes what another withholds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import inf, isnan

from pytest_ecornn.results.rows import BaselineRatio, Row, TensorError, Timing

Key = tuple[str, str, str]
# The fields of a row that hold a timing, and what a report calls them. Columns are shown side by side and never mixed.
COLUMNS = {"timing": "as called", "replay": "device only"}


def unproven(rows: Iterable[Row]) -> set[Key]:
    """Keys of the timed rows of which a drawn or properties row of the same implementation, cell, dtype and device failed.

    A row that a report has already marked stays so, even where the failed row is no longer at hand.
    """
    rows = list(rows)
    broken = {_domain(row) for row in rows if row.kind in ("drawn", "properties") and row.status == "failed"}
    return {
        row.key
        for row in rows
        if row.status == "unproven" or (row.kind == "benchmark" and row.status == "passed" and _domain(row) in broken)
    }


def _domain(row: Row) -> tuple[str, str, str, str]:
    return row.implementation, row.cell, row.dtype, row.device


def status(row: Row, unproven: Collection[Key]) -> str:
    """passed, unproven, failed or skipped."""
    return "unproven" if row.status == "passed" and row.key in unproven else row.status


def timing(row: Row, column: str) -> Timing | None:
    found: Timing | None = getattr(row, column)
    return found


def is_publishable(row: Row, unproven: Collection[Key], column: str = "timing") -> Timing | None:
    """The timing, if a table may show it: it exists, it is proven, and the row is no control."""
    return timing(row, column) if status(row, unproven) == "passed" and row.kind != "control" else None


def columns(rows: Iterable[Row]) -> list[str]:
    """The names in COLUMNS of which any row has a timing; always "timing"."""
    rows = list(rows)
    return [name for name in COLUMNS if name == "timing" or any(timing(row, name) is not None for row in rows)]


def cases(rows: Iterable[Row]) -> list[str]:
    """Cases in the order of their first rows: that of the case sets, which goes by shape and not by name."""
    return list(dict.fromkeys(row.case for row in rows))


def by_case(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each case, in the order of `cases`."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case, []).append(row)
    return found


def baselines(rows: Iterable[Row]) -> list[str]:
    """Baselines that rows were compared with, in the order of the comparisons."""
    return list(dict.fromkeys(one.baseline for row in rows if row.timing is not None for one in row.timing.against))


def implementations(rows: Iterable[Row]) -> list[str]:
    """The first baseline, because most is read against it; then those that are the fastest of most cases; then by name."""
    rows = list(rows)
    first, wins = baselines(rows)[:1], Counter(map(_fastest, by_case(rows).values()))
    return sorted({row.implementation for row in rows}, key=lambda name: (name not in first, -wins[name], name))


def _fastest(rows: Iterable[Row]) -> str:
    """Returns the fastest that passed of a case, by replay where there is one, but for what chose another; "" without any."""
    times = [(one.time_us, row.implementation) for row in rows if not row.delegate and (one := _headline_timing(row))]
    return min(times, default=(inf, ""))[1]


def _headline_timing(row: Row) -> Timing | None:
    return (row.replay or row.timing) if row.status == "passed" and row.kind == "benchmark" else None


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows by case, in each all baselines first, in the order of the comparisons."""
    rows = list(rows)
    by_case = {case: n for n, case in enumerate(cases(rows))}
    by_name = {name: n for n, name in enumerate(dict.fromkeys([*baselines(rows), *implementations(rows)]))}
    return sorted(rows, key=lambda row: (by_case[row.case], by_name[row.implementation]))


def ratio_to(row: Row, baseline: str | None, column: str = "timing") -> BaselineRatio | None:
    found = timing(row, column)
    return next((one for one in (found.against if found else ()) if one.baseline == baseline), None)


def headline(row: Row, baselines: Iterable[str], column: str = "timing") -> BaselineRatio | None:
    """The row's ratio to the first of the baselines that it was compared with."""
    return next((ratio for name in baselines if (ratio := ratio_to(row, name, column))), None)


def verdict(row: Row, one: BaselineRatio, unproven: Collection[Key]) -> str:
    """faster, slower, same or unclear; none is passed on a comparison with what is not proven itself."""
    return "unproven baseline" if (row.kind, one.baseline, row.case) in unproven else one.verdict


def skipped(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """How many rows each implementation skipped for each reason, the commonest first."""
    reasons: dict[str, Counter[str]] = {}
    for row in rows:
        if row.status == "skipped":
            reasons.setdefault(row.implementation, Counter())[row.reason] += 1
    return {name: dict(counts.most_common()) for name, counts in sorted(reasons.items())}


def reasons_line(reasons: Mapping[str, int]) -> str:
    """Each reason, with its number of rows where there are several."""
    return "; ".join(f"{reason} ({number})" if len(reasons) > 1 else reason for reason, number in reasons.items())


def refused(rows: list[Row]) -> dict[str, float]:
    """The share of cases that each implementation would not run."""
    asked: dict[str, list[bool]] = {}
    for row in rows:
        if row.kind in ("benchmark", "fixed"):
            asked.setdefault(row.implementation, []).append(row.status == "skipped")
    return {name: sum(refused) / len(refused) for name, refused in asked.items()}


def worst_error(row: Row) -> TensorError | None:
    """The informative tensor nearest to its limit, or furthest beyond it; one that is not a number is the worst of all."""
    informative = [one for one in row.tensors if one.status != "uninformative"]
    return max(informative, key=lambda one: (isnan(one.share), one.share), default=None)


def largest_relative_error(row: Row) -> float | None:
    informative = [one.maximum for one in row.tensors if one.status != "uninformative"]
    return max(informative, key=lambda value: (isnan(value), value), default=None)
