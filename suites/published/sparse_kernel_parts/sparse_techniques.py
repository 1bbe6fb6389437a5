"""Measures each technique of sparse_persistent_gpu: a step's time with that one left out over its time with all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu, make_layer
from pytest_ecornn.implementations.sparse_persistent_gpu.config import ALL
from pytest_ecornn.measurement.alternating import Arm, Replay, measure_interleaved
from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import Times, format_ratio
from pytest_ecornn.suites.published.common.candidates import WRONG
from pytest_ecornn.suites.published.common.item_rows import ItemRow, list_reasons, measure_each
from pytest_ecornn.verification import calls
from pytest_ecornn.verification.verification import ReferenceResult

NAMES = tuple(technique.name for technique in fields(ALL) if getattr(ALL, technique.name))
STEPS = 256
_BLOCK_US = 5e3


@dataclass(frozen=True)
class AblationCase:
    """uneven: rows' densities rise from nearly 0 to twice the case's, so that blocks of units beside each other differ."""

    case: Case
    uneven: bool = False

    def __str__(self) -> str:
        case = self.case
        text = f"{case.cell}, H {case.hidden_size:,}, B {case.batch}, {case.density:.0%}, {case.dtype}"
        return text + ", uneven rows" * self.uneven


def _tried(hidden: int, batch: int, density: float, dtype: str, cell: str = "rnn_tanh", uneven: bool = False) -> AblationCase:
    case = Case(
        cell=cell, steps=STEPS, batch=batch, hidden_size=hidden, dtype=dtype, density=density, projected=True, device="cuda"
    )
    return AblationCase(case, uneven)


ALL_TRIED = (
    _tried(2304, 4, 0.3, "float32"), _tried(2304, 4, 0.1, "float32"), _tried(1152, 1, 0.1, "float16"),
    _tried(2304, 16, 0.1, "float16"), _tried(1152, 16, 0.1, "float16", "lstm"), _tried(2304, 4, 0.1, "float32", uneven=True),
    _tried(4608, 4, 0.3, "float32"), _tried(5760, 4, 0.1, "float16"),
)  # fmt: skip


@dataclass(frozen=True)
class Row(ItemRow):
    """step_us: of all techniques: median, low, high. over_all: by technique the time without it over that. Or the reason."""

    tried: AblationCase
    step_us: Times | None = None
    over_all: dict[str, Ratio] = field(default_factory=dict)
    reason: str = ""


def measure(deadline: float) -> Iterator[Row]:
    """A row for each; of what begins after `deadline` (of time.monotonic) only the reason."""
    return measure_each(ALL_TRIED, deadline, _row, lambda tried, why: Row(tried, reason=why))


def _row(tried: AblationCase) -> Row:
    problem, device = problem_of(tried), with_index(tried.case.device)
    techniques = {"": ALL, **{name: replace(ALL, **{name: False}) for name in NAMES}}
    layers = {name: make_layer(tried.case, problem.weights, device, chosen)[0] for name, chosen in techniques.items()}
    if wrong := _wrong(problem, layers):
        return Row(tried, reason=f"{WRONG}: {', '.join(wrong)}")

    def arm(layer: Layer) -> Arm:
        return Arm([Replay(torch.no_grad()(lambda: layer(problem.x, problem.state, None)))], STEPS, _BLOCK_US)

    arms = {name: arm(layer) for name, layer in layers.items()}
    measure_interleaved([*arms.values()], MIN_PAIRS)
    return row(tried, {name: arm.samples_us for name, arm in arms.items()})


def row(tried: AblationCase, samples_us: Mapping[str, Sequence[float]]) -> Row:
    """Returns a row from samples of a step's time, by the technique left out ("" for none)."""
    whole = samples_us[""]
    return Row(tried, median_interval(whole), {name: paired_ratio(samples_us[name], whole) for name in NAMES})


def _wrong(problem: contents.Problem, layers: Mapping[str, Layer]) -> list[str]:
    expected, declared = ReferenceResult(problem), SparsePersistentGpu().declared
    with torch.no_grad():
        checks = {name: expected.compare(calls.run(layer, problem), declared) for name, layer in layers.items()}
    failed = [name for name, of_layer in checks.items() if any(check.status == "failed" for check in of_layer)]
    return [f"without {name}" if name else "with all" for name in failed]


def problem_of(tried: AblationCase) -> contents.Problem:
    """The case's, with its masks replaced where rows are to be uneven."""
    problem = contents.problem(tried.case)
    masks = problem.weights.masks
    for name, mask in masks.items() if tried.uneven else ():
        masks[name] = _uneven(mask, tried.case)
    return problem


def _uneven(mask: Tensor, case: Case) -> Tensor:
    rows, columns = mask.shape
    random = torch.rand(rows, columns, generator=torch.Generator().manual_seed(case.seed))
    share = torch.linspace(0, 2 * case.density, case.hidden_size).repeat(rows // case.hidden_size)
    return (random < share[:, None]).to(mask.device)


def render(rows: Sequence[Row]) -> str:
    text = (
        f"The recurrence alone, from graphs that take turns, {MIN_PAIRS} rounds: us a step with all techniques, and its time "
        "without one of them over that, with 99 % intervals. timestamps: values carry their own, else blocks meet at a barrier "
        "in every step; wide_reads: the states of several sequences are read at once; bank_order: elements lie so that who "
        "reads at once reads from other banks; balance: units change places where blocks would be uneven; clusters: blocks of "
        "a cluster may divide the columns; where they do not, there is nothing to leave out."
    )
    times = table(("case", "us a step", *(f"without {name}" for name in NAMES)), [list(_figures(row)) for row in rows])
    return document(["## What each technique is worth", text, times, list_reasons(rows)])


def _figures(row: Row) -> Iterator[str]:
    yield row.label
    yield ratio_interval(*row.step_us) if row.step_us else "-"
    yield from (format_ratio(row.over_all.get(name)) for name in NAMES)
