"""persistent_gpu alone beside cuDNN, replayed from CUDA graphs: DeepBench's problems, and others of many sequences.

`python -m pytest_ecornn.suites.published.kernels --output FOLDER` writes FOLDER/kernels.md and FOLDER/kernels.json, anew after
every problem; --resume goes on after it. Nothing chooses here: what persistent_gpu refuses
has no ratio and is counted. Source of DeepBench: github.com/baidu-research/DeepBench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch

from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.persistent_gpu.single_step import is_applicable
from pytest_ecornn.measurement.alternating import Replay, sample
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import format_ratio, geometric_mean
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, measure_rest
from pytest_ecornn.suites.published.common.parted import ReportPlan, Section
from pytest_ecornn.suites.published.selection_parts import problems
from pytest_ecornn.suites.published.selection_parts.problems import (
    BASELINE,
    MODES,
    SelectionProblem,
    make_call,
    make_module,
    precision_set,
)

SETS = {
    "deepbench": "DeepBench's problems up to T 750",
    "batched": "Drawn problems of B from 64 on",
    "lost_before": "Problems that cuDNN once ran faster",
}
PRECISIONS = ("float16", "tf32", "float32")
OURS = "persistent_gpu"
SEED, COUNT = 1, 60
ROUNDS, _BLOCK_US = 7, 2500.0


@dataclass(frozen=True)
class KernelRow:
    """A problem's times in us (median, low, high) by backend. over_cudnn: above 1 where persistent_gpu is faster.

    forms: kinds of a layer's kernels, forward then backward, were it alone. reason: why there is no ratio.
    """

    problem: SelectionProblem
    times_us: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    over_cudnn: Ratio | None = None
    forms: str = ""
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.problem}, {self.problem.mode}"


def selected(sets: Sequence[str], precisions: Sequence[str]) -> list[SelectionProblem]:
    """All problems of the sets, in these precisions."""
    makers: dict[str, Callable[[], Iterable[SelectionProblem]]] = {
        "deepbench": lambda: problems.deepbench(precisions),
        "batched": lambda: problems.batched(SEED, COUNT),
        "lost_before": problems.lost_before,
    }
    return [problem for name in sets for problem in makers[name]() if problem.precision in precisions]


def measure(deadline: float, earlier: Sequence[KernelRow] = (), sets: Sequence[str] = tuple(SETS)) -> Iterator[KernelRow]:
    """Earlier rows, then one for each other problem of the sets; after `deadline` (of time.monotonic) the reason alone."""
    todo = selected(sets, PRECISIONS)
    return measure_rest(todo, earlier, lambda row: row.problem, deadline, measure_problem, _without_times)


def _without_times(problem: SelectionProblem, why: str) -> KernelRow:
    return KernelRow(problem, reason=why)


def measure_problem(problem: SelectionProblem, rounds: int = ROUNDS) -> KernelRow:
    """Times both backends in blocks that alternate. Raises ValueError or RuntimeError where one does not run."""
    device = with_index("cuda")
    with precision_set(problem):
        calls = {name: Replay(make_call(problem, make_module(problem, name, device), device)) for name in (BASELINE, OURS)}
        samples = sample(calls, device, rounds, _BLOCK_US)
        kernel.status_of(device).check()  # which replays do not ask
    times_us = {name: median_interval(of_name) for name, of_name in samples.items()}
    return KernelRow(problem, times_us, paired_ratio(samples[BASELINE], samples[OURS]), _forms(problem, device))


def _forms(problem: SelectionProblem, device: torch.device) -> str:
    dtype, kinds = getattr(torch, problem.dtype), []
    shape = Shape(problem.cell, problem.steps, problem.batch, problem.hidden_size, batch_first=False)
    if problem.mode == "inference" and is_applicable(shape, [problem.input_size], dtype):
        return "single step"
    for is_backward in (False, True)[: 1 + (problem.mode == "training")]:
        spec = KernelSpec(dtype, device, problem.precision == "tf32", is_backward)
        form = select_config(spec.problem(problem.cell, problem.hidden_size, problem.batch), Device.of(device))
        kinds.append(form if isinstance(form, str) else form.kind)
    return "; ".join(kinds)


def render(rows: Sequence[KernelRow]) -> str:
    """The rows as Markdown."""
    parts = [
        summary(rows),
        "Of replayed CUDA graphs. A ratio over 1 means that persistent_gpu is faster. cuDNN runs as torch.nn. Both compute the "
        "input products. Brackets: 99 % for each row alone.",
        *(_section(name, [row for row in rows if row.problem.set == name]) for name in SETS),
    ]
    return document(parts)


def summary(rows: Sequence[KernelRow]) -> str:
    """A line for each set, precision and mode."""
    header = ["problems", "precision", "mode", "timed", "not run", "cuDNN over persistent_gpu, geometric mean", "lowest",
              "1.0 or more", "99 % below 1.0"]  # fmt: skip
    lines = []
    for key in product(SETS, PRECISIONS, MODES):
        group = [row for row in rows if (row.problem.set, row.problem.precision, row.problem.mode) == key]
        if not (ratios := [row.over_cudnn for row in group if row.over_cudnn]):
            continue
        values = [ratio.ratio for ratio in ratios]
        lines.append([
            *key, str(len(ratios)), str(len(group) - len(ratios)), f"{geometric_mean(values):.2f}", f"{min(values):.2f}",
            f"{sum(value >= 1 for value in values)} of {len(values)}", str(sum(ratio.high < 1 for ratio in ratios)),
        ])  # fmt: skip
    return table(header, lines, header[3:]).strip()


def _section(name: str, rows: Sequence[KernelRow]) -> str:
    if not rows:
        return ""
    header = ["problem", "mode", "cuDNN, us", "persistent_gpu, us", "ratio", "forms of a layer alone"]
    lines = [
        [escape(row.problem), row.problem.mode, *(significant(row.times_us[one][0]) for one in (BASELINE, OURS)),
         format_ratio(row.over_cudnn), escape(row.forms)]
        for row in rows if row.over_cudnn
    ]  # fmt: skip
    refused = [row for row in rows if row.reason and row.reason != NOT_REACHED]
    missing = [f"- {escape(f'{row.label}: {row.reason}')}" for row in refused]
    if late := sum(row.reason == NOT_REACHED for row in rows):
        missing.append(f"- {late} {NOT_REACHED}")
    parts = [f"## {SETS[name]}", table(header, lines, header[2:5])]
    return document([*parts, "Not run:", "\n".join(missing)] if missing else parts).strip()


PLAN = ReportPlan(
    "kernels",
    "persistent_gpu alone beside cuDNN",
    schema_version=1,
    parts={"problems": Section(measure, render, 1.0, row=KernelRow, is_resumable=True, groups=tuple(SETS))},
    order=("problems",),
    seconds=500.0,
)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
