"""DeepBench's recurrent problems on this machine: persistent_gpu, transposed_gpu and auto beside cuDNN, and pruned layers.

The page has geometric means over each application, then a line a problem beside the published times. Its appendix has layers of
translation and speech with pruned recurrent weights beside dense cuDNN. DeepBench leaves out the input product, which torch's
cuDNN cannot: layers have 8 inputs, so that it hardly counts. Source: github.com/baidu-research/DeepBench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf
from typing import NamedTuple

from pytest_ecornn.cases.case_sets import Origin
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures.ratio_chart import Group, Series, render_chart
from pytest_ecornn.results.formatting import count, significant
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.item_rows import group
from pytest_ecornn.suites.published.common.published_page import PublishedPage, Section
from pytest_ecornn.suites.published.common.report_rows import CALLED, CaseRows, by_case, cases_of, precision_of, without_numbers

INPUTS = 8  # the fewest that cuDNN's 16-bit kernels take
PASSES = {"inference": "forward", "training": "training step"}
_INFERENCE = "inference on"  # how labels begin of problems that DeepBench has for inference alone
_NOTES = (
    "From CUDA graphs; as called where a call is too long for a graph. Lost: the whole interval lies below 1x.",
    "Cases without a time do not fit on chip or were not reached. All results were compared with float64 beforehand.",
    f"Sizes: github.com/baidu-research/DeepBench. Layers have {INPUTS} inputs, so that the input product hardly counts.",
)
BASELINE = "cudnn"
NAMES = (BASELINE, "persistent_gpu", "transposed_gpu", "auto")
PRUNED_NAMES = ("sparse_persistent_gpu", BASELINE)
_NOT_CHARTED = "transposed_gpu"
MAX_CALLED_STEPS = 50  # of cases whose ratios as called are summed up too
_PROCESSORS = ("V100", "Titan Xp")
_ALL = "all"
# Source of the bars: Zhu et al., Sparse Persistent RNNs, ICLR 2018, appendix: up to 3x.
MEAN_BARS, BEST_BARS = {0.1: MinTarget(3.0)}, {0.3: MinTarget(3.0)}  # by density


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
class Part:
    """Problems, each in some variants, with the rows of those that were timed or refused.

    origins: of each case, whose label is its application. names: of the implementations, as they are shown.
    """

    name: str
    origins: Mapping[Case, Origin]
    names: Sequence[str]
    rows: Mapping[Case, CaseRows]

    @property
    def candidates(self) -> list[str]:
        """Names of the implementations that are compared with cuDNN."""
        return [name for name in self.names if name != BASELINE]

    @property
    def variants(self) -> list[Variant]:
        return list(dict.fromkeys(map(Variant.of, self.origins)))

    @property
    def applications(self) -> list[str]:
        return list(dict.fromkeys(name for origin in self.origins.values() for name in origin.label.split("; ")))

    def cases(self, application: str = "") -> list[Case]:
        """The cases of an application, all where it is empty."""
        return [case for case, origin in self.origins.items() if application in ("", *origin.label.split("; "))]

    def ratios(self, name: str, cases: Sequence[Case], timing_mode: str = "") -> list[Ratio]:
        """cuDNN's time over that of `name` on those of these cases where both have one."""
        rows = (self.rows[case] for case in cases if case in self.rows)
        return [ratio for row in rows if (ratio := row.ratio(name, BASELINE, timing_mode))]


@cache
def _origins() -> dict[str, dict[Case, Origin]]:
    dense = cases_of("deepbench")
    training = {case: origin for case, origin in dense.items() if is_training(origin)}
    inference = {case: origin for case, origin in dense.items() if case not in training}
    return {"training": training, "inference": inference, "pruned": cases_of("deepbench_pruned")}


def parts_of(rows: Sequence[Row]) -> list[Part]:
    """Training, inference and pruned problems, as DeepBench has the first two apart, with their rows."""
    names = {"training": NAMES, "inference": NAMES, "pruned": PRUNED_NAMES}
    return [Part(name, origins, names[name], by_case(rows, origins, names[name])) for name, origins in _origins().items()]


def series_of(part: Part, name: str, variant: Variant) -> Series | None:
    """Returns the ratios of an implementation over all problems, labelled by the variant; None where there is no ratio."""
    planned = [case for case in part.origins if Variant.of(case) == variant]
    ratios = part.ratios(name, planned)
    if not ratios:
        return None
    density = f", density {100 * variant.density:g} %" if variant.density < 1 else ""
    return Series(variant.precision + density, ratios, mean_ratio(ratios), len(planned))


