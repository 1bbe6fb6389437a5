"""A row as several processes measured it: their blocks together, and intervals by processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import chain
from statistics import geometric_mean, median
from typing import Any

from pytest_ecornn.results.rows import CAUSES, SENSORS, SLOWED_ROUNDS, BaselineRatio, Disturbance, Doubt, Row, Timing
from pytest_ecornn.results.statistics import EQUIVALENCE_MARGINS, MIN_REPLICATES, of_replicates


def with_replicates(row: Row, others: Iterable[Row], confidence: float, is_afresh: bool = False) -> Row:
    """The row with what other processes measured of it; as it is where no 3 measured the same. confidence: of a ratio.

    is_afresh: what they measured, without its own figures. A row that failed in one process has failed.
    """
    rows = [*others] if is_afresh else [row, *others]
    if failed := next((other for other in rows if other.status == "failed"), None):
        return replace(row, status="failed", reason=f"in a fresh process: {failed.reason}", timing=None, replay=None)
    columns = dict[str, Any]()
    for name, margin in EQUIVALENCE_MARGINS.items():
        timings = [timing for other in rows if _baselines(timing := getattr(other, name)) == _baselines(getattr(row, name))]
        if getattr(row, name) is not None and len(timings) >= MIN_REPLICATES:
            columns[name] = _joined(timings, confidence, margin)
    if not columns:
        return row
    beside = "; ".join(dict.fromkeys(other.beside for other in rows if other.beside))
    notes = "; ".join(filter(None, [row.notes, f"timed in {len(rows)} processes"]))
    return replace(row, beside=beside, notes=notes, seconds=sum(other.seconds for other in rows), **columns)


def _baselines(timing: Timing | None) -> list[str] | None:
    return None if timing is None else [ratio.baseline for ratio in timing.against]


def _joined(timings: Sequence[Timing], confidence: float, margin: float) -> Timing:
    first, time = timings[0], of_replicates([timing.time_us for timing in timings])
    ratios = zip(*(timing.against for timing in timings), strict=True)
    speed = first.time_us / time.ratio
    return replace(
        first, time_us=time.ratio, low_us=time.low, high_us=time.high,
        against=[_joined_ratio(ratio, confidence, margin) for ratio in ratios], **_joined_blocks(timings),
        build_ms=median(timing.build_ms for timing in timings), peak_bytes=_of_known(max, timings, "peak_bytes"),
        gb_per_s=speed * first.gb_per_s, gflop_per_s=speed * first.gflop_per_s, floor_share=first.floor_us / time.ratio,
        host_us=_of_known(median, timings, "host_us"), sensors=_joined_sensors([timing.sensors for timing in timings]),
        disturbance=_joined_disturbance([timing.disturbance for timing in timings]),
        first_call_ms=_of_known(median, timings, "first_call_ms"),
    )  # fmt: skip


def _joined_ratio(ratios: Sequence[BaselineRatio], confidence: float, margin: float) -> BaselineRatio:
    """The ratio to a baseline, by processes; a doubt of some of them widens it by the mean of what it is in each."""
    ratio = of_replicates([one.ratio for one in ratios], confidence)
    joined = replace(
        ratios[0], time_us=geometric_mean(one.time_us for one in ratios), ratio=ratio.ratio, low=ratio.low, high=ratio.high,
        doubt="", doubts=[], replicates=list(ratio.replicates), **_joined_blocks(ratios),
    )  # fmt: skip
    joined.add_doubts(list(_mean_doubts(ratios)), margin)
    return joined


def _mean_doubts(ratios: Sequence[BaselineRatio]) -> Iterable[Doubt]:
    for cause in CAUSES:
        doubts = [next((doubt for doubt in one.doubts if doubt.cause == cause), None) for one in ratios]
        if any(doubts):
            # That of the own row is found at the end of the run alone.
            known = [doubt or Doubt(cause, 1.0, 1.0, 1.0) for doubt in doubts if doubt or cause != "own row"]
            ends = zip(*((doubt.ratio, doubt.low, doubt.high) for doubt in known), strict=True)
            yield Doubt(cause, *map(geometric_mean, ends))


def _joined_blocks(measured: Sequence[Timing] | Sequence[BaselineRatio]) -> dict[str, Any]:
    """The blocks of all, and what they waited, where that is known of all."""
    blocks = {name: [list(getattr(one, name)) for one in measured] for name in ("samples_us", "lost", "delayed")}
    return {name: [*chain(*lists)] if all(lists) else [] for name, lists in blocks.items()}


def _of_known(function: Callable[[list[Any]], Any], timings: Sequence[Timing], name: str) -> Any:
    values = [value for timing in timings if (value := getattr(timing, name)) is not None]
    return function(values) if values else None


def _joined_sensors(sensors: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Least, median and most of all; every reason of throttling, and all slowed rounds."""
    known = [one for one in sensors if one]
    joined: dict[str, Any] = dict(known[0]) if known else {}
    for name in SENSORS if known else ():
        if values := [one[name] for one in known if one.get(name)]:
            least, middle, most = zip(*values, strict=True)
            joined[name] = [min(least), median(middle), max(most)]
    joined |= {name: total for name in SLOWED_ROUNDS if (total := sum(one.get(name, 0) for one in known))}
    if "throttled" in joined:
        joined["throttled"] = list(dict.fromkeys(reason for one in known for reason in one.get("throttled", ())))
    return joined or None


def _joined_disturbance(disturbances: Sequence[Disturbance | None]) -> Disturbance | None:
    """Sums of seconds and blocks, and means over the seconds."""
    known = [one for one in disturbances if one is not None]
    if len(known) < len(disturbances):
        return None
    seconds = sum(one.seconds for one in known)
    joined = {
        field.name: sum(getattr(one, field.name) * one.seconds for one in known) / max(seconds, 1e-9)
        for field in fields(Disturbance)
    }
    sums = {name: sum(getattr(one, name) for one in known) for name in ("seconds", "blocks", "disturbed")}
    return Disturbance(**{**joined, **sums, "processors": known[0].processors})
