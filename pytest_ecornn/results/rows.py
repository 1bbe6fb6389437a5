"""A row: one (implementation, case), what was proven of it and what was measured. Plain data, on disk as in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf, log, log1p
from typing import Any

from pytest_ecornn.results import statistics
from pytest_ecornn.results.statistics import Ratio

SCHEMA_VERSION = 1
# What the fields that say an outcome may hold.
WORDS = {
    ("Row", "kind"): ("benchmark", "control", "fixed", "drawn", "properties"),
    ("Row", "status"): ("passed", "failed", "skipped", "unproven"),
    ("TensorError", "status"): ("passed", "failed", "uninformative"),
    ("BaselineRatio", "verdict"): ("faster", "slower", "same", "unclear"),
    ("Doubt", "cause"): ("before", "after", "own row"),
}
# Where a baseline took another time than beside the candidate.
CAUSES = {
    "before": "alone before the candidate was built", "after": "alone after the candidate's row", "own row": "in its own row",
}  # fmt: skip

SENSORS = ("sm_mhz", "power_w", "temperature_c")  # least, median and most
# Of rounds in which the GPU slowed down, how many were dropped and measured again, and how many count all the same.
SLOWED_ROUNDS = {"repeated_rounds": "measured again", "throttled_rounds": "throttled all the same"}

EXPECTED = "expected: "  # before what --ecornn-xfail says of a row that failed, at the beginning of its reason
AGAIN = "\nagain: "  # before the command that repeats a failed row, at the end of its reason


@dataclass
class TensorError:
    """One tensor's comparison. rms, maximum: relative to the reference; share: the worst slice's error over its limit."""

    tensor: str
    status: str  # passed, failed, uninformative
    rms: float
    maximum: float
    share: float
    slice: str


@dataclass
class Doubt:
    """Another time that a baseline took in the run, over its time beside the candidate, with the interval of that ratio.

    cause: where. It was measured alone before the candidate was built or after its row, or was the candidate of its own row.
    """

    cause: str
    ratio: float
    low: float
    high: float

    def describe(self, baseline: str) -> str:
        """The doubt in words."""
        interval = f" ({self.low:.3g} to {self.high:.3g})" if self.low < self.high else ""
        return f"{baseline} took {self.ratio:.3g}{interval} times as long {CAUSES[self.cause]} as beside the candidate"


@dataclass
class BaselineRatio:
    """The row against one baseline, from paired blocks: ratio = this time / the baseline's, with its interval.

    lost, delayed: as of `Timing`, of the baseline's blocks. doubts: other times of the baseline, for which the interval is
    wider than its blocks'; doubt: the same in words. replicates: the ratio in each process, where several measured it.
    """

    baseline: str
    time_us: float
    ratio: float
    low: float
    high: float
    verdict: str  # faster, slower, same, unclear
    samples_us: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    delayed: list[float] = field(default_factory=list)
    doubt: str = ""
    doubts: list[Doubt] = field(default_factory=list)
    replicates: list[float] = field(default_factory=list)

    def add_doubts(self, doubts: Sequence[Doubt], equivalence_margin: float) -> None:
        """Widens the interval by the doubts, and takes the verdict from it."""
        ratio = widened(Ratio(self.ratio, self.low, self.high), doubts)
        self.low, self.high, self.verdict = ratio.low, ratio.high, statistics.verdict(ratio, equivalence_margin)
        self.doubt = "; ".join(filter(None, [self.doubt, *(one.describe(self.baseline) for one in doubts)]))
        self.doubts += doubts

    def budget_factor(self, equivalence_margin: float) -> float:
        """How many times the time measured would decide the verdict, as the blocks' interval narrows with its root.

        inf where it would be unclear for good: by the baseline's other times, or since the ratio lies on the margin.
        """
        if not 0 < self.low <= self.ratio <= self.high < inf:
            return inf
        quickest, slowest = map(log, extremes(self.doubts))
        half = (log(self.high / self.low) + quickest - slowest) / 2
        low, high, bound = log(self.ratio) - slowest, log(self.ratio) - quickest, log1p(equivalence_margin)
        room = max(-bound - high, low - bound, bound - max(high, -low))
        return (half / room) ** 2 if room > 0 else inf


def widened(ratio: Ratio, doubts: Sequence[Doubt]) -> Ratio:
    """The ratio with the interval to judge by: the high end is to the baseline's quickest time, the low end to its slowest."""
    quickest, slowest = extremes(doubts)
    return replace(ratio, low=ratio.low / slowest, high=ratio.high / quickest)


def extremes(doubts: Sequence[Doubt]) -> tuple[float, float]:
    """The baseline's quickest and slowest time over its time beside the candidate."""
    return min([1.0, *(one.low for one in doubts)]), max([1.0, *(one.high for one in doubts)])


@dataclass
class Disturbance:
    """Resources that others took while a column was timed, on average over `seconds`.

    others, stolen: by other processes and by the hypervisor, of the `processors` that the row may use, in processors.
    throttled: by a container's quota, as a share of the time. gpu: others' share of the GPU. unseen: of our own work, the
    share of threads that did not live long enough to be seen waiting. blocks: of all implementations together; disturbed:
    those in which our threads waited for others.
    """

    seconds: float
    processors: int
    others: float
    stolen: float
    throttled: float
    gpu: float
    unseen: float
    blocks: int
    disturbed: int


