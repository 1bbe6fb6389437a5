"""DeepBench's problems: their cases, their measurement in shares that later runs go on with, and the report of them.

The report has geometric means over each application, then a line a problem beside the published times. Its appendix has layers
of translation and speech with pruned recurrent weights beside dense cuDNN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

from pytest_ecornn.cases.case_sets import Origin
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures.ratio_chart import Group, Series, render_chart
from pytest_ecornn.results.formatting import count, significant
from pytest_ecornn.results.shard import Shard
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.case_times import CALLED, Row, TimedComparison, precision_of, timing_mode
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, without_numbers

INPUTS = 8  # the fewest that cuDNN's 16-bit kernels take
PASSES = {"inference": "forward", "training": "training step"}
_INFERENCE = "inference on"  # how labels begin of problems that DeepBench has for inference alone


def is_training(origin: Origin) -> bool:
    """Whether DeepBench has the problem in its training set."""
    return not origin.label.startswith(_INFERENCE)


class Variant(NamedTuple):
    """How a problem is run: in which precision and mode, with which density of the recurrent weights."""

    precision: str
    mode: str
    density: float = 1.0

    @classmethod
    def of(cls, case: Case) -> Variant:
        return cls(precision_of(case), case.mode, case.density)


def label_of(case: Case) -> str:
    """Names a case's problem."""
    return f"{case.cell} {case.hidden_size:,}, B {case.batch}, T {case.steps:,}"


@dataclass(frozen=True)
class ProblemTimes:
    """Measures problems, each in some variants. name: of the report's part, whose groups are named after it.

    origins: of each case, whose label is its application. comparison: its first baseline is the one that ratios are shown to.
    """

    name: str
    origins: Mapping[Case, Origin]
    comparison: TimedComparison

    @property
    def baseline(self) -> str:
        return self.comparison.baselines[0]

    @property
    def candidates(self) -> list[str]:
        """Names of the implementations that are compared with the baseline."""
        return [name for name in self.comparison.names if name != self.baseline]

    @property
    def variants(self) -> list[Variant]:
        return list(dict.fromkeys(map(Variant.of, self.origins)))

    @property
    def precisions(self) -> list[str]:
        return list(dict.fromkeys(map(precision_of, self.origins)))

    @property
    def groups(self) -> tuple[str, ...]:
        """One for each precision."""
        return tuple(self._group(precision) for precision in self.precisions)

    def _group(self, precision: str) -> str:
        return f"{self.name}-{precision}"

    @property
    def applications(self) -> list[str]:
        return list(dict.fromkeys(name for origin in self.origins.values() for name in origin.label.split("; ")))

    def _of_application(self, application: str) -> list[Case]:
        """All cases where it is empty."""
        return [case for case, origin in self.origins.items() if application in ("", *origin.label.split("; "))]

    def cases(self, groups: Collection[str] = (), shard: Shard | None = None) -> list[Case]:
        """Returns the cases of the groups and the shard, of all groups where none are named.

        Small ones come first, applications in turn.
        """
        wanted = groups or self.groups
        of_groups = [case for case in in_turn(self.origins) if self._group(precision_of(case)) in wanted]
        return [case for case in of_groups if not shard or shard.has(str(case))]

    def measure(
        self, deadline: float, earlier: Sequence[Row] = (), groups: Collection[str] = (), shard: Shard | None = None
    ) -> Iterator[Row]:
        """Earlier rows, then one for each other case: of what begins after `deadline` (of time.monotonic) the reason."""
        return self.comparison.rows(self.cases(groups, shard), deadline, earlier)

    def rows_of(self, rows: Sequence[Row], application: str, variant: Variant) -> list[tuple[Case, Row | None]]:
        """Returns the cases of an application, of all where it is empty, each with its row where there is one."""
        by_case = {row.case: row for row in rows}
        return [(case, by_case.get(case)) for case in self._of_application(application) if Variant.of(case) == variant]

    def timed_rows(self, rows: Sequence[Row], application: str, mode: str) -> Iterator[Row]:
        """Yields an application's rows that have a time, problem by problem."""
        by_case = {row.case: row for row in rows if any(cell.time_us for cell in row.cells[timing_mode(row)].values())}
        return (by_case[case] for case in self._of_application(application) if case.mode == mode and case in by_case)

    def ratio(self, row: Row, name: str, way: str = "") -> Ratio | None:
        """The baseline's time over that of `name`, by `timing_mode` unless a way is given; None where one has no time."""
        return row.cells[way or timing_mode(row)][name].over_it.get(self.baseline)


def marked_label(row: Row) -> str:
    """Names a row's problem in a table's cell, with * where its times are as called."""
    mark = r" \*" if timing_mode(row) == CALLED else ""
    return f"{label_of(row.case)}{mark}"


def in_turn(origins: Mapping[Case, Origin]) -> list[Case]:
    """Orders problems by rank within their application, by work: a shortened run covers all applications."""
    ranks: Counter[str] = Counter()
    keys: dict[str, tuple[int, int]] = {}
    problems = {label_of(case): (_work(case), origin.label) for case, origin in origins.items()}
    for problem, (work, application) in sorted(problems.items(), key=lambda one: one[1][0]):
        keys[problem] = ranks[application], work
        ranks[application] += 1
    return sorted(origins, key=lambda case: keys[label_of(case)])


def _work(case: Case) -> int:
    """T * B * H * H, to which the multiply-adds of a layer are proportional."""
    return case.steps * case.batch * case.hidden_size**2


# The report.

