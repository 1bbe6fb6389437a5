"""The published times of minGRU and minLSTM over the number of steps, measured again: a loop, a CPU's scan, a GPU's scans.

Source: the CUDA system of the sequential and scanned minGRU and minLSTM; its shapes were not given, so ours are beside its.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from pytest_ecornn.cases.case_sets import Origin, case_set
from pytest_ecornn.contract import Case
from pytest_ecornn.measurement import clocks, measurement
from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio
from pytest_ecornn.suites.published.common.candidates import prepared
from pytest_ecornn.suites.published.common.item_rows import measure_each
from pytest_ecornn.suites.published.scan_parts.scan_judge import LongScanVerifier
from pytest_ecornn.verification.verification import expected

CELLS = ("mingru", "minlstm")
STEPS = (256, 1024, 4096, 16_384, 65_536)
BATCH, HIDDEN = 8, 256
MAX_LOOP_STEPS = 4096  # steps, beyond which no plain loop was published either
BAR = MinTarget(15.0)
TIMED = ("sequential", "scan_cpu", "scan_gpu")
LOGARITHMIC = ("scan_gpu_log", "scan_torch")  # of cells whose candidate is positive
# By how, as the case set has it.
_SYSTEMS = {"sequential": "loop, i9-12900K", "scan_cpu": "scan, i9-12900K", "scan_gpu": "scan, RTX 4090"}
PUBLISHED_ON = "i9-12900K, RTX 4090"
NONE_WANTED = "-"
_SECONDS = 4.0  # for the fewest rounds that an interval needs; slower calls get fewer


@dataclass(frozen=True)
class Cell:
    """A time of one call, or why there is none."""

    time_ms: tuple[float, float, float] | None = None  # median, low, high
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One cell and number of steps; cells by way. cpu_over_gpu: scan_cpu's time over scan_gpu's, in pairs of one run."""

    cell: str
    steps: int
    cells: dict[str, Cell] = field(default_factory=dict)
    cpu_over_gpu: Ratio | None = None

    @property
    def label(self) -> str:
        return f"{self.cell}, {self.steps:,} steps"


def measure(deadline: float, device: str = "cuda", steps: Sequence[int] = STEPS) -> Iterator[Row]:
    """A row for each number of steps and cell; those begun after `deadline` (of time.monotonic) have only the reason."""
    clock = clocks.for_device(device)
    items = ((cell, count) for count, cell in product(steps, CELLS))
    return measure_each(items, deadline, lambda one: _row(*one, device, clock), lambda one, why: _without(*one, why))


def _without(cell: str, steps: int, why: str) -> Row:
    return Row(cell, steps, dict.fromkeys((*TIMED, *LOGARITHMIC), Cell(reason=why)))


def case(cell: str, steps: int, device: str) -> Case:
    return Case(
        cell=cell, steps=steps, batch=BATCH, hidden_size=HIDDEN, batch_first=True, projected=True, device=device
    )  # fmt: skip


def _row(cell: str, steps: int, device: str, clock: Timer) -> Row:
    """All ways in turns, by one clock: CUDA's events, which also time what a CPU does between them."""
    found: dict[str, Arm | str] = {}
    for name_of_cell, names in ((cell, TIMED), (cell + "_positive", LOGARITHMIC)):
        judge = LongScanVerifier(expected(case(name_of_cell, steps, "cpu")).problem, where=device)
        pools: dict[str, InputPool] = {}
        for name in names:
            found[name] = _arm(name, case(name_of_cell, steps, _device(name, device)), judge, pools)
    arms = {name: arm for name, arm in found.items() if not isinstance(arm, str)}
    if arms:
        measurement.measure(list(arms.values()), clock, _SECONDS, lambda: True)
    reasons = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    return row(cell, steps, {name: arm.samples_us for name, arm in arms.items()}, reasons)


def _device(name: str, device: str) -> str:
    return "cpu" if name in ("sequential", "scan_cpu") else device


def _arm(name: str, case: Case, judge: LongScanVerifier, pools: dict[str, InputPool]) -> Arm | str:
    """Returns the arm of a way that passed, or why there is none. pools: by device, shared by ways of the same cell."""
    if name == "sequential" and case.steps > MAX_LOOP_STEPS:
        return NONE_WANTED
    candidate = prepared(case, [name], judge.build)[name]
    if isinstance(candidate, str):
        return candidate
    if case.device not in pools:
        pools[case.device] = InputPool(case)
    return Arm(candidate, pools[case.device])


def row(cell: str, steps: int, samples_us: Mapping[str, Sequence[float]], reasons: Mapping[str, str]) -> Row:
    """Returns a row from each way's samples (one a round) or the reason why it has none."""
    cells = {
        name: _cell(samples_us[name]) if name in samples_us else Cell(reason=reasons[name]) for name in (*TIMED, *LOGARITHMIC)
    }
    has_both = "scan_cpu" in samples_us and "scan_gpu" in samples_us
    return Row(cell, steps, cells, paired_ratio(samples_us["scan_cpu"], samples_us["scan_gpu"]) if has_both else None)


