"""persistent_gpu beside cuDNN: LSTM and GRU in four precisions, forward and with backward, as called and from CUDA graphs.

Host time and peak memory are columns of the run's own report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from pytest_ecornn.cases.case_sets import Origin
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common import report_rows
from pytest_ecornn.suites.published.common.bars import NO, MinTarget, format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.item_rows import group
from pytest_ecornn.suites.published.common.published_page import PublishedPage, Section
from pytest_ecornn.suites.published.common.report_rows import CALLED, REPLAYED, TIMING_MODES, CaseRows, by_case, cases_of

OURS, BASELINE = "persistent_gpu", "cudnn"
NAMES = (OURS, BASELINE)
CELLS, DECODING = ("lstm", "gru"), "decoding"  # the label of such cases
LABELS = (DECODING, "language", "long")  # of the cases that are summed up
PRECISIONS = ("float16", "bfloat16", "tf32", "float32")
PASSES = {"inference": "forward", "training": "forward and backward"}
ALL = "all"
# Of geometric means over the language models and long sequences: by pass, timing and precision.
MEAN_BARS = {
    ("inference", CALLED, ALL): MinTarget(4.0), ("inference", REPLAYED, ALL): MinTarget(3.0),
    ("inference", CALLED, "float16"): MinTarget(3.0), ("inference", CALLED, "bfloat16"): MinTarget(5.0),
    ("inference", CALLED, "tf32"): MinTarget(3.5), ("inference", CALLED, "float32"): MinTarget(2.7),
    ("training", CALLED, ALL): MinTarget(3.0), ("training", REPLAYED, ALL): MinTarget(2.4),
}  # fmt: skip
LOWEST_BAR, DECODING_BAR = MinTarget(1.0), MinTarget(0.9)
NOT_ALL = "not all measured"
_MAX_LABELS = 4  # of the cases that a reason holds of


@cache
def origins() -> dict[Case, Origin]:
    """The cases of the page, cheap ones first."""
    return {case: origin for case, origin in cases_of("persistent").items() if origin.label in LABELS}


def rows_of(rows: Sequence[Row]) -> dict[Case, CaseRows]:
    """The rows of each case that has one."""
    return by_case(rows, origins(), NAMES)


def sections(rows: Sequence[Row]) -> list[Section]:
    reached = list(rows_of(rows).values())
    parts = [
        "## Beside cuDNN",
        f"Times of a call in us, and {BASELINE}'s over {OURS}'s with its interval, from "
        f"alternating blocks: over 1 {OURS} is faster. A shape is layers x hidden size, batch, steps; with "
        "backward, the gradients of all leaves are made. Decoding, to T 16, starts from given states. Each call has contents "
        "of its own; replays take turns over several graphs. What fails its comparison with the float64 reference, as called "
        "or replayed, is wrong and has no time.",
        summary(reached),
    ]
    figures = [label for timing in TIMING_MODES for label in (f"{OURS}, {timing}", f"{BASELINE}, {timing}", f"ratio, {timing}")]
    for cell, mode in product(CELLS, PASSES):
        if chosen := [row for row in reached if (row.case.cell, row.case.mode) == (cell, mode)]:
            times = table(("shape", "precision", *figures), [list(_cells(row)) for row in chosen], figures)
            parts += [f"### {cell}, {PASSES[mode]}", times, "\n".join(_reasons(chosen))]
    return [Section(document(parts))]


def _shape(case: Case) -> str:
    return f"{case.layers} x {case.hidden_size}, B {case.batch}, T {case.steps:,}"


def _cells(row: CaseRows) -> Iterator[str]:
    yield from (_shape(row.case), report_rows.precision_of(row.case))
    for timing in TIMING_MODES:
        yield from (significant(time_us[0], 4) if (time_us := row.time_us(name, timing)) else "-" for name in NAMES)
        yield format_ratio(row.ratio(OURS, BASELINE, timing))


def _reasons(rows: Sequence[CaseRows]) -> Iterator[str]:
    """Each reason once, with what it holds of."""
    missing = [(name, row.reason(name, timing), row.case) for row, timing, name in product(rows, TIMING_MODES, NAMES)]
    for (name, why), cases in group(((name, why), case) for name, why, case in missing if why).items():
        labels = [*dict.fromkeys(f"{_shape(case)}, {report_rows.precision_of(case)}" for case in cases)]
        more = f" and {len(labels) - _MAX_LABELS} more" if len(labels) > _MAX_LABELS else ""
        yield f"- {name}, {escape('; '.join(labels[:_MAX_LABELS]) + more)}: {escape(why)}"


def summary(rows: Sequence[CaseRows]) -> str:
    """Geometric means and lowest ratios with their bars: over language models and long sequences, and of decoding."""
    lines = []
    for mode, timing, precision in product(PASSES, TIMING_MODES, (ALL, *PRECISIONS)):
        mean_bar, lowest_bar = MEAN_BARS.get((mode, timing, precision)), LOWEST_BAR if precision == ALL else None
        of_mode = Group(mode, precision, is_decoding=False)
        lines.append([f"{of_mode}, {timing}", *of_mode.line(rows, timing, mean_bar, lowest_bar)])
    decoding = Group("inference", ALL, is_decoding=True)
    lines += [[f"{decoding}, {timing}", *decoding.line(rows, timing, None, DECODING_BAR)] for timing in TIMING_MODES]
    figures = ("rows", "geometric mean", "mean's bar", "mean holds", "lowest", "where", "lowest's bar", "lowest holds")
    return table((f"{BASELINE}'s time over {OURS}'s", *figures), lines)


@dataclass(frozen=True)
class Group:
    """Cases that are summed up together, of both cells."""

    mode: str
    precision: str
    is_decoding: bool

    def __str__(self) -> str:
        return f"{'decoding' if self.is_decoding else PASSES[self.mode]}, {self.precision}"

    def has(self, case: Case) -> bool:
        kind = case.mode, origins()[case].label == DECODING
        return kind == (self.mode, self.is_decoding) and self.precision in (ALL, report_rows.precision_of(case))

    def line(
        self, rows: Sequence[CaseRows], timing: str, mean_bar: MinTarget | None, lowest_bar: MinTarget | None
    ) -> Iterator[str]:
        """How many cases have a ratio; their mean and the lowest, each with its bar and whether it holds."""
        ratios = [(ratio, row) for row in rows if self.has(row.case) and (ratio := row.ratio(OURS, BASELINE, timing))]
        count = sum(map(self.has, origins()))
        yield f"{len(ratios)} of {count}"
        if not ratios:
            yield from ["-"] * 7
            return
        is_whole = len(ratios) == count
        mean = mean_ratio([ratio for ratio, _ in ratios])
        yield from (format_ratio(mean), *_verdict(mean_bar, mean, is_whole))
        ratio, row = min(ratios, key=lambda pair: pair[0].ratio)
        is_lost = lowest_bar is not None and lowest_bar.is_met(ratio) == NO
        yield from (format_ratio(ratio), escape(str(row.case)), *_verdict(lowest_bar, ratio, is_whole or is_lost))


def _verdict(bar: MinTarget | None, ratio: Ratio, is_certain: bool) -> tuple[str, str]:
    if bar is None:
        return "-", "-"
    return str(bar), bar.is_met(ratio) if is_certain else NOT_ALL


PAGE = PublishedPage(
    "persistent", "persistent_gpu on this machine", sections, ["--ecornn-cases=persistent", f"--ecornn-only={OURS}"]
)

if __name__ == "__main__":
    raise SystemExit(PAGE.main())
