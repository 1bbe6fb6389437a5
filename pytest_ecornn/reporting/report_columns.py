"""Every column that reports have of a row: how it is got, how each report writes it, and which reports show it.

To add one, declare it here and name it in the tables at the end. No report knows a column by itself, but for times and ratios
to baselines where people read them: each places these in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_ecornn.contract import Declared
from pytest_ecornn.measurement.noise.bounds import describe
from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.markdown_syntax import escape
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import SLOWED_ROUNDS, BaselineRatio, PublishedTime, Row, TensorError, Timing


class Entry(NamedTuple):
    """A row with one of its timings and the ratio to one baseline; None where it has none, or none that may be shown."""

    row: Row
    timing: Timing | None = None
    ratio: BaselineRatio | None = None
    unproven: Collection[standing.Key] = ()


@dataclass(frozen=True)
class ReportColumn:
    """One column. Its value is None where it is not known, and its text is empty there.

    name: in report.csv, benchmark.json and JUnit XML, and of the field of report.json that holds it, if one does.
    text: writes the value for people; markdown and html: as report.md and a cell's details in report.html have it, if not so.
    heading: in report.md. title: in the terminal's table. description: in the schema of report.json, with its unit.
    is_optional: tables leave it out where it has no value in any line.
    """

    name: str
    value: Callable[[Entry], Any]
    text: Callable[[Any], str] = str
    markdown: Callable[[Any], str] | None = None
    html: Callable[[Any], str] | None = None
    heading: str = ""
    title: str = ""
    is_aligned_right: bool = True
    description: str = ""
    is_optional: bool = False

    def in_terminal(self, entry: Entry) -> str:
        return self._written(entry, self.text)

    def in_markdown(self, entry: Entry) -> str:
        return self._written(entry, self.markdown or self.text)

    def in_html(self, entry: Entry) -> str:
        return self._written(entry, self.html or self.text)

    def _written(self, entry: Entry, write: Callable[[Any], str]) -> str:
        value = self.value(entry)
        return "" if value is None else write(value)


def shown(columns: Iterable[ReportColumn], entries: Collection[Entry]) -> list[ReportColumn]:
    """The columns that a table of these entries has."""
    return [one for one in columns if not one.is_optional or any(one.value(entry) is not None for entry in entries)]


def _of_row(name: str, value: Callable[[Row], Any] | None = None, **writing: Any) -> ReportColumn:
    """By default of the row's field of that name."""
    return ReportColumn(name, lambda entry: value(entry.row) if value else getattr(entry.row, name), **writing)


def _of_timing(name: str, value: Callable[[Timing], Any] | None = None, **writing: Any) -> ReportColumn:
    """By default of the timing's field of that name."""

    def of_entry(entry: Entry) -> Any:
        if entry.timing is None:
            return None
        return value(entry.timing) if value else getattr(entry.timing, name)

    return ReportColumn(name, of_entry, **writing)


def _of_ratio(name: str, field: str) -> ReportColumn:
    return ReportColumn(name, lambda entry: None if entry.ratio is None else getattr(entry.ratio, field))


def _proven_verdict(entry: Entry) -> str | None:
    """The verdict; None where row or baseline is not proven."""
    row, ratio = entry.row, entry.ratio
    if ratio is None or standing.status(row, entry.unproven) != "passed":
        return None
    return ratio.verdict if standing.verdict(row, ratio, entry.unproven) == ratio.verdict else None


def _uninformative(row: Row) -> int:
    return sum(tensor.status == "uninformative" for tensor in row.tensors)


def _informative(row: Row) -> int:
    return len(row.tensors) - _uninformative(row)


def _share_of_limit(error: TensorError) -> str:
    return formatting.limit_fraction(error.share)


def _fastest_published(row: Row) -> PublishedTime | None:
    return min(row.published, key=lambda one: one.time_us, default=None)


def _published_ratio(entry: Entry) -> float | None:
    published = _fastest_published(entry.row)
    return entry.timing.time_us / published.time_us if entry.timing and published else None


def _published_texts(published: Sequence[PublishedTime]) -> str:
    texts = (f"{formatting.duration(one.time_us)} ({one.system})".removesuffix(" ()") for one in published)
    return ", ".join(texts)


