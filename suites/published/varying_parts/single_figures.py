"""Single figures beside the scenarios: first calls, lengths beside padding, choices of a form, imports, deterministic runs."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch

from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import heuristics
from pytest_ecornn.measurement.alternating import sample
from pytest_ecornn.reporting.markdown_syntax import document
from pytest_ecornn.results.statistics import median_interval, paired_ratio
from pytest_ecornn.suites.fresh_processes import run_in_turn
from pytest_ecornn.suites.published.common.bars import MaxTarget, Times
from pytest_ecornn.suites.published.common.figure_rows import Row, measure_figures, render_rows
from pytest_ecornn.suites.published.common.parted import ReportPart
from pytest_ecornn.suites.published.varying_parts import scenario_times
from pytest_ecornn.suites.published.varying_parts.scenario_times import ARMS, COLD, WARM
from pytest_ecornn.suites.published.varying_parts.training_steps import OURS, TORCH, Scenario, draw_inputs, make_step

Figures = Mapping[str, tuple[str, MaxTarget | None]]  # unit and bar by name
FIRST_CALLED = tuple(
    Scenario(cell, width, hidden, precision, (64, 64), (35, 35), mode="inference", steps=1)
    for cell, width, hidden, precision in (("GRU", 256, 300, "float32"), ("LSTM", 512, 512, "float16"))
)
FIRST_CALLS: Figures = {
    **{f"first call, {arm}": ("s", None) for arm in ARMS}, f"{WARM}, beyond {TORCH}": ("s", MaxTarget(0.06)),
}  # fmt: skip
RAGGED = (
    Scenario("GRU", 512, 512, "float32", (64, 64), (200, 200), is_ragged=True, steps=1),
    Scenario("LSTM", 650, 650, "bfloat16", (32, 32), (128, 128), layers=2, is_ragged=True, steps=1),
)
RATIOS: Figures = {f"{OURS} by lengths over padded": ("", MaxTarget(1.1)), f"{TORCH} packed over padded": ("", None)}
CHOICES: Figures = {"a choice, median": ("ms", MaxTarget(1)), "a choice, longest": ("ms", MaxTarget(5))}
IMPORTS = "torch", OURS
IMPORT_TIMES: Figures = {"import torch": ("s", None), f"import {OURS} after it": ("s", MaxTarget(0.2))}
SAME: Figures = {f"{scenario_times.OTHER_LOSSES}, deterministic, {COLD}": ("", scenario_times.NO_OTHERS)}
_PROCESSES = 3  # of an arm of first calls
_WARM_CALLS, _ROUNDS, _BLOCK_US = 5, 40, 5e4
_H100 = Device(132, 232_448, 16)  # for which forms are chosen on a CPU
_CLOCK = "time.perf_counter()"
_IMPORT = f"import time; a = {_CLOCK}; import {{}}; b = {_CLOCK}; import {{}}; print(b - a, {_CLOCK} - b)"


def make_part(
    text: str, share: float, items: Sequence[Any], figures: Figures, measure: Callable[..., Sequence[Times]], **options: Any
) -> ReportPart:
    """A part of the report: `measure` returns an item's figures, in order. text: Markdown before them."""
    rows = partial(measure_figures, items=items, figures=figures, measure=partial(measure, **options))
    return ReportPart(rows, lambda measured: document([text, render_rows(measured)]), share, row=Row)


def make_parts(device: str, scenarios: Sequence[Scenario]) -> dict[str, ReportPart]:
    """All parts, in running order. scenarios: of the deterministic runs."""
    first = "## First calls\n\nInference, until the device is done; imports and the context are ready before. The least of 3."
    lengths = "## Lengths\n\nA training step as called, lengths of 1 to T; medians of ratios, with 99 %."
    choosing = "## Choosing a form\n\nThe thread's time on a core in `select_config`, all memos cleared before each."
    imports = "## Imports\n\nMedians of fresh processes, with 99 %."
    same = "## Deterministic runs\n\nTwo processes with `torch.use_deterministic_algorithms`, each with an empty cache."
    return {
        "first_call": make_part(first, 0.07, FIRST_CALLED, FIRST_CALLS, first_calls, device=device),
        "lengths": make_part(lengths, 0.07, RAGGED, RATIOS, length_ratios, device=device),
        "choosing": make_part(choosing, 0.03, ["1,000 drawn problems"], CHOICES, choice_times, device=device),
        "import": make_part(imports, 0.15, ["7 processes each"], IMPORT_TIMES, import_times),
        "deterministic": make_part(same, 0.08, scenarios, SAME, other_losses, device=device),
    }


