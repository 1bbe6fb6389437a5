"""The report of dense layers: geometric means over each application, then a line a problem beside the published times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures.ratio_chart import Group, Series, render_chart
from pytest_ecornn.results.formatting import count, significant
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio
from pytest_ecornn.suites.published.common.bars import format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.case_times import CALLED, Row, TimedComparison, precision_of, timing_mode
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, without_numbers
from pytest_ecornn.suites.published.deepbench_parts.problem_times import (
    INPUTS,
    PASSES,
    TITAN_XP,
    V100,
    Problem,
    ProblemTimes,
    Variant,
    marked_label,
    published_us,
)

_NOTES = (
    "From CUDA graphs; as called where a call is too long for a graph. Lost: the whole 99 % interval lies below 1x.",
    "Cases without a time do not fit on chip or were not reached. All results were compared with float64 beforehand.",
    f"Sizes: github.com/baidu-research/DeepBench. Layers have {INPUTS} inputs, so that the input product hardly counts.",
)
NAMES = ("cudnn", "persistent_gpu", "transposed_gpu", "auto")
_NOT_CHARTED = "transposed_gpu"
PRECISIONS = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"))
MAX_CALLED_STEPS = 50  # of cases that are timed as called too, which takes as long again
COMPARISON = TimedComparison(NAMES, NAMES[:1], called=lambda case: case.steps <= MAX_CALLED_STEPS, times_long_calls=True)
_PROCESSORS = {V100: "V100", TITAN_XP: "Titan Xp"}
_ALL = "all"


def series_of(times: ProblemTimes, rows: Sequence[Row], name: str, variant: Variant) -> Series | None:
    """Returns the ratios of an implementation over all problems, labelled by the variant; None where there is no ratio."""
    planned = times.rows_of(rows, "", variant)
    ratios = [ratio for _, row in planned if row and (ratio := times.ratio(row, name))]
    if not ratios:
        return None
    density = f", density {100 * variant.density:g} %" if variant.density < 1 else ""
    label = f"{precision_of(times.case(planned[0][0], variant))}{density}"
    return Series(label, ratios, mean_ratio(ratios), len(planned))


def strip_chart(times: ProblemTimes, groups: Sequence[Group]) -> dict[str, str]:
    """Returns the chart of the groups that have series, by its file's name; none where none has."""
    if not (drawn := [group for group in groups if group.series]):
        return {}
    return {f"deepbench_{times.name}.svg": render_chart(f"DeepBench, {times.name}", drawn, _NOTES).document()}


def is_reached(row: Row) -> bool:
    return not any(cell.reason == NOT_REACHED for cells in row.cells.values() for cell in cells.values())


def describe_missing(times: ProblemTimes, rows: Sequence[Row]) -> str:
    """How many cases each implementation ran, then the reasons, which differ by more than their numbers."""
    reached = [row for row in rows if is_reached(row)]
    lines = [f"{len(reached)} of {len(times.cases())} cases were reached."]
    for name in times.comparison.names:
        timed = sum(row.cells[timing_mode(row)][name].time_us is not None for row in reached)
        lines.append(f"{name} has a time on {timed} of them.")
    for name in times.comparison.names:
        lines += [f"{name}, {line}" for line in _reasons(name, reached)]
    return "\n".join(f"- {escape(line)}" for line in lines)


def _reasons(name: str, rows: Sequence[Row]) -> list[str]:
    by_reason: dict[tuple[str, str], dict[Case, str]] = {}
    for row in rows:
        if reason := row.cells[timing_mode(row)][name].reason:
            by_reason.setdefault((row.case.mode, without_numbers(reason)), {}).setdefault(row.case, reason)
    return [
        f"{PASSES[mode]}, {count(len(cases), 'case')}: {next(iter(cases.values()))} ({_labels(list(cases))})"
        for (mode, _), cases in by_reason.items()
    ]


def _labels(cases: Sequence[Case]) -> str:
    """Each shape once, with its precisions."""
    precisions: dict[str, list[str]] = {}
    for case in cases:
        density = f" {case.density:.0%}" if case.density < 1 else ""
        shape = f"{case.cell} {case.hidden_size:,} B {case.batch} T {case.steps:,}{density}"
        precisions.setdefault(shape, []).append(precision_of(case))
    return "; ".join(f"{shape} {', '.join(of_shape)}" for shape, of_shape in precisions.items())


def variants(modes: Collection[str]) -> list[Variant]:
    """Returns each mode in all precisions."""
    return [Variant(*precision, mode) for mode, precision in product(modes, PRECISIONS)]


