"""DeepBench's problems: their cases, their measurement in shares that later runs go on with, and the report of them.

The report has geometric means over each application, then a line a problem beside the published times. Its appendix has layers
of translation and speech with pruned recurrent weights beside dense cuDNN.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from itertools import product

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures.ratio_chart import Group, Series, render_chart
from pytest_ecornn.results.formatting import count, significant
from pytest_ecornn.results.shard import Shard
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.case_times import CALLED, Row, TimedComparison, precision_of, timing_mode
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, without_numbers

V100, TITAN_XP = "V100", "TitanXp"
_FILE = "problems.csv"
_PUBLISHED_PRECISIONS = {"float32": "fp32", "float16": "fp16 mixed"}  # by the dtype of the case
_UNNAMED = {"inference_server": "inference on a server", "inference_device": "inference on a device"}
INPUTS = 8  # the fewest that cuDNN's 16-bit kernels take
PASSES = {"inference": "forward", "training": "training step"}


@dataclass(frozen=True)
class Problem:
    """A layer and the application that it comes from. set: training, inference_server or inference_device."""

    set: str
    application: str
    cell: str
    hidden: int
    batch: int
    steps: int

    @property
    def is_training(self) -> bool:
        return self.set == "training"

    @property
    def work(self) -> int:
        """T * B * H * H, to which the multiply-adds of a layer are proportional."""
        return self.steps * self.batch * self.hidden**2

    def __str__(self) -> str:
        return f"{self.cell} {self.hidden:,}, B {self.batch}, T {self.steps:,}"


@dataclass(frozen=True)
class PublishedTime:
    """Times on one processor in one precision, in ms; None where DeepBench has none."""

    forward_ms: float
    backward_inputs_ms: float | None = None
    backward_weights_ms: float | None = None

    @property
    def training_step_ms(self) -> float | None:
        """The sum of the three; None where one is missing."""
        if self.backward_inputs_ms is None or self.backward_weights_ms is None:
            return None
        return self.forward_ms + self.backward_inputs_ms + self.backward_weights_ms


@cache
def published() -> Mapping[Problem, Mapping[tuple[str, str], PublishedTime]]:
    """Returns each problem with its times by processor and precision, in the file's order.

    An application that two processors' lists name differently has the first name. Inference without one is named by its set.
    """
    times: dict[tuple[str, ...], dict[tuple[str, str], PublishedTime]] = {}
    problems: dict[tuple[str, ...], Problem] = {}
    for row in csv.DictReader(files(__package__).joinpath(_FILE).read_text().splitlines()):
        key = tuple(row[name] for name in ("set", "cell", "hidden", "batch", "steps"))
        problems.setdefault(key, _problem(row))
        of_problem = times.setdefault(key, {})
        if row["processor"]:
            of_problem[row["processor"], row["precision"]] = _published_time(row)
    return {problem: times[key] for key, problem in problems.items()}


def _problem(row: Mapping[str, str]) -> Problem:
    application = row["application"] or _UNNAMED[row["set"]]
    return Problem(row["set"], application, row["cell"], *(int(row[name]) for name in ("hidden", "batch", "steps")))


def _published_time(row: Mapping[str, str]) -> PublishedTime:
    backward = (float(row[name]) if row[name] else None for name in ("backward_inputs_ms", "backward_weights_ms"))
    return PublishedTime(float(row["forward_ms"]), *backward)


def published_us(problem: Problem, processor: str, case: Case) -> float | None:
    """Returns the published time beside a case in float32, TF32 (both: fp32) or float16; None where there is none."""
    times = published().get(problem, {}).get((processor, _PUBLISHED_PRECISIONS[case.dtype]))
    if times is None:
        return None
    time_ms = times.training_step_ms if case.training else times.forward_ms
    return None if time_ms is None else time_ms * 1e3


@dataclass(frozen=True)
class Variant:
    """How a problem is run: in which precision and mode, with which density of the recurrent weights."""

    dtype: str
    precision: str
    mode: str
    density: float = 1.0


@dataclass(frozen=True)
class ProblemTimes:
    """Measures problems, each in all variants. name: of the report's part, whose groups are named after it.

    comparison: its first baseline is the one that ratios are shown to.
    """

    name: str
    problems: Sequence[Problem]
    variants: Sequence[Variant]
    comparison: TimedComparison
    device: str = "cuda"

    @property
    def baseline(self) -> str:
        return self.comparison.baselines[0]

    @property
    def candidates(self) -> list[str]:
        """Names of the implementations that are compared with the baseline."""
        return [name for name in self.comparison.names if name != self.baseline]

    @property
    def precisions(self) -> list[str]:
        return list(dict.fromkeys(precision_of(self.case(self.problems[0], variant)) for variant in self.variants))

    @property
    def groups(self) -> tuple[str, ...]:
        """One for each precision."""
        return tuple(self._group(precision) for precision in self.precisions)

    def _group(self, precision: str) -> str:
        return f"{self.name}-{precision}"

    @property
    def applications(self) -> list[str]:
        return list(dict.fromkeys(problem.application for problem in self.problems))

    def case(self, problem: Problem, variant: Variant) -> Case:
        """A layer of `INPUTS` inputs with biases."""
        return Case(cell=problem.cell, steps=problem.steps, batch=problem.batch, hidden_size=problem.hidden, input_size=INPUTS,
                    device=self.device, **vars(variant))  # fmt: skip

    def cases(self, groups: Collection[str] = (), shard: Shard | None = None) -> list[Case]:
        """Returns each case of the groups and the shard once, of all groups where none are named.

        Small ones come first, applications in turn.
        """
        wanted = groups or self.groups
        cases = (self.case(problem, variant) for problem in in_turn(self.problems) for variant in self.variants)
        of_groups = [case for case in dict.fromkeys(cases) if self._group(precision_of(case)) in wanted]
        return [case for case in of_groups if not shard or shard.has(str(case))]

    def measure(
        self, deadline: float, earlier: Sequence[Row] = (), groups: Collection[str] = (), shard: Shard | None = None
    ) -> Iterator[Row]:
        """Earlier rows, then one for each other case: of what begins after `deadline` (of time.monotonic) the reason."""
        return self.comparison.rows(self.cases(groups, shard), deadline, earlier)

    def rows_of(self, rows: Sequence[Row], application: str, variant: Variant) -> list[tuple[Problem, Row | None]]:
        """Returns the problems of an application, of all where it is empty, each case once, with its row where there is one."""
        by_case = {row.case: row for row in rows}
        problems = {
            self.case(problem, variant): problem for problem in self.problems if application in ("", problem.application)
        }
        return [(problem, by_case.get(case)) for case, problem in problems.items()]

    def timed_rows(self, rows: Sequence[Row], application: str, mode: str) -> Iterator[tuple[Problem, Row]]:
        """Yields an application's rows that have a time, problem by problem."""
        by_variant = [dict(self.rows_of(rows, application, one)) for one in self.variants if one.mode == mode]
        for problem in by_variant[0] if by_variant else ():
            for row in (of_variant[problem] for of_variant in by_variant):
                if row and any(cell.time_us for cell in row.cells[timing_mode(row)].values()):
                    yield problem, row

    def ratio(self, row: Row, name: str, way: str = "") -> Ratio | None:
        """The baseline's time over that of `name`, by `timing_mode` unless a way is given; None where one has no time."""
        return row.cells[way or timing_mode(row)][name].over_it.get(self.baseline)