def sensors_text(summary: dict[str, Any], escaped: Callable[[str], str] = str) -> str:
    """Medians with the least and the most, why the clocks were held down, and rounds slowed. `escaped`: fit for its place."""
    unit_names = {"sm_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}
    ranges = [(summary[name], unit) for name, unit in unit_names.items() if name in summary]
    texts = [f"{middle:.0f} [{low:.0f}, {high:.0f}] {unit}" for (low, middle, high), unit in ranges]
    rounds = [f"{formatting.count(summary[name], 'round')} {words}" for name, words in SLOWED_ROUNDS.items() if name in summary]
    return ", ".join([*texts, *map(escaped, summary.get("throttled", [])), *rounds])


STATUS = ReportColumn("status", lambda entry: standing.status(entry.row, entry.unproven))
NOTES = _of_row("notes")

LABEL = _of_row(
    "label", lambda row: row.label or None, is_optional=True, heading="Label", title="label", markdown=escape,
    is_aligned_right=False, description="What the set of the case calls it.",
)  # fmt: skip
SOURCE = _of_row("source", lambda row: row.source or None, description="Where the case, or its published times, come from.")
PUBLISHED = _of_row(
    "published", lambda row: row.published or None, is_optional=True, heading="Published", title="published",
    text=_published_texts,
    markdown=lambda times: escape(_published_texts(times)), html=lambda times: f"published: {_published_texts(times)}",
    is_aligned_right=False, description="Times of the case that others measured, each on its system.",
)  # fmt: skip
PUBLISHED_RATIO = ReportColumn(
    "published_ratio", _published_ratio, text=formatting.significant, is_optional=True, heading="Ratio to published",
    title="x published", html=lambda ratio: f"{formatting.significant(ratio)} x the fastest published",
)  # fmt: skip

RATIO = (
    _of_ratio("ratio", "ratio"),
    _of_ratio("ratio_low", "low"),
    _of_ratio("ratio_high", "high"),
    ReportColumn("verdict", _proven_verdict),
    _of_ratio("baseline_time_us", "time_us"),
)

WORST_ERROR = _of_row(
    "worst_error", standing.worst_error, text=_share_of_limit,
    heading="Worst error / limit", title="error", is_aligned_right=False,
    markdown=lambda error: f"{_share_of_limit(error)} ({escape(error.tensor)})",
    html=lambda error: f"{_share_of_limit(error)} of the limit, of {error.tensor}",
)  # fmt: skip
LARGEST_ERROR = _of_row(
    "max_relative_error", standing.largest_relative_error, text=formatting.relative_error, heading="Max relative error"
)
TENSORS = _of_row(
    "tensors", lambda row: f"{_informative(row)} of {len(row.tensors)}" if row.tensors else None,
    heading="Tensors", is_aligned_right=False,
)  # fmt: skip

TIME = (
    _of_timing("time_us", description="Microseconds of one call: the median over blocks of calls."),
    _of_timing("low_us", description="Lower end of the interval of the time, in microseconds."),
    _of_timing("high_us", description="Upper end of the interval of the time, in microseconds."),
)
CALLS_PER_SAMPLE = _of_timing("calls_per_sample", description="Calls of one block.")
SAMPLES = _of_timing("samples", lambda timing: len(timing.samples_us))
BLOCKS = _of_timing(
    "blocks", lambda timing: (len(timing.samples_us), timing.calls_per_sample), heading="Blocks x calls",
    text=lambda counts: f"{counts[0]} x {counts[1]}",
    html=lambda counts: f"{counts[0]} blocks of {formatting.count(counts[1], 'call')}",
)  # fmt: skip
CLOCK = _of_timing("clock", html=lambda name: f"clock: {name}", description="The clock that timed the blocks.")
BUILD_MS = _of_timing(
    "build_ms", text=lambda build_ms: formatting.duration(build_ms * 1e3), heading="Build",
    description="Milliseconds to build the layer.",
)  # fmt: skip
FIRST_CALL_MS = _of_timing(
    "first_call_ms", text=lambda first_ms: formatting.duration(first_ms * 1e3), heading="First call",
    description="Milliseconds of the first call after the build, verified. Its memory is poisoned, so operators take "
    "longer. Null in older reports.", is_optional=True,
)  # fmt: skip
PEAK_BYTES = _of_timing(
    "peak_bytes", text=formatting.size, html=lambda peak: f"peak memory: {formatting.size(peak)}", heading="Peak memory",
    description="The most bytes in use during a call beyond those before it; null where they are not counted.",
)  # fmt: skip
BYTES = _of_timing("bytes", description="Bytes that the algorithm moves in one call.")
OPERATIONS = _of_timing("operations", description="Operations of the algorithm in one call.")
GB_PER_S = _of_timing(
    "gb_per_s", text=formatting.significant, heading="GB/s", description="The algorithm's own bytes over its time."
)
GFLOP_PER_S = _of_timing(
    "gflop_per_s", text=formatting.significant, heading="GFLOP/s", description="The algorithm's own operations over its time."
)
FLOOR_US = _of_timing("floor_us", description="Microseconds that this machine needs at least for any algorithm.")
FLOOR_SHARE = _of_timing(
    "floor_share", text=lambda share: formatting.percent(share) if share else "",  # 0: of a function whose cost is not known
    html=lambda share: f"{formatting.percent(share)} of the floor" if share else "",
    heading="Share of floor", title="floor", description="The least time over the time of a call.",
)  # fmt: skip
HOST_US = _of_timing(
    "host_us", text=formatting.duration, html=lambda host_us: f"host: {formatting.duration(host_us)} a call",
    heading="Host time of a call", description="Microseconds until a call on a GPU returns; null elsewhere.",
)  # fmt: skip
SENSORS = _of_timing(
    "sensors", lambda timing: timing.sensors or None, text=sensors_text, markdown=lambda summary: sensors_text(summary, escape),
    heading="SM clock, power, temperature", is_aligned_right=False,
    description="Least, median and most of what a GPU's sensors said, and what held its clocks down; null elsewhere.",
)  # fmt: skip

# report.md, in details: of the row, of calls, of the device alone, and of calls on a GPU.
ERRORS = (WORST_ERROR, LARGEST_ERROR, TENSORS)
DETAILS = (PUBLISHED_RATIO, FLOOR_SHARE, GB_PER_S, GFLOP_PER_S, PEAK_BYTES, BUILD_MS, FIRST_CALL_MS, BLOCKS)
DEVICE_ONLY_DETAILS = (FLOOR_SHARE,)
GPU_DETAILS = (HOST_US, SENSORS)

# report.html: lines of a timing in a cell's details.
HTML = (PUBLISHED_RATIO, FLOOR_SHARE, CLOCK, BLOCKS, HOST_US, PEAK_BYTES, SENSORS)

# The terminal's table: of the row, and of each timing.
TERMINAL = (WORST_ERROR,)
TERMINAL_TIMING = (FLOOR_SHARE, PUBLISHED_RATIO)

# Tables of a line a case, in report.md, report.html and the terminal: of the case, and of the fastest on it.
ANSWER = (LABEL, PUBLISHED, PUBLISHED_RATIO)

# benchmark.json: among what pytest-benchmark calls extra information.
BENCHMARK = (FLOOR_SHARE, CLOCK, NOTES)

# JUnit XML: of the row where it has them, of calls, and of each timing.
JUNIT = (
    _of_row("implementation"), _of_row("case"), _of_row("status"),
    _of_row("worst_error_share", lambda row: max((tensor.share for tensor in row.tensors), default=None)),
    _of_row("uninformative_tensors", lambda row: _uninformative(row) if row.tensors else None),
)  # fmt: skip
JUNIT_AS_CALLED = (PEAK_BYTES, BUILD_MS, FIRST_CALL_MS)
JUNIT_TIMING = (*TIME, GB_PER_S, GFLOP_PER_S, FLOOR_SHARE)

# report.csv: a column stays in its place for good, so a new one goes to the end.
CSV = (
    *map(_of_row, ("kind", "implementation", "case", "cell", "dtype", "device", "mode")),
    STATUS, _of_row("reason"), _of_ratio("baseline", "baseline"), *RATIO,
    *TIME, CALLS_PER_SAMPLE, CLOCK, BUILD_MS, PEAK_BYTES, BYTES, OPERATIONS,
    GB_PER_S, GFLOP_PER_S, FLOOR_US, FLOOR_SHARE, SAMPLES,
    _of_row("worst_error_share", lambda row: getattr(standing.worst_error(row), "share", None)),
    _of_row("worst_tensor", lambda row: getattr(standing.worst_error(row), "tensor", None)),
    LARGEST_ERROR, _of_row("informative_tensors", _informative), _of_row("uninformative_tensors", _uninformative),
    *map(_of_row, ("examples", "refused", "carry", "deterministic")), NOTES, _of_row("seconds"), HOST_US,
    *map(_of_row, Declared._fields[1:-1]),  # the first, carry, stands before them, and the last at the end
)  # fmt: skip
CSV_DEVICE_ONLY = (*RATIO, *TIME, CALLS_PER_SAMPLE, CLOCK, GB_PER_S, GFLOP_PER_S, FLOOR_SHARE, SAMPLES)
CSV_END = (
    _of_row("disturbance", lambda row: "; ".join(filter(None, map(describe, (row.timing, row.replay))))),
    FIRST_CALL_MS, LABEL, SOURCE,
    _of_row("published_us", lambda row: getattr(_fastest_published(row), "time_us", None)),
    _of_row("published_on", lambda row: getattr(_fastest_published(row), "system", None)),
    PUBLISHED_RATIO, _of_row("weight_rounding"),
)  # fmt: skip


def descriptions() -> dict[str, str]:
    """What the schema of report.json says of the fields of a row and of a timing."""
    return {column.name: column.description for column in (*CSV, *HTML, *ANSWER, *CSV_END) if column.description}
