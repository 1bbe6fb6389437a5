"""sparse_persistent_gpu beside dense layers with the zeros stored and cuSPARSE, over hidden size, batch and density.

Source of the grid and of the paper's figure: Zhu et al., Sparse Persistent RNNs, ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from pytest_ecornn.cases.case_sets import Origin
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio
from pytest_ecornn.suites.published.common.item_rows import group
from pytest_ecornn.suites.published.common.published_page import PublishedPage, Section
from pytest_ecornn.suites.published.common.report_rows import CALLED, REPLAYED, CaseRows, by_case, cases_of, without_numbers

OURS, DENSE, CUDNN = "sparse_persistent_gpu", "persistent_gpu", "cudnn"
BASELINES = (CUDNN, "cusparse_gpu", "row_major_gpu")
NAMES = (OURS, DENSE, *BASELINES)
DTYPES = ("float32", "float16")
STEPS, INPUTS = 256, 64
PAPER = {(2304, 4, 0.3, "float32"): "over 6"}  # over the next best
BARS = {
    (2304, 4, 0.3, "float32"): MinTarget(6.0),
    (2304, 4, 0.1, "float32"): MinTarget(8.0),
    (2304, 4, 0.1, "float16"): MinTarget(3.0),
}
LARGE_BAR, LOWEST_BAR, DENSE_BAR = MinTarget(5.0), MinTarget(1.0), MinTarget(1.0)
LARGE = 5120


@cache
def origins() -> dict[Case, Origin]:
    """The cases with a bar, then all others by density, in an order that spreads a shortened run over all sizes."""
    return cases_of("sparse")


def rows_of(rows: Sequence[Row]) -> dict[Case, CaseRows]:
    """The rows of each case that has one."""
    return by_case(rows, origins(), NAMES)


def key_of(case: Case) -> tuple[int, int, float, str]:
    return case.hidden_size, case.batch, case.density, case.dtype


def fastest_baseline(row: CaseRows, timing_mode: str = REPLAYED) -> tuple[str, Ratio] | None:
    """The fastest baseline, and its time over ours with its interval; None where there is no such."""
    ratios = [(name, ratio) for name in BASELINES if (ratio := row.ratio(OURS, name, timing_mode))]
    return min(ratios, key=lambda pair: pair[1].ratio) if ratios else None


def speedup_over_dense(row: CaseRows) -> Ratio | None:
    """persistent_gpu's time over ours."""
    return row.ratio(OURS, DENSE, REPLAYED)


def sections(rows: Sequence[Row]) -> list[Section]:
    reached = list(rows_of(rows).values())
    measured = [row for row in reached if any(row.time_us(name, REPLAYED) for name in NAMES)]
    header = ("H", "B", "density", *NAMES, "best", "over it", "over it, as called", "paper")
    parts = [
        "## Beside dense layers and cuSPARSE",
        f"rnn_tanh, T {STEPS}, {INPUTS} inputs, forward: us a step, the input product among them, from CUDA graphs that take "
        "turns. Dense layers store the zeros; row_major_gpu makes a dense product (GEMM) in every step. Best: the fastest of "
        f"{', '.join(BASELINES)}, and its time over {OURS}'s with its interval, "
        "replayed and, of some cases, as called. Paper: its figure over the next best, on "
        "the chips of its time. What fails its comparison with the float64 reference is wrong and has no time.",
        targets(reached),
    ]
    for dtype in DTYPES:
        if chosen := sorted((row for row in measured if row.case.dtype == dtype), key=lambda row: key_of(row.case)):
            parts += [f"### {dtype}", table(header, [list(_figures(row)) for row in chosen], header[3:])]
    return [Section(document([*parts, "### Where the dense kernel takes over", crossovers(measured), _missing(reached)]))]


def _figures(row: CaseRows) -> Iterator[str]:
    hidden, batch, density, _ = key_of(row.case)
    yield from (f"{hidden:,}", str(batch), f"{density:.0%}")
    yield from (significant(time_us[0] / STEPS) if (time_us := row.time_us(name, REPLAYED)) else "-" for name in NAMES)
    best, called = fastest_baseline(row), fastest_baseline(row, CALLED)
    yield from (best[0] if best else "-", format_ratio(best and best[1]), format_ratio(called and called[1]))
    yield PAPER.get(key_of(row.case), "-")


