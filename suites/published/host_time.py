"""Steps that the host bounds, by this project's modules beside torch.nn's: wall clock as called, and replayed from a graph.

`python -m pytest_ecornn.suites.published.host_time --output FOLDER` writes FOLDER/host_time.md and FOLDER/host_time.json. A
training step is forward and `backward()` into `.grad`, without an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_ecornn.measurement.alternating import Replay, sample, sample_launches
from pytest_ecornn.measurement.measurement import gc_disabled
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import MaxTarget, Times, format_ratio
from pytest_ecornn.suites.published.common.item_rows import attempt_each, measure_rest
from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from pytest_ecornn.suites.published.selection_parts.problems import AUTO, BASELINE, SelectionProblem, make_module, precision_set

PERSISTENT = "persistent_gpu"
ARMS = (BASELINE, PERSISTENT, AUTO)
_ROUNDS, _BLOCK_US, _MAX_CALLS = 15, 2e5, 200
_WARM_CALLS = 30


PROBLEMS = (
    SelectionProblem("host", "lstm", 1, 512, 512, 64, 35, 1, "float16", "training"),
    SelectionProblem("host", "gru", 1, 128, 128, 16, 35, 1, "float32", "training"),
    SelectionProblem("host", "gru", 3, 96, 96, 5, 20, 2, "tf32", "training"),
    SelectionProblem("host", "lstm", 1, 512, 512, 64, 35, 1, "float16", "inference"),
)


@dataclass(frozen=True)
class ArmTime:
    """Times of a step in us: as called, of the host alone, from a graph. over_baseline: under 1 is faster, as called.

    reason: why it has no times, or "".
    """

    called_us: Times | None = None
    host_us: Times | None = None
    replayed_us: Times | None = None
    over_baseline: Ratio | None = None
    reason: str = ""


@dataclass(frozen=True)
class Row:
    problem: SelectionProblem
    arms: dict[str, ArmTime] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.problem}, {self.problem.mode}"


def measure(
    deadline: float, earlier: Sequence[Row] = (), problems: Sequence[SelectionProblem] = PROBLEMS, device: str = "cuda"
) -> Iterator[Row]:
    """Earlier rows, then one for each other problem; after `deadline` (of time.monotonic) the reason alone."""

    def without(problem: SelectionProblem, why: str) -> Row:
        return Row(problem, dict.fromkeys(ARMS, ArmTime(reason=why)))

    return measure_rest(problems, earlier, deadline, partial(_row, device=torch.device(device)), without)


def _row(problem: SelectionProblem, device: torch.device) -> Row:
    def warm_step(name: str) -> Callable[[], Any]:
        step = make_step(problem, make_module(problem, name, device), device)
        for _ in range(_WARM_CALLS):
            step()
        return step

    with precision_set(problem):
        calls, reasons = attempt_each(ARMS, warm_step)
        with gc_disabled():
            samples, launches = sample_launches(calls, device, _ROUNDS, _BLOCK_US, _MAX_CALLS)
            graphs, missing = attempt_each(calls if device.type == "cuda" else (), lambda name: Replay(calls[name]))
            for name, why in missing.items():
                print(f"{name} has no graph: {why}", flush=True)
            replays = sample(graphs, device, _ROUNDS, _BLOCK_US, _MAX_CALLS)

    def times(name: str) -> ArmTime:
        replayed_us = median_interval(replays[name]) if name in replays else None
        over_baseline = paired_ratio(samples[name], samples[BASELINE]) if BASELINE in samples else None
        return ArmTime(median_interval(samples[name]), median_interval(launches[name]), replayed_us, over_baseline)

    return Row(problem, {name: times(name) if name in calls else ArmTime(reason=reasons[name]) for name in ARMS})


def make_step(problem: SelectionProblem, module: nn.Module, device: torch.device) -> Callable[[], Any]:
    """A forward pass without gradients, or one with `backward()` into the parameters' `.grad`."""
    dtype = getattr(torch, problem.dtype)
    x = torch.randn(problem.steps, problem.batch, problem.input_size, device=device, dtype=dtype)
    gradient = torch.randn(problem.steps, problem.batch, problem.hidden_size * problem.directions, device=device, dtype=dtype)

    def infer() -> None:
        with torch.no_grad():
            module(x)

    def train() -> None:
        module.zero_grad(set_to_none=True)
        module(x)[0].backward(gradient)

    return infer if problem.mode == "inference" else train


_BARS = ((AUTO, MaxTarget(0.6)), (AUTO, MaxTarget(0.8)), (PERSISTENT, MaxTarget(1.0)), (AUTO, MaxTarget(1.0)))
TARGETS = dict(zip(PROBLEMS, _BARS, strict=True))


def render(rows: Sequence[Row]) -> str:
    header = ("step", "pass", "module", "as called, us", f"over {BASELINE}", "host, us", "from a graph, us")
    lines = [_cells(row, name, row.arms[name]) for row in rows for name in ARMS if not row.arms[name].reason]
    missing = ((f"{escape(row.label)}, {name}", arm.reason) for row in rows for name, arm in row.arms.items() if arm.reason)
    reasons = "\n".join(f"- {label}: {escape(why)}" for label, why in missing)
    text = (
        "As called: wall clock of blocks of calls that take turns, the device idle before and after. Host: until the calls of "
        "the same blocks return. From a graph: one CUDA graph a step. Medians. Ratios below 1 mean that the module is faster "
        "(99 % intervals)."
    )
    return document(["## Steps", text, table(header, lines, header[3:]) if lines else "", reasons, targets(rows)])


def _cells(row: Row, name: str, arm: ArmTime) -> list[str]:
    times = (arm.called_us, arm.host_us, arm.replayed_us)
    called, *others = (significant(time_us[0], 4) if time_us else "-" for time_us in times)
    return [escape(str(row.problem)), row.problem.mode, name, called, format_ratio(arm.over_baseline), *others]


def targets(rows: Sequence[Row]) -> str:
    """Returns a table of the bars and what was measured."""
    lines = []
    for row in rows:
        name, bar = TARGETS.get(row.problem, ("", MaxTarget(0.0)))
        if name and (ratio := row.arms[name].over_baseline):
            is_met = bar.is_met((ratio.ratio, ratio.low, ratio.high))
            lines.append([escape(row.label), f"{name} over {BASELINE}", format_ratio(ratio), str(bar), is_met])
    return table(("step", "figure", "measured", "bar", "holds"), lines) if lines else ""


def make_plan(problems: Sequence[SelectionProblem] = PROBLEMS, device: str = "cuda") -> ReportPlan:
    """The report on these problems."""
    measured = partial(measure, problems=problems, device=device)
    parts = {"steps": ReportPart(measured, render, 1.0, row=Row, is_resumable=True)}
    return ReportPlan("host_time", "The host's time in short steps on this machine", 1, parts, ("steps",), seconds=120.0)


PLAN = make_plan()
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
