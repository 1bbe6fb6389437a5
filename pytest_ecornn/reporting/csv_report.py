"""report.csv: a line for each row and baseline, for spreadsheets and data frames. Samples are in report.json only."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pytest_ecornn.contract import Declared
from pytest_ecornn.measurement.noise.bounds import describe
from pytest_ecornn.reporting import standing
from pytest_ecornn.results.formatting import printable
from pytest_ecornn.results.rows import BaselineRatio, Row, Timing

_ROW = ("kind", "implementation", "case", "cell", "dtype", "device", "mode", "status", "reason")
_AGAINST = ("ratio", "low", "high", "verdict", "time_us")
_TIMING = (
    "time_us", "low_us", "high_us", "calls_per_sample", "clock", "build_ms", "peak_bytes", "bytes", "operations",
    "gb_per_s", "gflop_per_s", "floor_us", "floor_share",
)  # fmt: skip
_ERRORS = ("worst_error_share", "worst_tensor", "max_relative_error", "informative_tensors", "uninformative_tensors")
_REST = ("examples", "refused", "carry", "deterministic", "notes", "seconds")
_DECLARED = Declared._fields[1:]  # the first stands before them
_RATIO = ("ratio", "ratio_low", "ratio_high", "verdict", "baseline_time_us")
_REPLAY = ("time_us", "low_us", "high_us", "calls_per_sample", "clock", "gb_per_s", "gflop_per_s", "floor_share")
COLUMNS = (
    *_ROW, "baseline", *_RATIO, *_TIMING, "samples", *_ERRORS, *_REST, "host_us", *_DECLARED,
    *(f"replay_{name}" for name in (*_RATIO, *_REPLAY)), "replay_samples", "disturbance",
)  # fmt: skip

# Also the full-width forms of = + - @, which some spreadsheets read alike.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def render(rows: list[Row], unproven: Collection[standing.Key]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in _timed_first(standing.in_order(rows)):
        compared: list[BaselineRatio | None] = list(row.timing.against) if row.timing is not None else []
        for one in compared or [None]:
            status = standing.status(row, unproven)
            is_doubtful = status != "passed" or (one is not None and standing.verdict(row, one, unproven) != one.verdict)
            writer.writerow(_cell(value) for value in _line(row, one, status, is_doubtful))
    return out.getvalue()


def _timed_first(rows: list[Row]) -> list[Row]:
    """Rows with a time, then those that were proven or not, then what was not run."""
    return sorted(rows, key=lambda row: (row.timing is None, row.status == "skipped"))


def _line(row: Row, one: BaselineRatio | None, status: str, is_doubtful: bool) -> Iterator[Any]:
    """The values of COLUMNS. Where row or baseline is not proven, there is no verdict."""
    for name in _ROW:
        yield status if name == "status" else getattr(row, name)
    yield one.baseline if one else None
    yield from _ratio(one, is_doubtful)
    yield from _timing(row.timing, _TIMING)
    worst_error = standing.worst_error(row)
    uninformative = sum(tensor.status == "uninformative" for tensor in row.tensors)
    yield from (worst_error.share, worst_error.tensor) if worst_error else (None, None)
    yield standing.largest_relative_error(row)
    yield from (len(row.tensors) - uninformative, uninformative)
    for name in _REST:
        yield getattr(row, name)
    yield row.timing.host_us if row.timing else None
    for name in _DECLARED:
        yield getattr(row, name)
    yield from _ratio(standing.ratio_to(row, one.baseline, "replay") if one else None, is_doubtful)
    yield from _timing(row.replay, _REPLAY)
    yield "; ".join(filter(None, map(describe, (row.timing, row.replay))))


def _ratio(one: BaselineRatio | None, is_doubtful: bool) -> Iterator[Any]:
    for name in _AGAINST:
        yield None if one is None or (name == "verdict" and is_doubtful) else getattr(one, name)


def _timing(timing: Timing | None, names: Iterable[str]) -> Iterator[Any]:
    """The named fields, and how many samples there are."""
    for name in names:
        yield getattr(timing, name) if timing else None
    yield len(timing.samples_us) if timing else None


def _cell(value: Any) -> Any:
    """Numbers as they are; text that a spreadsheet would run as a formula behind an apostrophe."""
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(_FORMULA_STARTS) else "") + printable(value)