def _describe_missing(part: Part) -> str:
    """How many cases each implementation ran, then the reasons, which differ by more than their numbers."""
    rows = list(part.rows.values())
    lines = [f"{len(rows)} of {len(part.origins)} cases were reached."]
    lines += [f"{name} has a time on {sum(row.time_us(name) is not None for row in rows)} of them." for name in part.names]
    lines += [f"{name}, {line}" for name in part.names for line in _reasons(name, rows)]
    return "\n".join(f"- {escape(line)}" for line in lines)


def _reasons(name: str, rows: Sequence[CaseRows]) -> Iterator[str]:
    missing = [(row.case, reason) for row in rows if (reason := row.reason(name))]
    same = group(((case.mode, without_numbers(reason)), (case, reason)) for case, reason in missing)
    for (mode, _), cases in same.items():
        precisions = group((_shape(case), precision_of(case)) for case, _ in cases)
        shapes = "; ".join(f"{shape} {', '.join(of_shape)}" for shape, of_shape in precisions.items())
        yield f"{PASSES[mode]}, {count(len(cases), 'case')}: {cases[0][1]} ({shapes})"


def _shape(case: Case) -> str:
    density = f" {case.density:.0%}" if case.density < 1 else ""
    return f"{case.cell} {case.hidden_size:,} B {case.batch} T {case.steps:,}{density}"


def sections(rows: Sequence[Row]) -> Iterator[Section]:
    for part in parts_of(rows):
        groups = [group for mode in PASSES if (group := _group(part, mode)).series]
        chart = render_chart(f"DeepBench, {part.name}", groups, _NOTES).document() if groups else ""
        text = _render_pruned(part) if part.name == "pruned" else _render(part)
        yield Section(text, {f"deepbench_{part.name}.svg": chart} if chart else {})


def _render(part: Part) -> str:
    sections = [
        f"## DeepBench, {part.name}",
        f"One layer, one direction. Ratios: {BASELINE}'s time over the implementation's, over 1 it is faster. "
        "All take turns, block by block. Times come from CUDA graphs that take turns; "
        "those marked * are as called, where a call is too long for a graph or there are none. A training step is the forward "
        "pass and all gradients. What fails its comparison with the float64 reference is wrong and has no time.",
        f"DeepBench leaves out the input product, which torch's cuDNN cannot. Layers have {INPUTS} inputs instead of H, the "
        f"fewest that cuDNN takes in 16 bits: the product is {INPUTS}/H of a recurrent one, for every implementation alike.",
        "Published: DeepBench's times of cuDNN on its processors of 2016 to 2018, fp32 beside float32 and TF32, mixed fp16 "
        "beside float16. Its training step is the sum of its three passes.",
        "### Geometric means",
        summary(part),
        f"As called, T to {MAX_CALLED_STEPS}:",
        summary(part, CALLED),
    ]
    header = ("problem", "precision", *(f"{name}, us" for name in (*part.names, *_PROCESSORS)))
    sections += _tables(part, "{}, {}", header, _figures)
    return document([*sections, "### What has no time", _describe_missing(part)])


def _tables(part: Part, title: str, header: Sequence[str], cells: Callable[[Part, CaseRows], Iterator[str]]) -> Iterator[str]:
    """A table for each application and pass that has a time, a line a problem."""
    for application, mode in product(part.applications, PASSES):
        rows = [row for case in part.cases(application) if (row := part.rows.get(case)) and case.mode == mode and row.is_timed]
        if rows:
            marks = [r" \*" * (row.timing_mode == CALLED) for row in rows]
            lines = [[label_of(row.case) + mark, *cells(part, row)] for row, mark in zip(rows, marks, strict=True)]
            yield from (f"### {title.format(application.capitalize(), PASSES[mode])}", table(header, lines, header[2:]))


def summary(part: Part, timing_mode: str = "") -> str:
    """Returns geometric means with the number of problems in them, the last implementation's lowest, how often it is slower.

    timing_mode: as called, of short sequences alone; each case's own if empty. Slower: the whole interval lies below 1.
    """
    last = part.candidates[-1]
    header = ("pass, precision", "application", "problems", *part.candidates, f"lowest of {last}", f"{last} slower")
    max_steps = MAX_CALLED_STEPS if timing_mode == CALLED else inf
    lines = []
    for variant, application in product(part.variants, (*part.applications, "")):
        cases = [case for case in part.cases(application) if Variant.of(case) == variant and case.steps <= max_steps]
        ratios = [part.ratios(name, cases, timing_mode) for name in part.candidates]
        if any(ratios):
            label = f"{PASSES[variant.mode]}, {variant.precision}"
            means = [f"{format_ratio(mean_ratio(of_name))} of {len(of_name)}" if of_name else "-" for of_name in ratios]
            slower = str(sum(ratio.high < 1 for ratio in ratios[-1])) if ratios[-1] else "-"
            lines.append([label, application or _ALL, str(len(cases)), *means, format_ratio(_lowest(ratios[-1])), slower])
    return table(header, lines, header[2:]) if lines else "No ratio was measured."