def render(times: ProblemTimes, rows: Sequence[Row]) -> str:
    baseline = times.baseline
    parts = [
        f"## DeepBench, {times.name}",
        f"One layer, one direction. Ratios: {baseline}'s time over the implementation's, over 1 it is faster (99 % intervals, "
        f"{MIN_PAIRS} rounds of alternating blocks, fewer where calls are slow). Times come from CUDA graphs that take turns; "
        "those marked * are as called, where a call is too long for a graph or there are none. A training step is the forward "
        "pass and all gradients. What fails its comparison with the float64 reference is wrong and has no time.",
        f"DeepBench leaves out the input product, which torch's cuDNN cannot. Layers have {INPUTS} inputs instead of H, the "
        f"fewest that cuDNN takes in 16 bits: the product is {INPUTS}/H of a recurrent one, for every implementation alike.",
        "Published: DeepBench's times of cuDNN on its processors of 2016 to 2018, fp32 beside float32 and TF32, mixed fp16 "
        "beside float16. Its training step is the sum of its three passes.",
        "### Geometric means",
        summary(times, rows),
        f"As called, T to {MAX_CALLED_STEPS}:",
        summary(times, rows, CALLED),
    ]
    for application, mode in product(times.applications, PASSES):
        lines = [list(_figures(times, *one)) for one in times.timed_rows(rows, application, mode)]
        if lines:
            header = ("problem", "precision", *(f"{name}, us" for name in times.comparison.names), *_published_header())
            parts += [f"### {application.capitalize()}, {PASSES[mode]}", table(header, lines, header[2:])]
    return document([*parts, "### What has no time", describe_missing(times, rows)])


def summary(times: ProblemTimes, rows: Sequence[Row], way: str = "") -> str:
    """Returns geometric means with the number of problems in them, the last implementation's lowest, how often it is slower.

    way: as called, of short sequences alone; by `timing_mode` if empty. Slower: the whole interval lies below 1.
    """
    last = times.candidates[-1]
    header = ("pass, precision", "application", "problems", *times.candidates, f"lowest of {last}", f"{last} slower")
    lines = []
    for variant, application in product(times.variants, (*times.applications, "")):
        planned = times.rows_of(rows, application, variant)
        if way == CALLED:
            planned = [(problem, row) for problem, row in planned if problem.steps <= MAX_CALLED_STEPS]
        measured = [row for _, row in planned if row]
        ratios = {name: [r for row in measured if (r := times.ratio(row, name, way))] for name in times.candidates}
        if any(ratios.values()):
            label = f"{PASSES[variant.mode]}, {precision_of(times.case(planned[0][0], variant))}"
            means = (_mean(ratios[name]) for name in times.candidates)
            lines.append([label, application or _ALL, str(len(planned)), *means, *_lowest(ratios[last])])
    return table(header, lines, header[2:]) if lines else "No ratio was measured."


def _mean(ratios: Sequence[Ratio]) -> str:
    return f"{format_ratio(mean_ratio(ratios))} of {len(ratios)}" if ratios else "-"


def _lowest(ratios: Sequence[Ratio]) -> tuple[str, str]:
    if not ratios:
        return "-", "-"
    return format_ratio(min(ratios, key=lambda one: one.ratio)), str(sum(one.high < 1 for one in ratios))


def _published_header() -> list[str]:
    return [f"{label}, us" for label in _PROCESSORS.values()]


def _figures(times: ProblemTimes, problem: Problem, row: Row) -> Iterator[str]:
    yield from (marked_label(problem, row), precision_of(row.case))
    for name in times.comparison.names:
        time_us, ratio = row.cells[timing_mode(row)][name].time_us, times.ratio(row, name)
        over = f" ({significant(ratio.ratio)})" if ratio and name != times.baseline else ""
        yield significant(time_us[0], 4) + over if time_us else "-"
    for processor in _PROCESSORS:
        time = published_us(problem, processor, row.case)
        yield significant(time, 4) if time is not None else "-"


def figures(times: ProblemTimes, rows: Sequence[Row]) -> dict[str, str]:
    """Returns the strip chart by its file's name: a group a pass, in it each precision of `auto` and of persistent_gpu."""
    groups, charted = [], [name for name in reversed(times.candidates) if name != _NOT_CHARTED]
    for mode in PASSES:
        of_mode = [(name, variant) for name, variant in product(charted, times.variants) if variant.mode == mode]
        series = ((name, series_of(times, rows, name, variant)) for name, variant in of_mode)
        labelled = [replace(one, label=f"{name}, {one.label}") for name, one in series if one]
        groups.append(Group(f"{PASSES[mode]}: {times.baseline}'s time over", labelled))
    return strip_chart(times, groups)