@dataclass
class Timing:
    """Measurements by one clock. All times are of one call; `samples_us` holds the mean of each block, in order.

    host_us: until a call on a GPU returns. sensors: as `sensors.GpuTelemetry.summary` gives them. lost, delayed: the shares of
    each block's time that others may have cost at most, and for certain; empty where that is not known. first_call_ms: of the
    first call after the build.
    """

    time_us: float
    low_us: float
    high_us: float
    samples_us: list[float]
    calls_per_sample: int
    clock: str
    against: list[BaselineRatio]
    build_ms: float
    peak_bytes: int | None
    bytes: int
    operations: int
    gb_per_s: float
    gflop_per_s: float
    floor_us: float
    floor_share: float
    host_us: float | None = None
    sensors: dict[str, Any] | None = None
    lost: list[float] = field(default_factory=list)
    delayed: list[float] = field(default_factory=list)
    disturbance: Disturbance | None = None
    first_call_ms: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where the sensors, which are read from files too, are no figures."""
        for name, value in (self.sensors or {}).items():
            is_numbers = isinstance(value, list | tuple) and all(isinstance(one, int | float) for one in value)
            is_texts = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
            wrong = {"throttled": not is_texts and "texts"}
            wrong |= dict.fromkeys(SENSORS, not (is_numbers and len(value) == 3) and "three numbers")
            wrong |= dict.fromkeys(SLOWED_ROUNDS, not isinstance(value, int) and "a whole number")
            if expected := wrong.get(name):
                raise ValueError(f"sensors.{name}: expected {expected}, got {value!r:.80}")

    @property
    def is_below_floor(self) -> bool:
        """Whether no algorithm can be so fast on this machine."""
        return self.time_us < self.floor_us


@dataclass(frozen=True)
class PublishedTime:
    """A time of a case that others measured, in microseconds. system: on what, and with what."""

    time_us: float
    system: str = ""


@dataclass
class Row:
    """Result of one implementation on one case, or on a set of cases.

    kind: "benchmark" (verified and timed), "control" (a baseline timed against itself), "fixed" (verified), "drawn" (cases
    drawn by Hypothesis, `case` names the set) or "properties" (checked on such cases, or on one; informative and uninformative
    count each by name, checked or not to be).

    status: passed, failed or skipped, with the reason for the last two; a report adds "unproven" (see `reporting.unproven`).
    boundaries: by dimension (T, B, H, I, and K for I + H), the sizes that were tried because kernels break there.
    delegate: the implementation that ran, where this one chooses among others.
    beside: what used the host while it was timed; empty where it had the machine alone.
    label, source, published: of the case, as its set gives them.
    timing is of calls as a program makes them, replay of the device alone, by CUDA graphs: two columns, never mixed.
    """

    kind: str
    implementation: str
    case: str
    cell: str
    dtype: str
    device: str
    mode: str
    status: str
    reason: str = ""
    tensors: list[TensorError] = field(default_factory=list)
    informative: dict[str, int] = field(default_factory=dict)
    uninformative: dict[str, int] = field(default_factory=dict)
    examples: int = 0
    refused: int = 0
    carry: str = ""
    gate_gradients: str = "float32"
    saved_gates: str = "float32"
    products: str = "float32"
    weight_gradients: str = "float32"
    activation_error: float = 0.0
    deterministic: bool = False
    notes: str = ""
    timing: Timing | None = None
    seconds: float = 0.0
    replay: Timing | None = None
    boundaries: dict[str, list[int]] = field(default_factory=dict)
    delegate: str = ""
    beside: str = ""
    label: str = ""
    source: str = ""
    published: list[PublishedTime] = field(default_factory=list)
    weight_rounding: str = "none"

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the row across runs."""
        return self.kind, self.implementation, self.case

    def count(self, name: str, is_informative: bool) -> None:
        """Counts a check of a tensor or a property."""
        counts = self.informative if is_informative else self.uninformative
        counts[name] = counts.get(name, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """Raises ValueError saying what is missing or unknown."""
        row = _read(cls, data)
        assert isinstance(row, Row)
        return row


_NESTED = {
    ("Row", "tensors"): TensorError, ("Row", "timing"): Timing, ("Row", "replay"): Timing, ("Row", "published"): PublishedTime,
    ("Timing", "against"): BaselineRatio, ("Timing", "disturbance"): Disturbance, ("BaselineRatio", "doubts"): Doubt,
}  # fmt: skip


def _read(kind: type, data: Any) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"expected an object with the fields of {kind.__name__}, got {type(data).__name__}")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"{kind.__name__} has no field {', '.join(unknown)}")
    values = dict(data)
    for name, value in data.items():
        nested = _NESTED.get((kind.__name__, name))
        words = WORDS.get((kind.__name__, name))
        if words is not None and value not in words:
            raise ValueError(f"{kind.__name__}.{name}: expected one of {', '.join(words)}, got {str(value)[:80]!r}")
        if nested is not None and value is not None:
            values[name] = [_read(nested, v) for v in value] if isinstance(value, list) else _read(nested, value)
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None
