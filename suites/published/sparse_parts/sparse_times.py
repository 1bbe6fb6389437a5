"""sparse_persistent_gpu beside dense layers with the zeros stored and cuSPARSE, over hidden size, batch and density.

Source of the grid and of the paper's figure: Zhu et al., Sparse Persistent RNNs, ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio
from pytest_ecornn.suites.published.common.case_times import CALLED, REPLAYED, Cell, Row, TimedComparison, cases_of
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, without_numbers

OURS, DENSE, CUDNN = "sparse_persistent_gpu", "persistent_gpu", "cudnn"
BASELINES = (CUDNN, "cusparse_gpu", "row_major_gpu")
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


def cases(dtypes: Collection[str] = DTYPES) -> list[Case]:
    """Returns the cases with a bar, then all others by density, in an order that spreads a shortened run over all sizes."""
    return [case for case in cases_of("sparse") if case.dtype in dtypes]


def is_called(case: Case) -> bool:
    """Whether a case is timed as called too, which takes as long again."""
    return key_of(case) in BARS or (case.density == 0.1 and case.batch in (1, 16))


CONTEST = TimedComparison((OURS, DENSE, *BASELINES), (DENSE, *BASELINES), needed=OURS, called=is_called)


def key_of(case: Case) -> tuple[int, int, float, str]:
    return case.hidden_size, case.batch, case.density, case.dtype


def measure(deadline: float, earlier: Sequence[Row] = (), dtypes: Collection[str] = DTYPES) -> Iterator[Row]:
    """Earlier rows, then one for each other case: of what begins after `deadline` (of time.monotonic) the reason."""
    return CONTEST.rows(cases(dtypes), deadline, earlier)


def fastest_baseline(row: Row, way: str = REPLAYED) -> tuple[str, Ratio] | None:
    """The fastest baseline, and its time over ours with its interval; None where there is no such."""
    found = {name: ratio for name, ratio in row.cells[way][OURS].over_it.items() if name in BASELINES}
    return min(found.items(), key=lambda one: one[1].ratio) if found else None


def speedup_over_dense(row: Row, way: str = REPLAYED) -> Ratio | None:
    """persistent_gpu's time over ours."""
    return row.cells[way][OURS].over_it.get(DENSE)


def render(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if any(cell.time_us for cell in row.cells[REPLAYED].values())]
    parts = [
        "## Beside dense layers and cuSPARSE",
        f"rnn_tanh, T {STEPS}, {INPUTS} inputs, forward: us a step, the input product among them, from CUDA graphs that take "
        "turns. Dense layers store the zeros; row_major_gpu makes a dense product (GEMM) in every step. Best: the fastest of "
        f"{', '.join(BASELINES)}, and its time over {OURS}'s with its interval (99 %, {MIN_PAIRS} rounds of alternating "
        "blocks, fewer where calls are slow), replayed and, of some cases, as called. Paper: its figure over the next best, on "
        "the chips of its time. What fails its comparison with the float64 reference is wrong and has no time.",
        targets(rows),
    ]
    for dtype in DTYPES:
        chosen = sorted((row for row in measured if row.case.dtype == dtype), key=lambda row: key_of(row.case))
        if chosen:
            parts += [f"### {dtype}", _table(chosen)]
    return document([*parts, "### Where the dense kernel takes over", crossovers(measured), _missing(rows)])


def _table(rows: Sequence[Row]) -> str:
    names = ("H", "B", "density", *CONTEST.names, "best", "over it", "over it, as called", "paper")
    return table(names, [list(_figures(row)) for row in rows], names[3:])


def _figures(row: Row) -> Iterator[str]:
    hidden, batch, density, _ = key_of(row.case)
    yield from (f"{hidden:,}", str(batch), f"{density:.0%}")
    yield from (_step_us(row.cells[REPLAYED][name]) for name in CONTEST.names)
    best, called = fastest_baseline(row), fastest_baseline(row, CALLED)
    yield from (best[0] if best else "-", format_ratio(best and best[1]), format_ratio(called and called[1]))
    yield PAPER.get(key_of(row.case), "-")


def _step_us(cell: Cell) -> str:
    return significant(cell.time_us[0] / STEPS, 3) if cell.time_us else "-"


def targets(rows: Sequence[Row]) -> str:
    """Returns a table of the bars and the figures of the given rows."""
    lines, by_key = [], {key_of(row.case): row for row in rows}
    for key, bar in BARS.items():
        best = fastest_baseline(by_key[key]) if key in by_key else None
        lines.append(_line(f"H {key[0]:,}, B {key[1]}, {key[2]:.0%}, {key[3]}: over the best", bar, best and best[1], ""))
    usual = [row for row in rows if row.case.batch <= 16]
    over_best = [(row, best[1]) for row in usual if (best := fastest_baseline(row))]
    lines.append(_lowest_line("lowest over the best, B to 16", LOWEST_BAR, over_best))
    sparse = [(row, ratio) for row in rows if row.case.density <= 0.1 and (ratio := speedup_over_dense(row))]
    lines.append(_lowest_line(f"lowest over {DENSE}, density to 10 %", DENSE_BAR, sparse))
    for row in rows:
        hidden, batch, *kind = key_of(row.case)
        if hidden >= LARGE and kind == [0.1, "float16"] and (ratio := row.cells[REPLAYED][OURS].over_it.get(CUDNN)):
            lines.append(_line(f"H {hidden:,}, B {batch}, 10 %, float16: over {CUDNN}", LARGE_BAR, ratio, ""))
    return table(("figure", "found", "bar", "holds", "where"), lines)


def _line(what: str, bar: MinTarget, ratio: Ratio | None, where: str) -> list[str]:
    return [what, format_ratio(ratio), str(bar), bar.is_met(ratio) if ratio else "-", where]


def _lowest_line(what: str, bar: MinTarget, found: Sequence[tuple[Row, Ratio]]) -> list[str]:
    if not found:
        return _line(what, bar, None, "")
    row, ratio = min(found, key=lambda one: one[1].ratio)
    return _line(what, bar, ratio, escape(row.label))


def crossovers(rows: Sequence[Row]) -> str:
    """The density at which persistent_gpu, with the zeros stored, is as fast, for each H, B and type."""
    found: dict[tuple[int, int, str], list[tuple[float, float]]] = {}
    for row in rows:
        hidden, batch, density, dtype = key_of(row.case)
        if ratio := speedup_over_dense(row):
            found.setdefault((hidden, batch, dtype), []).append((density, ratio.ratio))
    lines = [[f"{hidden:,}", str(batch), dtype, crossover(points)] for (hidden, batch, dtype), points in sorted(found.items())]
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


def _missing(rows: Sequence[Row]) -> str:
    """How many rows there are, and why cells have no time, each reason once, whatever its numbers."""
    reached = [row for row in rows if row.cells[REPLAYED][OURS].reason != NOT_REACHED]
    own = [row for row in reached if row.cells[REPLAYED][OURS].time_us]
    lines = [f"{OURS} ran {len(own)} of the {len(reached)} cases that were reached, of {len(cases())} in all."]
    reasons: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, of_name in ((OURS, reached), *((name, own) for name in CONTEST.names if name != OURS)):
        for row in of_name:
            if why := row.cells[REPLAYED][name].reason:
                reasons.setdefault((name, without_numbers(why)), []).append((row.label, why))
    lines += [
        f"{name}, {len(some)} cases, as {escape(some[0][0])}: {escape(some[0][1])}" for (name, _), some in reasons.items()
    ]
    return "\n".join(f"- {line}" for line in lines)
