"""DeepBench's recurrent problems on this machine: persistent_gpu, transposed_gpu and auto beside cuDNN, and pruned layers.

`python -m pytest_ecornn.suites.published.deepbench --output FOLDER` writes FOLDER/deepbench.md, FOLDER/deepbench.json and
charts, anew after every row, so that what was measured outlives a run that is cut short: --resume goes on after it. All
problems take several runs. Training and inference are apart, as DeepBench has them. DeepBench leaves out the input product,
which torch's cuDNN cannot: layers have 8 inputs, so that it hardly counts. Source: github.com/baidu-research/DeepBench.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytest_ecornn.suites.published.common.case_times import Row
from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.deepbench_parts import dense_tables, pruned_tables
from pytest_ecornn.suites.published.deepbench_parts.problem_times import PASSES, ProblemTimes, published

_TRAINING = [problem for problem in published() if problem.is_training]
_INFERENCE = [problem for problem in published() if not problem.is_training]
TRAINING = ProblemTimes("training", _TRAINING, dense_tables.variants(PASSES), dense_tables.COMPARISON)
INFERENCE = ProblemTimes("inference", _INFERENCE, dense_tables.variants(["inference"]), dense_tables.COMPARISON)
PRUNED = ProblemTimes(
    "pruned", pruned_tables.pruned_problems(_TRAINING), pruned_tables.VARIANTS, pruned_tables.COMPARISON
)  # fmt: skip


def make_plan(training: ProblemTimes, inference: ProblemTimes, pruned: ProblemTimes) -> ReportPlan:
    """The report of these; the appendix is measured before inference, which has most cases of long sequences."""
    dense = [_section(times, dense_tables.render, dense_tables.figures, 0.4) for times in (training, inference)]
    appendix = _section(pruned, pruned_tables.render, pruned_tables.figures, 0.2)
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


def main(arguments: Sequence[str] | None = None) -> int:
    return PLAN.main((__doc__ or "").splitlines()[0], arguments)


if __name__ == "__main__":
    raise SystemExit(main())