def _cell(samples_us: Sequence[float]) -> Cell:
    median, low, high = (us / 1e3 for us in median_interval(samples_us))
    return Cell((median, low, high))


def render(rows: Sequence[Row]) -> str:
    """A table for each cell, and whether the bar is reached."""
    parts = [
        "## Times over the number of steps",
        f"Forward pass on given pre-activations, float32, B {BATCH}, H {HIDDEN} (which were not published). Times "
        f"of one call in ms, as called, with their intervals (99 %, {MIN_PAIRS} rounds in which all take turns, fewer where "
        "calls are slow), all by the events of the GPU's clock and each call on contents of its own. Columns in italics are "
        f"published ({PUBLISHED_ON}); as their shapes are not known, compare their ratios, not their times. scan_gpu_log and "
        "scan_torch compute in logarithms, which needs a positive candidate: they run the cell of that name. What fails its "
        "comparison with the float64 reference is wrong and has no time.",
    ]
    for cell in CELLS:
        chosen = [row for row in rows if row.cell == cell]
        if chosen:
            parts += [f"### {cell}", _table(cell, chosen), _reasons(chosen)]
    return document([*parts, _bars(rows)])


def _table(cell: str, rows: Sequence[Row]) -> str:
    published = [f"*{name}, published*" for name in TIMED]
    logarithmic = [f"{name} ({cell}_positive)" for name in LOGARITHMIC]
    header = ("T", *TIMED, "scan_cpu over scan_gpu", *logarithmic, *published, "*scan_cpu over scan_gpu, published*")
    return table(header, [_line(row) for row in rows], header)


def _line(row: Row) -> list[str]:
    ours, theirs = [_text(row.cells[name]) for name in TIMED], [published_ms(row.cell, name, row.steps) for name in TIMED]
    ratio = theirs[1] / theirs[2] if theirs[1] and theirs[2] else None
    return [
        f"{row.steps:,}", *ours, format_ratio(row.cpu_over_gpu), *(_text(row.cells[name]) for name in LOGARITHMIC),
        *("-" if one is None else f"{one:,g}" for one in theirs), "-" if ratio is None else significant(ratio),
    ]  # fmt: skip


def published_ms(cell: str, way: str, steps: int) -> float | None:
    """None where none was published."""
    published = case_set("scan").get(case(cell, steps, "cpu"), Origin()).published
    return next((one.time_us / 1e3 for one in published if one.system == _SYSTEMS[way]), None)


def _reasons(rows: Sequence[Row]) -> str:
    """Each reason once, with the ways that it holds of."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, one in row.cells.items():
            if one.time_ms is None and one.reason != NONE_WANTED:
                found.setdefault(one.reason, {})[name] = None
    return "\n".join(f"- {', '.join(names)}: {escape(why)}" for why, names in found.items())


def _text(cell: Cell) -> str:
    if cell.time_ms is None:
        return cell.reason if cell.reason == NONE_WANTED else "see below"
    median, low, high = (significant(value) for value in cell.time_ms)
    return f"{median} [{low}, {high}]"


def _bars(rows: Sequence[Row]) -> str:
    longest = [row for row in rows if row.steps == STEPS[-1] and row.cpu_over_gpu]
    lines = [[row.label, format_ratio(one), str(BAR), BAR.is_met(one)] for row in longest if (one := row.cpu_over_gpu)]
    return table(("scan_cpu over scan_gpu", "measured", "bar", "holds"), lines) if lines else ""


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """Returns a plot for each cell, by file name: its times over the steps, the published ones dashed."""
    found = {}
    for cell in CELLS:
        lines = [*_measured(rows, cell), *_published(cell)]
        if any(line.points for line in lines if not line.is_dashed):
            found[f"scan_times_{cell}.svg"] = log_plot(
                f"{cell}, forward, float32, B {BATCH}, H {HIDDEN}; dashed: {PUBLISHED_ON}, shape not known",
                "time steps",
                "time of a call, ms",
                lines,
            ).document()
    return found


def _measured(rows: Sequence[Row], cell: str) -> Iterator[Line]:
    for colour, name in enumerate((*TIMED, *LOGARITHMIC), 1):
        of_one = [(row.steps, row.cells[name].time_ms) for row in rows if row.cell == cell]
        yield Line(name, [(steps, time_ms[0]) for steps, time_ms in of_one if time_ms], colour)


def _published(cell: str) -> Iterator[Line]:
    for colour, name in enumerate(TIMED, 1):
        points = [(steps, time_ms) for steps in STEPS if (time_ms := published_ms(cell, name, steps))]
        yield Line(f"{name}, published", points, colour, is_dashed=True)
