"""Strip charts of the ratios of problems."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ecornn.reporting.pictures.ratio_chart import Group, Series, render_chart
from pytest_ecornn.suites.published.common.case_times import Row, precision_of
from pytest_ecornn.suites.published.common.ratios import mean_ratio
from pytest_ecornn.suites.published.deepbench_parts.problem_times import INPUTS, ProblemTimes, Variant

_NOTES = (
    "From CUDA graphs; as called where a call is too long for a graph. Lost: the whole 99 % interval lies below 1x.",
    "Cases without a time do not fit on chip or were not reached. All results were compared with float64 beforehand.",
    f"Sizes: github.com/baidu-research/DeepBench. Layers have {INPUTS} inputs, so that the input product hardly counts.",
)


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