_NOTES = (
    "From CUDA graphs; as called where a call is too long for a graph. Lost: the whole 99 % interval lies below 1x.",
    "Cases without a time do not fit on chip or were not reached. All results were compared with float64 beforehand.",
    f"Sizes: github.com/baidu-research/DeepBench. Layers have {INPUTS} inputs, so that the input product hardly counts.",
)
NAMES = ("cudnn", "persistent_gpu", "transposed_gpu", "auto")
_NOT_CHARTED = "transposed_gpu"
MAX_CALLED_STEPS = 50  # of cases that are timed as called too, which takes as long again
_comparison = partial(TimedComparison, called=lambda case: case.steps <= MAX_CALLED_STEPS, times_long_calls=True)
COMPARISON = _comparison(NAMES, NAMES[:1])
_PROCESSORS = ("V100", "Titan Xp")
_ALL = "all"
OURS, DENSE = "sparse_persistent_gpu", "cudnn"
PRUNED_COMPARISON = _comparison((OURS, DENSE), (DENSE,), needed=OURS)
# Source of the bars: Zhu et al., Sparse Persistent RNNs, ICLR 2018, appendix: up to 3x.
MEAN_BARS, BEST_BARS = {0.1: MinTarget(3.0)}, {0.3: MinTarget(3.0)}  # by density


def series_of(times: ProblemTimes, rows: Sequence[Row], name: str, variant: Variant) -> Series | None:
    """Returns the ratios of an implementation over all problems, labelled by the variant; None where there is no ratio."""
    planned = times.rows_of(rows, "", variant)
    ratios = [ratio for _, row in planned if row and (ratio := times.ratio(row, name))]
    if not ratios:
        return None
    density = f", density {100 * variant.density:g} %" if variant.density < 1 else ""
    return Series(variant.precision + density, ratios, mean_ratio(ratios), len(planned))


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
        lines = [list(_figures(times, row)) for row in times.timed_rows(rows, application, mode)]
        if lines:
            header = (
                "problem",
                "precision",
                *(f"{name}, us" for name in times.comparison.names),
                *(f"{name}, us" for name in _PROCESSORS),
            )
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
            planned = [(case, row) for case, row in planned if case.steps <= MAX_CALLED_STEPS]
        measured = [row for _, row in planned if row]
        ratios = {name: [r for row in measured if (r := times.ratio(row, name, way))] for name in times.candidates}
        if any(ratios.values()):
            label = f"{PASSES[variant.mode]}, {variant.precision}"
            means = (_mean(ratios[name]) for name in times.candidates)
            lines.append([label, application or _ALL, str(len(planned)), *means, *_lowest(ratios[last])])
    return table(header, lines, header[2:]) if lines else "No ratio was measured."


def _mean(ratios: Sequence[Ratio]) -> str:
    return f"{format_ratio(mean_ratio(ratios))} of {len(ratios)}" if ratios else "-"


def _lowest(ratios: Sequence[Ratio]) -> tuple[str, str]:
    if not ratios:
        return "-", "-"
    return format_ratio(min(ratios, key=lambda one: one.ratio)), str(sum(one.high < 1 for one in ratios))


def _figures(times: ProblemTimes, row: Row) -> Iterator[str]:
    yield from (marked_label(row), precision_of(row.case))
    for name in times.comparison.names:
        time_us, ratio = row.cells[timing_mode(row)][name].time_us, times.ratio(row, name)
        over = f" ({significant(ratio.ratio)})" if ratio and name != times.baseline else ""
        yield significant(time_us[0], 4) + over if time_us else "-"
    for processor in _PROCESSORS:
        published = (one.time_us for one in times.origins[row.case].published if one.system.startswith(processor))
        yield next((significant(time_us, 4) for time_us in published), "-")


def figures(times: ProblemTimes, rows: Sequence[Row]) -> dict[str, str]:
    """Returns the strip chart by its file's name: a group a pass, in it each precision of `auto` and of persistent_gpu."""
    groups, charted = [], [name for name in reversed(times.candidates) if name != _NOT_CHARTED]
    for mode in PASSES:
        of_mode = [(name, variant) for name, variant in product(charted, times.variants) if variant.mode == mode]
        series = ((name, series_of(times, rows, name, variant)) for name, variant in of_mode)
        labelled = [replace(one, label=f"{name}, {one.label}") for name, one in series if one]
        groups.append(Group(f"{PASSES[mode]}: {times.baseline}'s time over", labelled))
    return strip_chart(times, groups)


def render_pruned(times: ProblemTimes, rows: Sequence[Row]) -> str:
    parts = [
        "## Appendix: pruned layers",
        "Forward passes of machine translation and speech recognition, B to 32, with 10 % and 30 % of the recurrent "
        f"weights left. {times.baseline} runs the same layer with the zeros stored. Ratios, marks and inputs as above.",
        targets(times, rows),
    ]
    for application in times.applications:
        lines = [list(_pruned_cells(times, row)) for row in times.timed_rows(rows, application, "inference")]
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


def _pruned_cells(times: ProblemTimes, row: Row) -> Iterator[str]:
    yield from (marked_label(row), precision_of(row.case), f"{row.case.density:.0%}")
    for name in times.comparison.names:
        time_us = row.cells[timing_mode(row)][name].time_us
        yield significant(time_us[0], 4) if time_us else "-"
    yield format_ratio(times.ratio(row, times.candidates[0]))


def pruned_figures(times: ProblemTimes, rows: Sequence[Row]) -> dict[str, str]:
    """Returns the strip chart by its file's name: a series a density and precision."""
    series = (series_of(times, rows, times.candidates[0], variant) for variant in times.variants)
    title = f"forward, pruned: {times.baseline}'s time over {times.candidates[0]}'s"
    return strip_chart(times, [Group(title, [one for one in series if one])])
