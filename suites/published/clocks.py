"""Three clocks on the same calls: CUDA events as called, replays of CUDA graphs, and CUPTI's sum of kernels' times.

`python -m pytest_ecornn.suites.published.clocks --output FOLDER` writes clocks.md and clocks.json. torch.profiler reads CUPTI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.capture import graph_arms
from pytest_ecornn.measurement.clocks import CudaGraphTimer, for_device
from pytest_ecornn.measurement.measurement import Arm, measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import median_interval
from pytest_ecornn.suites.published.common.bars import Times
from pytest_ecornn.suites.published.common.candidates import prepare
from pytest_ecornn.suites.published.common.item_rows import list_reasons, measure_each
from pytest_ecornn.suites.published.common.launches import breakdown, profiled
from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan

LAYERS = {
    ("cudnn", "persistent_gpu"): ("lstm-T35-B64-H512-float16", "lstm-T35-B32-H650-L2-float32", "gru-T35-B16-H128-float32"),
    ("scan_gpu",): ("mingru-T4096-B16-H256-float32",),
}
CASES = [(f"{layer}-cuda{mode}", names) for names, layers in LAYERS.items() for layer in layers for mode in ("", "-training")]


@dataclass(frozen=True)
class Row:
    """Microseconds of one call by each clock (median, low, high), and its kernels. reason: why there are none."""

    case: str
    name: str
    called_us: Times = (0.0, 0.0, 0.0)
    replayed_us: Times = (0.0, 0.0, 0.0)
    cupti_us: float = 0.0
    kernels: float = 0.0
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} on {self.case}"


def rows(deadline: float) -> Iterator[Row]:
    """One for each case and implementation; of what begins after `deadline` (of time.monotonic) the reason alone."""
    items = ((case, name) for case, names in CASES for name in names)
    return measure_each(items, deadline, lambda item: _row(*item), lambda item, why: Row(*item, reason=why))


def _row(text: str, name: str, seconds: float = 1.0) -> Row:
    case = Case.parse(text)
    if isinstance(candidate := prepare(case, name), str):
        return Row(text, name, reason=candidate)
    called = Arm(candidate, InputPool(case))
    measure([called], for_device(case.device), seconds, lambda: False)
    graphs, missing = graph_arms([called])
    if missing:
        return Row(text, name, reason=missing[0])
    measure(graphs, CudaGraphTimer(case.device), seconds, lambda: False)
    return Row(text, name, median_interval(called.samples_us), median_interval(graphs[0].samples_us), *cupti(graphs[0]))


def cupti(arm: GraphArm) -> tuple[float, float]:
    """Summed times of a call's kernels, copies and fills in us, and how many kernels: of calls as captured, on their memory."""
    with torch.set_grad_enabled(arm.candidate.is_training):
        profile = breakdown(profiled(lambda: [graph.call.forward_backward(arm.candidate.layer) for graph in arm.graphs]))
    if not profile.kernels:
        raise ValueError("expected kernels, but CUPTI saw none")
    return profile.busy_us / len(arm.graphs), profile.kernels / len(arm.graphs)


def render(rows: Sequence[Row]) -> str:
    figures = ("as called, us", "graph replay, us", "kernels by CUPTI, us", "replay / CUPTI", "kernels")
    note = "Medians, and CUPTI's mean, with copies and fills. Over 1: time between a graph's kernels. Under 1: kernels overlap."
    times = table(("case", "implementation", *figures), [_cells(row) for row in rows if not row.reason], figures)
    return document(["## One call", note, times, list_reasons(rows)])


def _cells(row: Row) -> list[str]:
    times = (row.called_us[0], row.replayed_us[0], row.cupti_us)
    return [row.case, row.name, *(significant(us, 4) for us in times), significant(times[1] / times[2]), f"{row.kernels:g}"]


PLAN = ReportPlan("clocks", "Three clocks on this machine", 1, {"calls": ReportPart(rows, render, 1.0, Row)}, ("calls",), 180.0)
main = partial(PLAN.main, __doc__)

if __name__ == "__main__":
    raise SystemExit(main())