def first_calls(scenario: Scenario, device: str) -> list[Times]:
    """Seconds of a process's first call, by arm, and of that from disk beyond torch.nn's."""
    row = scenario_times.measure_arms(scenario, _PROCESSES, device)
    if row.reasons:
        raise RuntimeError("; ".join(f"{arm}: {reason}" for arm, reason in row.reasons.items()))
    seconds = {arm: scenario_times.least(row.arms[arm]).first_ms / 1e3 for arm in ARMS}
    return [(figure,) * 3 for figure in (*seconds.values(), seconds[WARM] - seconds[TORCH])]


def length_ratios(scenario: Scenario, device: str) -> list[Times]:
    """The time of a step by lengths over that of a padded one, by this project's modules and by torch.nn's."""
    os.environ.setdefault("ECORNN_COMPILE", "wait")
    place = torch.device(device)
    ((x, lengths),) = draw_inputs(scenario, place)
    calls: dict[str, Callable[[], Any]] = {}
    for library in (OURS, TORCH):
        step = make_step(scenario, library, place)
        calls |= {f"{library}, by lengths": partial(step, x, lengths), f"{library}, padded": partial(step, x, None)}
    for call, _ in product(calls.values(), range(_WARM_CALLS)):
        call()
    samples = sample(calls, place, _ROUNDS, _BLOCK_US)
    ratios = [paired_ratio(samples[f"{library}, by lengths"], samples[f"{library}, padded"]) for library in (OURS, TORCH)]
    return [(ratio.ratio, ratio.low, ratio.high) for ratio in ratios]


def choice_times(item: str, device: str, count: int = 1000) -> list[Times]:
    """Milliseconds to choose a form for drawn layers: the median and the longest."""
    random, place, times_ms = Random(0), _H100 if device == "cpu" else Device.of(torch.device(device)), []
    modes = (MathMode(4, True), MathMode(4, False), MathMode(2, False))
    for _ in range(count):
        sizes = random.randint(32, 2048), random.randint(1, 256)
        problem = ProblemSize(random.choice(NN_CELLS), *sizes, random.choice(modes), random.random() < 0.5)
        clear_memos(heuristics.__name__.rpartition(".")[0])
        start = time.thread_time()
        heuristics.select_config(problem, place)
        times_ms.append(1e3 * (time.thread_time() - start))
    return [median_interval(times_ms), (max(times_ms),) * 3]


def clear_memos(package: str) -> None:
    """Clears what functools keeps for functions of a package's modules."""
    for name, module in [*sys.modules.items()]:
        for value in [*vars(module).values()] if name.startswith(package) else ():
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()


def import_times(item: str, count: int = 7) -> list[Times]:
    """Seconds of each import statement, the second after the first. Raises RuntimeError where a process fails."""
    times_s = []
    for _ in range(count):
        ((line, reason),) = run_in_turn([(["-c", _IMPORT.format(*IMPORTS)], {})])
        if reason:
            raise RuntimeError(reason)
        times_s.append([*map(float, line.split())])
    return [*map(median_interval, zip(*times_s, strict=True))]


def other_losses(scenario: Scenario, device: str) -> list[Times]:
    """How many of two deterministic processes have other losses than the first. Raises RuntimeError where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [(OURS, Path(folder, name)) for name in ("first", "second")]
        times = scenario_times.run_processes(scenario, runs, device, is_deterministic=True)
    if reasons := [process for process in times if isinstance(process, str)]:
        raise RuntimeError("; ".join(reasons))
    return [(float(len({process.digest for process in times if not isinstance(process, str)}) - 1),) * 3]
