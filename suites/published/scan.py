"""minGRU and minLSTM over the number of steps: a loop, a CPU's scan and a GPU's scans, beside the published times.

Sources: "Were RNNs All We Needed?", arXiv 2410.01201, and a CUDA system of its cells. Its shapes were not given, so ours are
beside its.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pytest_ecornn.cases.case_sets import Origin
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, Times, format_ratio
from pytest_ecornn.suites.published.common.item_rows import group
from pytest_ecornn.suites.published.common.published_page import PublishedPage, Section
from pytest_ecornn.suites.published.common.report_rows import CALLED, CaseRows, by_case, cases_of

CELLS = ("mingru", "minlstm")
ON_CPU, ON_GPU = ("sequential", "scan_cpu"), "scan_gpu"
LOGARITHMIC = ("scan_gpu_log", "scan_torch")  # on a GPU, of cells whose candidate is positive
TIMED = (*ON_CPU, ON_GPU)
NAMES = (*TIMED, *LOGARITHMIC)
BAR, BAR_STEPS = MinTarget(15.0), 65_536
# By implementation, as the case set has it.
_SYSTEMS = {"sequential": "loop, i9-12900K", "scan_cpu": "scan, i9-12900K", "scan_gpu": "scan, RTX 4090"}
_PUBLISHED_ON = "i9-12900K, RTX 4090"


@cache
def origins() -> dict[Case, Origin]:
    """The cases that have published times, on a CPU, short ones first."""
    return {case: origin for case, origin in cases_of("scan", "cpu").items() if case.cell in CELLS}


@dataclass(frozen=True)
class LengthRows:
    """The rows of one cell and number of steps by implementation, each of the case that it runs. case: on a CPU."""

    case: Case
    rows: Mapping[str, CaseRows]

    def time_ms(self, name: str) -> Times | None:
        """Of a call: median, low, high."""
        time_us = self.rows[name].time_us(name, CALLED) if name in self.rows else None
        return (time_us[0] / 1e3, time_us[1] / 1e3, time_us[2] / 1e3) if time_us else None

    def reason(self, name: str) -> str:
        """Why there is no time; empty where there is one, or no row."""
        return self.rows[name].reason(name, CALLED) if name in self.rows else ""

    @property
    def cpu_over_gpu(self) -> Ratio | None:
        """scan_cpu's time over scan_gpu's. They did not take turns: the interval is the quotient of both intervals."""
        cpu_ms, gpu_ms = self.time_ms("scan_cpu"), self.time_ms("scan_gpu")
        return Ratio(cpu_ms[0] / gpu_ms[0], cpu_ms[1] / gpu_ms[2], cpu_ms[2] / gpu_ms[1]) if cpu_ms and gpu_ms else None

    def published_ms(self, name: str) -> float | None:
        """None where none was published."""
        published = origins()[self.case].published
        return next((time.time_us / 1e3 for time in published if time.system == _SYSTEMS[name]), None)


def rows_of(rows: Sequence[Row]) -> list[LengthRows]:
    """Those of each cell and number of steps that has a row."""
    of_case = by_case(rows, [*cases_of("scan", "cpu"), *cases_of("scan")], NAMES)
    return [
        LengthRows(case, of_name)
        for case in origins()
        if (of_name := {name: of_case[own] for name, own in _cases(case).items() if own in of_case})
    ]


def _cases(case: Case) -> dict[str, Case]:
    """The case of each implementation."""
    on_gpu = replace(case, device="cuda")
    positive = replace(on_gpu, cell=f"{case.cell}_positive")
    return {**dict.fromkeys(ON_CPU, case), ON_GPU: on_gpu, **dict.fromkeys(LOGARITHMIC, positive)}


def sections(rows: Sequence[Row]) -> list[Section]:
    lengths, shape = rows_of(rows), next(iter(origins()))
    parts = [
        "## Times over the number of steps",
        f"Forward pass on given pre-activations, {shape.dtype}, B {shape.batch}, H {shape.hidden_size} (which were not "
        "published). Times of one call in ms, as called, with their intervals. Each call has contents of its own. "
        f"{' and '.join(ON_CPU)} run on the CPU, all others on the GPU. What fails its comparison with the float64 reference "
        "is wrong and has no time.",
        "scan_cpu over scan_gpu is a ratio of two rows, which did not take turns. Its interval is conservative: the low end of "
        "scan_cpu's over the high end of scan_gpu's, and the high end over the low.",
        f"Columns in italics are published ({_PUBLISHED_ON}). As their shapes are not known, compare their ratios, not their "
        f"times. {' and '.join(LOGARITHMIC)} compute in logarithms, which needs a positive candidate: they run the cell of "
        "that name.",
    ]
    for cell in CELLS:
        if chosen := [length for length in lengths if length.case.cell == cell]:
            missing = ((length.reason(name), name) for length in chosen for name in NAMES)
            reasons = group((why, name) for why, name in missing if why)
            listed = "\n".join(f"- {', '.join(dict.fromkeys(names))}: {escape(why)}" for why, names in reasons.items())
            published = [f"*{name}, published*" for name in (*TIMED, "scan_cpu over scan_gpu")]
            header = ["T", *TIMED, "scan_cpu over scan_gpu", *(f"{name} ({cell}_positive)" for name in LOGARITHMIC), *published]
            parts += [f"### {cell}", table(header, [list(_figures(length)) for length in chosen], header), listed]
    return [Section(document([*parts, _targets(lengths)]), charts(lengths))]


def _figures(length: LengthRows) -> Iterator[str]:
    yield f"{length.case.steps:,}"
    yield from (_time(length, name) for name in TIMED)
    yield format_ratio(length.cpu_over_gpu)
    yield from (_time(length, name) for name in LOGARITHMIC)
    published = {name: length.published_ms(name) for name in TIMED}
    yield from ("-" if time_ms is None else f"{time_ms:,g}" for time_ms in published.values())
    cpu_ms, gpu_ms = published["scan_cpu"], published["scan_gpu"]
    yield significant(cpu_ms / gpu_ms) if cpu_ms and gpu_ms else "-"


def _time(length: LengthRows, name: str) -> str:
    if (time_ms := length.time_ms(name)) is None:
        return "see below" if length.reason(name) else "-"
    median, low, high = map(significant, time_ms)
    return f"{median} [{low}, {high}]" if time_ms[1] < time_ms[2] else median  # a baseline's without a row of its own


def _targets(lengths: Sequence[LengthRows]) -> str:
    lines = [
        [f"{length.case.cell}, {length.case.steps:,} steps", *BAR.cells(ratio)]
        for length in lengths
        if length.case.steps == BAR_STEPS and (ratio := length.cpu_over_gpu)
    ]
    return table(("scan_cpu over scan_gpu", "measured", "bar", "holds"), lines) if lines else ""


def charts(lengths: Sequence[LengthRows]) -> dict[str, str]:
    """A plot for each cell, by file name: its times over the steps, the published ones dashed."""
    plots, shape = {}, next(iter(origins()))
    sizes = f"{shape.dtype}, B {shape.batch}, H {shape.hidden_size}"
    for cell in CELLS:
        chosen = {length.case.steps: length for length in lengths if length.case.cell == cell}
        measured, published = [], []
        for colour, name in enumerate(NAMES, 1):
            times_ms = {steps: length.time_ms(name) for steps, length in chosen.items()}
            measured.append(Line(name, [(steps, time_ms[0]) for steps, time_ms in times_ms.items() if time_ms], colour))
        for colour, name in enumerate(TIMED, 1):
            points = [(steps, time_ms) for steps, length in chosen.items() if (time_ms := length.published_ms(name))]
            published.append(Line(f"{name}, published", points, colour, is_dashed=True))
        if any(line.points for line in measured):
            title = f"{cell}, forward, {sizes}; dashed: {_PUBLISHED_ON}, shape not known"
            plots[f"scan_{cell}.svg"] = log_plot(title, "time steps", "time of a call, ms", measured + published).document()
    return plots


# A loop over the most steps is no row: none was published, and it takes minutes.
_ROWS = "not positive and not (sequential and (cuda or T16384 or T65536)) or (scan_gpu_log or scan_torch) and cuda"
_RUN = [*(f"--ecornn-only={name}" for name in NAMES), f"--ecornn-baseline={ON_GPU}", "-k", _ROWS]
PAGE = PublishedPage(
    "scan", "minGRU and minLSTM over the number of steps on this machine", sections,
    ["--ecornn-cases=scan", "--ecornn-device=cpu", *_RUN],
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(PAGE.main())
