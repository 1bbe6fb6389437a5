"""DeepBench's recurrent problems on this machine: persistent_gpu, transposed_gpu and auto beside cuDNN, and pruned layers.

`python -m pytest_ecornn.suites.published.deepbench --output FOLDER` writes FOLDER/deepbench.md, FOLDER/deepbench.json and
charts, anew after every row, so that what was measured outlives a run that is cut short: --resume goes on after it. All
problems take several runs. Training and inference are apart, as DeepBench has them. DeepBench leaves out the input product,
which torch's cuDNN cannot: layers have 8 inputs, so that it hardly counts. Source: github.com/baidu-research/DeepBench.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_ecornn.suites.published.common.case_times import Row, cases_of
from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.deepbench_parts import problem_times
from pytest_ecornn.suites.published.deepbench_parts.problem_times import ProblemTimes, is_training

_ORIGINS = cases_of("deepbench")
TRAINING, INFERENCE = (
    ProblemTimes(name, {case: one for case, one in _ORIGINS.items() if is_training(one) == trains}, problem_times.COMPARISON)
    for name, trains in (("training", True), ("inference", False))
)
PRUNED = ProblemTimes("pruned", cases_of("deepbench_pruned"), problem_times.PRUNED_COMPARISON)


def make_plan(training: ProblemTimes, inference: ProblemTimes, pruned: ProblemTimes) -> ReportPlan:
    """The report of these; the appendix is measured before inference, which has most cases of long sequences."""
    dense = [_section(times, problem_times.render, problem_times.figures, 0.4) for times in (training, inference)]
    appendix = _section(pruned, problem_times.render_pruned, problem_times.pruned_figures, 0.2)
    return ReportPlan(
        "deepbench",
        "DeepBench on this machine",
        schema_version=1,
        parts={training.name: dense[0], pruned.name: appendix, inference.name: dense[1]},
        order=(training.name, inference.name, pruned.name),
        seconds=540.0,
    )


def _section(times: ProblemTimes, render: Callable[..., str], figures: Callable[..., dict[str, str]], share: float) -> Section:
    named: Any = {"render": partial(render, times), "figures": partial(figures, times)}
    return Section(times.measure, **named, row=Row, is_resumable=True, groups=times.groups, share=share, is_sharded=True)


PLAN = make_plan(TRAINING, INFERENCE, PRUNED)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