def marked_label(problem: Problem, row: Row) -> str:
    """Names a problem in a table's cell, with * where the row's times are as called."""
    mark = r" \*" if timing_mode(row) == CALLED else ""
    return f"{problem}{mark}"


def in_turn(problems: Sequence[Problem]) -> list[Problem]:
    """Orders problems by rank within their application, by work: a shortened run covers all applications."""
    ranks: Counter[str] = Counter()
    keys: dict[Problem, tuple[int, int]] = {}
    for problem in sorted(problems, key=lambda problem: problem.work):
        keys[problem] = ranks[problem.application], problem.work
        ranks[problem.application] += 1
    return sorted(keys, key=keys.__getitem__)


# The report.

_NOTES = (
    "From CUDA graphs; as called where a call is too long for a graph. Lost: the whole 99 % interval lies below 1x.",
    "Cases without a time do not fit on chip or were not reached. All results were compared with float64 beforehand.",
    f"Sizes: github.com/baidu-research/DeepBench. Layers have {INPUTS} inputs, so that the input product hardly counts.",
)
NAMES = ("cudnn", "persistent_gpu", "transposed_gpu", "auto")
_NOT_CHARTED = "transposed_gpu"
PRECISIONS = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"))
MAX_CALLED_STEPS = 50  # of cases that are timed as called too, which takes as long again
_comparison = partial(TimedComparison, called=lambda case: case.steps <= MAX_CALLED_STEPS, times_long_calls=True)
COMPARISON = _comparison(NAMES, NAMES[:1])
_PROCESSORS = {V100: "V100", TITAN_XP: "Titan Xp"}
_ALL = "all"
OURS, DENSE = "sparse_persistent_gpu", "cudnn"
PRUNED_COMPARISON = _comparison((OURS, DENSE), (DENSE,), needed=OURS)
_PRUNED = product((0.1, 0.3), ("float16", "float32"))
PRUNED_VARIANTS = [Variant(dtype, "ieee", "inference", density) for density, dtype in _PRUNED]
PRUNED_APPLICATIONS = ("machine translation", "speech recognition")
MAX_PRUNED_BATCH = 32
# Source of the bars: Zhu et al., Sparse Persistent RNNs, ICLR 2018, appendix: up to 3x.
MEAN_BARS, BEST_BARS = {0.1: MinTarget(3.0)}, {0.3: MinTarget(3.0)}  # by density


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
            header = (
                "problem",
                "precision",
                *(f"{name}, us" for name in times.comparison.names),
                *(f"{label}, us" for label in _PROCESSORS.values()),
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


def pruned_problems(problems: Collection[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.application in PRUNED_APPLICATIONS and problem.batch <= MAX_PRUNED_BATCH]


def render_pruned(times: ProblemTimes, rows: Sequence[Row]) -> str:
    parts = [
        "## Appendix: pruned layers",
        f"Forward passes of {' and '.join(PRUNED_APPLICATIONS)}, B to {MAX_PRUNED_BATCH}, with 10 % and 30 % of the recurrent "
        f"weights left. {times.baseline} runs the same layer with the zeros stored. Ratios, marks and inputs as above.",
        targets(times, rows),
    ]
    for application in times.applications:
        lines = [list(_pruned_cells(times, *one)) for one in times.timed_rows(rows, application, "inference")]
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


def _pruned_cells(times: ProblemTimes, problem: Problem, row: Row) -> Iterator[str]:
    yield from (marked_label(problem, row), precision_of(row.case), f"{row.case.density:.0%}")
    for name in times.comparison.names:
        time_us = row.cells[timing_mode(row)][name].time_us
        yield significant(time_us[0], 4) if time_us else "-"
    yield format_ratio(times.ratio(row, times.candidates[0]))


def pruned_figures(times: ProblemTimes, rows: Sequence[Row]) -> dict[str, str]:
    """Returns the strip chart by its file's name: a series a density and precision."""
    series = (series_of(times, rows, times.candidates[0], variant) for variant in times.variants)
    title = f"forward, pruned: {times.baseline}'s time over {times.candidates[0]}'s"
    return strip_chart(times, [Group(title, [one for one in series if one])])
