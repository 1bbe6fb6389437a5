"""persistent_gpu alone beside cuDNN, replayed from CUDA graphs: DeepBench's problems, and others of many sequences.

`python -m pytest_ecornn.suites.published.kernels --output FOLDER` writes FOLDER/kernels.md and FOLDER/kernels.json, anew after
every problem. With `--resume` a further run measures what the report lacks. Nothing chooses here: what persistent_gpu refuses
has no ratio and is counted. Source of DeepBench: github.com/baidu-research/DeepBench.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

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
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published.common.bars import format_ratio, geometric_mean
from pytest_ecornn.suites.published.common.parted import check_resumable, read_report, write_report
from pytest_ecornn.suites.published.selection_parts import problems
from pytest_ecornn.suites.published.selection_parts.problems import (
    BASELINE,
    MODES,
    SelectionProblem,
    make_call,
    make_module,
    precision_set,
)
from pytest_ecornn.system import machine
from pytest_ecornn.system.error_line import error_line

SCHEMA_VERSION = 1
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


@dataclass
class Report:
    """The rows measured so far, on one machine."""

    machine: dict[str, Any]
    seconds: float = 0.0
    rows: list[KernelRow] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        write_report(self, render(self), folder, "kernels", SCHEMA_VERSION)

    @classmethod
    def read(cls, path: Path) -> Report:
        return read_report(cls, path, SCHEMA_VERSION)


def selected(sets: Sequence[str], precisions: Sequence[str]) -> list[SelectionProblem]:
    """All problems of the sets, in these precisions."""
    makers: dict[str, Callable[[], Iterable[SelectionProblem]]] = {
        "deepbench": lambda: problems.deepbench(precisions),
        "batched": lambda: problems.batched(SEED, COUNT),
        "lost_before": problems.lost_before,
    }
    return [problem for name in sets for problem in makers[name]() if problem.precision in precisions]


def measure(problem: SelectionProblem, device: torch.device, rounds: int = ROUNDS) -> KernelRow:
    """Times both backends in blocks that alternate."""
    with precision_set(problem):
        try:
            calls = {name: Replay(make_call(problem, make_module(problem, name, device), device)) for name in (BASELINE, OURS)}
            samples = sample(calls, device, rounds, _BLOCK_US)
            kernel.status_of(device).check()  # which replays do not ask
        except (ValueError, RuntimeError) as error:  # or no memory: one problem's failure costs its row alone
            return KernelRow(problem, reason=error_line(error, 200))
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


def render(report: Report) -> str:
    """The report as Markdown."""
    parts = [
        "# persistent_gpu alone beside cuDNN",
        escape(f"{machine.gpu_summary(report.machine)}; replayed CUDA graphs; made in {report.seconds:.0f} s."),
        summary(report.rows),
        "A ratio over 1 means that persistent_gpu is faster. cuDNN runs as torch.nn. Both compute the input products. "
        "Brackets: 99 % for each row alone.",
        *(_section(name, [row for row in report.rows if row.problem.set == name]) for name in SETS),
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
    missing = [f"- {escape(f'{row.problem}, {row.problem.mode}: {row.reason}')}" for row in rows if not row.over_cudnn]
    parts = [f"## {SETS[name]}", table(header, lines, header[2:5])]
    return document([*parts, "Not run:", "\n".join(missing)] if missing else parts).strip()


def report_to_go_on_with(path: Path, found: dict[str, Any]) -> Report:
    """A report of this machine with the rows of the one at `path`, if it is there. Raises ValueError as `check_resumable`."""
    report = Report(found)
    if path.exists():
        before = Report.read(path)
        check_resumable(path, before.machine, found)
        report.rows, report.seconds = before.rows, before.seconds
    return report


def run(report: Report, folder: Path, todo: Sequence[SelectionProblem], seconds: float) -> None:
    """Measures what the report lacks, until the time is over."""
    device, start, before_s = with_index("cuda"), time.monotonic(), report.seconds
    done = {row.problem for row in report.rows if row.over_cudnn}
    for problem in todo:
        if problem in done or time.monotonic() - start > seconds:
            continue
        row = measure(problem, device)
        report.rows = [*(one for one in report.rows if one.problem != problem), row]
        report.seconds = before_s + time.monotonic() - start
        report.write(folder)
        ratio = format_ratio(row.over_cudnn) if row.over_cudnn else row.reason
        print(f"{report.seconds:4.0f} s  {problem} {problem.mode}: {ratio}; {row.forms}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where kernels.md and kernels.json go")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="which problems")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="of these alone")
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no further problem is begun")
    parser.add_argument("--resume", dest="goes_on", action="store_true", help="keep the rows of the report in FOLDER")
    given = parser.parse_args(arguments)
    todo, found = selected(given.sets, given.precisions), machine.fingerprint(Path.cwd())
    try:
        report = report_to_go_on_with(given.output / "kernels.json", found) if given.goes_on else Report(found)
    except ValueError as error:
        parser.error(str(error))
    return exit_code(parser.prog, lambda: run(report, given.output, todo, given.seconds))


if __name__ == "__main__":
    raise SystemExit(main())