def targets(rows: Sequence[CaseRows]) -> str:
    """Returns a table of the bars and the figures of the given rows."""
    lines, by_key = [], {key_of(row.case): row for row in rows}
    for key, bar in BARS.items():
        best = fastest_baseline(by_key[key]) if key in by_key else None
        label = f"H {key[0]:,}, B {key[1]}, {key[2]:.0%}, {key[3]}: over the best"
        lines.append([label, *bar.cells(best and best[1]), ""])
    over_best = [(row, best[1]) for row in rows if row.case.batch <= 16 and (best := fastest_baseline(row))]
    lines.append(_lowest_line("lowest over the best, B to 16", LOWEST_BAR, over_best))
    sparse = [(row, ratio) for row in rows if row.case.density <= 0.1 and (ratio := speedup_over_dense(row))]
    lines.append(_lowest_line(f"lowest over {DENSE}, density to 10 %", DENSE_BAR, sparse))
    for row in rows:
        hidden, batch, *kind = key_of(row.case)
        if hidden >= LARGE and kind == [0.1, "float16"] and (ratio := row.ratio(OURS, CUDNN, REPLAYED)):
            lines.append([f"H {hidden:,}, B {batch}, 10 %, float16: over {CUDNN}", *LARGE_BAR.cells(ratio), ""])
    return table(("figure", "found", "bar", "holds", "where"), lines)


def _lowest_line(label: str, bar: MinTarget, ratios: Sequence[tuple[CaseRows, Ratio]]) -> list[str]:
    lowest = min(ratios, key=lambda pair: pair[1].ratio, default=None)
    return [label, *bar.cells(lowest and lowest[1]), escape(str(lowest[0].case)) if lowest else ""]


def crossovers(rows: Sequence[CaseRows]) -> str:
    """The density at which persistent_gpu, with the zeros stored, is as fast, for each H, B and type."""
    ratios = ((row.case, ratio.ratio) for row in rows if (ratio := speedup_over_dense(row)))
    points = group(((case.hidden_size, case.batch, case.dtype), (case.density, ratio)) for case, ratio in ratios)
    lines = [[f"{hidden:,}", str(batch), dtype, crossover(line)] for (hidden, batch, dtype), line in sorted(points.items())]
    return table(("H", "B", "type", "density"), lines)


def crossover(points: Sequence[tuple[float, float]]) -> str:
    """Returns the density at which the dense kernel's time over ours falls to 1, interpolated. points: density and ratio."""
    ordered = sorted(points)
    if ordered[0][1] < 1:
        return f"below {ordered[0][0]:.0%}"
    for (low, above), (high, below) in pairwise(ordered):
        if below < 1:
            return f"{low + (above - 1) / (above - below) * (high - low):.0%}"
    return f"above {ordered[-1][0]:.0%}"


def _missing(rows: Sequence[CaseRows]) -> str:
    """How many rows there are, and why others have no time, each reason once, whatever its numbers."""
    own = [row for row in rows if row.time_us(OURS, REPLAYED)]
    lines = [f"{OURS} ran {len(own)} of the {len(rows)} cases that were reached, of {len(origins())} in all."]
    missing = [(name, row.reason(name, REPLAYED), row) for name in NAMES for row in (rows if name == OURS else own)]
    reasons = group(((name, without_numbers(why)), (row.case, why)) for name, why, row in missing if why)
    for (name, _), [(case, why), *others] in reasons.items():
        lines.append(f"{name}, {1 + len(others)} cases, as {escape(case)}: {escape(why)}")
    return "\n".join(f"- {line}" for line in lines)


_RUN = [f"--ecornn-only={OURS}", *(f"--ecornn-baseline={name}" for name in NAMES[1:])]
PAGE = PublishedPage("sparse", "sparse_persistent_gpu on this machine", sections, ["--ecornn-cases=sparse", *_RUN])

if __name__ == "__main__":
    raise SystemExit(PAGE.main())
