"""Training steps from a process's first on: by torch.nn, with nothing on disk, with all kernels and decisions on disk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from random import Random

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.suites.fresh_processes import own_caches, run_in_turn
from pytest_ecornn.suites.published.common import figure_rows
from pytest_ecornn.suites.published.common.bars import MaxTarget
from pytest_ecornn.suites.published.common.item_rows import ItemRow, measure_rest
from pytest_ecornn.suites.published.varying_parts import training_steps
from pytest_ecornn.suites.published.varying_parts.training_steps import OURS, SLOW_MS, TORCH, Scenario, StepTimes

COLD, WARM = "nothing on disk", "cache on disk"
ARMS = (TORCH, COLD, WARM)
FIXED = (
    Scenario("GRU", 256, 300, "float32", (1, 64), (5, 120)),
    Scenario("LSTM", 512, 512, "float16", (32, 32), (5, 120), layers=2),
    Scenario("LSTM", 650, 650, "bfloat16", (20, 40), (35, 35)),
)
MAX_LATER_S = {COLD: 2.5, WARM: 0.0}  # than torch.nn, all steps
LONGEST_BAR_S, SLOW_BAR = MaxTarget(0.6), MaxTarget(5)
OTHER_LOSSES, NO_OTHERS = "runs whose losses are others", MaxTarget(0)
_MAX_LAYER_STEPS = 400  # L * D * T of a drawn scenario: a step of torch.nn is then far below SLOW_MS
_TIMED_CHOICES = {"ECORNN_AUTO": "", "ECORNN_DECISIONS": "", "ECORNN_COMPILE": ""}  # whatever the user has set
_FILLS = "fills the cache"  # of a process that waits for compilation, and decides all
_PROCESS = f"import sys; from {training_steps.__name__} import main; main(sys.argv[1])"
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def drawn(seed: int, count: int) -> Iterator[Scenario]:
    """Yields `count` scenarios, all uniform: cell, L, D, precision, I, H, bounds of B and T, whether ragged.

    Drawn anew above 400 steps of layers.
    """
    random = Random(seed)

    def bounds(low: int, high: int) -> tuple[int, int]:
        first, second = (random.randint(low, high) for _ in range(2))
        return min(first, second), max(first, second)

    while count:
        scenario = Scenario(
            random.choice(("RNN", "LSTM", "GRU")), random.randint(32, 1024), random.randint(32, 1024),
            random.choice(("float32", "float16", "bfloat16")), bounds(1, 128), bounds(5, 200), random.randint(1, 3),
            random.randint(1, 2), random.random() < 0.5,
        )  # fmt: skip
        if scenario.layers * scenario.directions * scenario.lengths[1] <= _MAX_LAYER_STEPS:
            yield scenario
            count -= 1


@dataclass(frozen=True)
class Row(ItemRow):
    """A scenario's processes by arm, in the order in which they ran. reasons: why an arm lacks some."""

    scenario: Scenario
    arms: dict[str, list[StepTimes]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def run_processes(
    scenario: Scenario, runs: Sequence[tuple[str, Path]], device: str, is_deterministic: bool = False, fills: int = 0
) -> list[StepTimes | str]:
    """The times of a process for each library and folder of caches, one after the other; or why there are none.

    fills: number of processes, the first ones, that wait for compilation.
    """
    variables = {**_TIMED_CHOICES, **(_DETERMINISTIC if is_deterministic else {})}
    job = {"scenario": asdict(scenario), "device": device, "is_deterministic": is_deterministic}
    processes = [
        (
            ["-c", _PROCESS, json.dumps({**job, "library": library})],
            {**variables, **own_caches(folder), **({"ECORNN_COMPILE": "wait"} if number < fills else {})},
        )
        for number, (library, folder) in enumerate(runs)
    ]
    return [reason or StepTimes(**json.loads(line)) for line, reason in run_in_turn(processes)]


def measure_arms(scenario: Scenario, repeats: int, device: str) -> Row:
    """Runs each arm `repeats` times, in alternation. A process before them, whose times count for none, fills a cache."""
    row = Row(scenario)
    with tempfile.TemporaryDirectory() as folder:
        folders = [{TORCH: TORCH, COLD: f"{COLD} {repeat}", WARM: WARM} for repeat in range(repeats)]
        names = [(_FILLS, WARM), *(pair for by_arm in folders for pair in by_arm.items())]
        runs = [(TORCH if arm == TORCH else OURS, Path(folder, name)) for arm, name in names]
        for (arm, _), times in zip(names, run_processes(scenario, runs, device, fills=1), strict=True):
            if isinstance(times, str):
                row.reasons[arm] = times
            elif arm != _FILLS:
                row.arms.setdefault(arm, []).append(times)
    return row


def measure(
    deadline: float, earlier: Sequence[Row] = (), *, scenarios: Sequence[Scenario], repeats: int, device: str
) -> Iterator[Row]:
    """Earlier rows, but those of the same name that were measured otherwise, then one for each other scenario."""
    names = {str(scenario) for scenario in scenarios}
    kept_rows = [row for row in earlier if row.scenario in scenarios or row.label not in names]

    def without(scenario: Scenario, why: str) -> Row:
        return Row(scenario, reasons=dict.fromkeys(ARMS, why))

    return measure_rest(scenarios, kept_rows, deadline, lambda scenario: measure_arms(scenario, repeats, device), without)


def least(runs: Sequence[StepTimes]) -> StepTimes:
    """The least of each figure over the processes of an arm."""
    return replace(runs[0], **{figure.name: min(getattr(run, figure.name) for run in runs) for figure in fields(StepTimes)})


def bars(row: Row) -> Iterator[figure_rows.Row]:
    """Yields what an arm of ours has to reach, by the least of each figure."""
    for arm, later_s in MAX_LATER_S.items():
        if not (runs := row.arms.get(arm)):
            continue
        times, figures = least(runs), []
        if TORCH in row.arms:
            figures.append(("all steps", "s", times.total_s, MaxTarget(least(row.arms[TORCH]).total_s + later_s)))
        figures.append(("longest step", "s", times.longest_ms / 1e3, LONGEST_BAR_S))
        figures.append((f"steps over {SLOW_MS:.0f} ms", "", times.slow_steps, SLOW_BAR))
        if arm == WARM and len(runs) > 1:
            figures.append((OTHER_LOSSES, "", len({run.digest for run in runs}) - 1, NO_OTHERS))
        for what, unit, value, bar in figures:
            yield figure_rows.Row(f"{what}, {arm}", str(row.scenario), unit, (value,) * 3, bar)


def render(rows: Sequence[Row]) -> str:
    header = ("scenario", "arm", "all steps, s", "once more, s", "first step, ms", "longest, ms",
              f"over {SLOW_MS:.0f} ms", "decisions", "kernels on disk")  # fmt: skip
    lines = []
    for row, arm in product(rows, ARMS):
        if arm in row.arms:
            times = least(row.arms[arm])
            seconds = map(significant, (times.total_s, times.again_s, times.first_ms, times.longest_ms))
            counts = map(str, (times.slow_steps, times.decisions, times.kernels))
            lines.append([escape(row.label), arm, *seconds, *counts])
    reasons = [f"- {escape(f'{row.label}, {arm}: {reason}')}" for row in rows for arm, reason in row.reasons.items()]
    scenario = rows[0].scenario
    text = (
        f"{scenario.steps} training steps of a fresh process (forward, backward, SGD), each until the device is done, then the "
        f"same once more; seed {scenario.seed}. Imports, context and inputs are ready before. The least of an arm's processes, "
        f"which alternate. The JSON file has all of them. {WARM.capitalize()}: what a process left there that ran these steps "
        "and waited for compilation."
    )
    arms = table(header, lines, header[2:]) if lines else ""
    figures = figure_rows.render_rows([figure for row in rows for figure in bars(row)])
    return document(["## Shapes that vary", text, arms, figures, "\n".join(reasons)])