def _lowest(ratios: Sequence[Ratio]) -> Ratio | None:
    return min(ratios, key=lambda ratio: ratio.ratio, default=None)


def _figures(part: Part, row: CaseRows) -> Iterator[str]:
    yield precision_of(row.case)
    for name in part.names:
        time_us, ratio = row.time_us(name), row.ratio(name, BASELINE)
        over = f" ({significant(ratio.ratio)})" if ratio else ""
        yield significant(time_us[0], 4) + over if time_us else "-"
    for processor in _PROCESSORS:
        published = (time for time in part.origins[row.case].published if time.system.startswith(processor))
        yield next((significant(time.time_us, 4) for time in published), "-")


def _render_pruned(part: Part) -> str:
    sections = [
        "## Appendix: pruned layers",
        "Forward passes of machine translation and speech recognition, B to 32, with 10 % and 30 % of the recurrent "
        f"weights left. {BASELINE} runs the same layer with the zeros stored. Ratios, marks and inputs as above.",
        targets(part),
    ]
    header = ("problem", "precision", "density", *(f"{name}, us" for name in part.names), "ratio")
    sections += _tables(part, "{}, pruned", header, _pruned_figures)
    return document([*sections, "### What has no time, pruned", _describe_missing(part)])


def targets(part: Part) -> str:
    """Returns means, best and lowest ratios by density and precision, over both with the bars.

    A bar is judged "so far" until all cases were reached.
    """
    lines, precisions = [], dict.fromkeys(map(precision_of, part.origins))
    for density, precision in product(dict.fromkeys(variant.density for variant in part.variants), (*precisions, _ALL)):
        cases = [case for case in part.origins if case.density == density and precision in (_ALL, precision_of(case))]
        ratios = [ratio for name in part.candidates for ratio in part.ratios(name, cases)]
        limits = [by_density.get(density) if precision == _ALL else None for by_density in (MEAN_BARS, BEST_BARS)]
        label = [f"{density:.0%}", precision, f"{len(ratios)} of {len(cases)}"]
        lines.append([*label, *_statistics(ratios, limits, is_whole=part.rows.keys() >= {*cases})])
    header = ("density", "precision", "cases", "geometric mean", "bar", "best", "best's bar", "lowest")
    return table(header, lines, header[2:])


def _statistics(ratios: Sequence[Ratio], limits: Sequence[MinTarget | None], is_whole: bool) -> Iterator[str]:
    if not ratios:
        yield from ["-"] * 5
        return
    for ratio, bar in zip((mean_ratio(ratios), max(ratios, key=lambda ratio: ratio.ratio)), limits, strict=True):
        yield format_ratio(ratio)
        yield f"{bar}: {bar.is_met(ratio)}{'' if is_whole else ' so far'}" if bar else "-"
    yield format_ratio(_lowest(ratios))


def _pruned_figures(part: Part, row: CaseRows) -> Iterator[str]:
    yield from (precision_of(row.case), f"{row.case.density:.0%}")
    yield from (significant(time_us[0], 4) if (time_us := row.time_us(name)) else "-" for name in part.names)
    yield format_ratio(row.ratio(part.candidates[0], BASELINE))


def _group(part: Part, mode: str) -> Group:
    names = [name for name in reversed(part.candidates) if name != _NOT_CHARTED]
    variants = [variant for variant in part.variants if variant.mode == mode]
    measured = [(name, series) for name, variant in product(names, variants) if (series := series_of(part, name, variant))]
    if len(names) == 1:
        return Group(f"forward, pruned: {BASELINE}'s time over {names[0]}'s", [series for _, series in measured])
    labelled = [replace(series, label=f"{name}, {series.label}") for name, series in measured]
    return Group(f"{PASSES[mode]}: {BASELINE}'s time over", labelled)


_RUN = [f"--ecornn-only={name}" for name in (*NAMES[1:], *PRUNED_NAMES[:1])]
PAGE = PublishedPage(
    "deepbench", "DeepBench on this machine", sections, ["--ecornn-cases=deepbench", "--ecornn-cases=deepbench_pruned", *_RUN]
)

if __name__ == "__main__":
    raise SystemExit(PAGE.main())
