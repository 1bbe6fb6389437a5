"""The report's appendix: translation and speech layers with pruned recurrent weights beside dense cuDNN.

Source of the bar: Zhu et al., Sparse Persistent RNNs, ICLR 2018, appendix: up to 3x.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product

from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.reporting.pictures.ratio_chart import Group
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.case_times import Row, TimedComparison, precision_of, timing_mode
from pytest_ecornn.suites.published.deepbench_parts.dense_tables import (
    MAX_CALLED_STEPS,
    describe_missing,
    is_reached,
    series_of,
    strip_chart,
)
from pytest_ecornn.suites.published.deepbench_parts.problem_times import Problem, ProblemTimes, Variant, marked_label

OURS, DENSE = "sparse_persistent_gpu", "cudnn"
COMPARISON = TimedComparison(
    (OURS, DENSE), (DENSE,), needed=OURS, called=lambda case: case.steps <= MAX_CALLED_STEPS, times_long_calls=True
)
VARIANTS = [Variant(dtype, "ieee", "inference", density) for density, dtype in product((0.1, 0.3), ("float16", "float32"))]
APPLICATIONS = ("machine translation", "speech recognition")
MAX_BATCH = 32
MEAN_BARS, BEST_BARS = {0.1: MinTarget(3.0)}, {0.3: MinTarget(3.0)}  # by density


def pruned_problems(problems: Collection[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.application in APPLICATIONS and problem.batch <= MAX_BATCH]


def render(times: ProblemTimes, rows: Sequence[Row]) -> str:
    parts = [
        "## Appendix: pruned layers",
        f"Forward passes of {' and '.join(APPLICATIONS)}, B to {MAX_BATCH}, with 10 % and 30 % of the recurrent weights left. "
        f"{times.baseline} runs the same layer with the zeros stored. Ratios, marks and inputs as above.",
        targets(times, rows),
    ]
    for application in times.applications:
        lines = [list(_figures(times, *one)) for one in times.timed_rows(rows, application, "inference")]
        if lines:
            header = ("problem", "precision", "density", *(f"{name}, us" for name in times.comparison.names), "ratio")
            parts += [f"### {application.capitalize()}, pruned", table(header, lines, header[2:])]
    return document([*parts, "### What has no time, pruned", describe_missing(times, rows)])


def targets(times: ProblemTimes, rows: Sequence[Row]) -> str:
    """Returns means, best and lowest ratios by density and precision, over both with the bars.

    A bar is judged "so far" until all cases were reached.
    """
    reached = {row.case for row in rows if is_reached(row)}
    lines = []
    for density, precision in product(dict.fromkeys(one.density for one in times.variants), (*times.precisions, "all")):
        wanted = [case for case in times.cases() if case.density == density and precision in ("all", precision_of(case))]
        ratios = [ratio for row in rows if row.case in wanted for name in times.candidates if (ratio := times.ratio(row, name))]
        limits = [by_density.get(density) if precision == "all" else None for by_density in (MEAN_BARS, BEST_BARS)]
        label = [f"{density:.0%}", precision, f"{len(ratios)} of {len(wanted)}"]
        lines.append([*label, *_statistics(ratios, limits, is_whole=reached.issuperset(wanted))])
    header = ("density", "precision", "cases", "geometric mean", "bar", "best", "best's bar", "lowest")
    return table(header, lines, header[2:])


def _statistics(ratios: Sequence[Ratio], limits: Sequence[MinTarget | None], is_whole: bool) -> Iterator[str]:
    if not ratios:
        yield from ["-"] * 5
        return
    for ratio, bar in zip((mean_ratio(ratios), max(ratios, key=lambda one: one.ratio)), limits, strict=True):
        yield format_ratio(ratio)
        yield f"{bar}: {bar.is_met(ratio)}{'' if is_whole else ' so far'}" if bar else "-"
    yield format_ratio(min(ratios, key=lambda one: one.ratio))


def _figures(times: ProblemTimes, problem: Problem, row: Row) -> Iterator[str]:
    yield from (marked_label(problem, row), precision_of(row.case), f"{row.case.density:.0%}")
    for name in times.comparison.names:
        time_us = row.cells[timing_mode(row)][name].time_us
        yield significant(time_us[0], 4) if time_us else "-"
    ratio = times.ratio(row, times.candidates[0])
    yield format_ratio(ratio) if ratio else "-"


def figures(times: ProblemTimes, rows: Sequence[Row]) -> dict[str, str]:
    """Returns the strip chart by its file's name: a series a density and precision."""
    series = (series_of(times, rows, times.candidates[0], variant) for variant in times.variants)
    title = f"forward, pruned: {times.baseline}'s time over {times.candidates[0]}'s"
    return strip_chart(times, [Group(title, [one for one in series if one])])
