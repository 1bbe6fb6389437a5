"""EcoRNN's profile of one call: how often and how long the host launches, and what the device's time goes into.

Source: EcoRNN, arXiv 1805.08899: the default spends five times cuDNN's launch overhead; over 85 % of cuDNN's is in products.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.profiler import ProfilerActivity, profile

from pytest_ecornn.contract import MODES, Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import percent, significant
from pytest_ecornn.suites.published.common.candidates import call_of, prepare
from pytest_ecornn.suites.published.common.item_rows import measure_each, reason

Kind = Literal["product", "scan", "pointwise", "other"]

# Products first: the names of some hold their epilogue's, which may be elementwise.
_PRODUCT = re.compile(r"gemm|gemv|gemk|nvjet|cutlass|xmma|split_?k", re.IGNORECASE)
_SCAN = re.compile(r"scan", re.IGNORECASE)
_POINTWISE = re.compile(r"element_?wise|pointwise|\bstep_(forward|backward)\b|lstm_cell|gru_cell", re.IGNORECASE)
_SUM_OF_PARTS = re.compile(r"split_?k_?reduce", re.IGNORECASE)
IMPLEMENTATIONS = ("sequential", "cudnn", "transposed_gpu")
PAPER_COLUMN = "paper (Titan Xp, CUDA 8, cuDNN 6)"
PAPER = {"sequential": "5x cuDNN's launch overhead", "cudnn": "over 85 % in products"}
CASE = Case(cell="lstm", layers=2, batch=32, hidden_size=650, steps=35, device="cuda")
_LAUNCH = re.compile(r"cu(da)?(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)")
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def kind_of(kernel: str) -> Kind:
    """Returns the kind of a kernel of cuBLAS, cuDNN, torch or this project; a sum of a product's split parts is a product."""
    if _PRODUCT.search(kernel):
        return "product"
    if _SCAN.search(kernel):
        return "scan"
    return "pointwise" if _POINTWISE.search(kernel) else "other"


def is_main_product(kernel: str) -> bool:
    """A product, but not the sum over its split parts."""
    return kind_of(kernel) == "product" and not _SUM_OF_PARTS.search(kernel)


@dataclass(frozen=True)
class Breakdown:
    """One call: launches by the host, kernels on the device, and times, which overlap where streams do."""

    launches: int
    launch_us: float
    kernels: int
    product_us: float
    pointwise_us: float
    other_us: float
    gaps_us: float
    scan_us: float = 0.0

    @property
    def busy_us(self) -> float:
        """Summed times of all kernels, copies and fills, in microseconds."""
        return self.product_us + self.scan_us + self.pointwise_us + self.other_us

    @property
    def product_share(self) -> float:
        return self.product_us / self.busy_us if self.busy_us else 0.0


@dataclass(frozen=True)
class Row:
    """One call of an implementation. found: None where there is only a reason."""

    mode: str
    name: str
    found: Breakdown | None = None
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.mode}, {self.name}"


def measure(deadline: float) -> Iterator[Row]:
    """A row for each mode and implementation; of what begins after `deadline` (of time.monotonic) only the reason."""
    items = product(reversed(MODES), IMPLEMENTATIONS)
    return measure_each(items, deadline, lambda item: _row(*item), lambda item, why: Row(*item, reason=why))


def _row(mode: str, name: str) -> Row:
    if isinstance(candidate := prepare(replace(CASE, mode=mode), name), str):
        return Row(mode, name, reason=candidate)
    with torch.set_grad_enabled(candidate.case.training):
        return Row(mode, name, *try_breakdown(call_of(candidate)))


def try_breakdown(call: Callable[[], Any]) -> tuple[Breakdown | None, str]:
    """The breakdown of a call, or why it was not profiled."""
    try:
        return breakdown(profiled(call)), ""
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        return None, f"not profiled: {reason(error)}"


def profiled(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """The events of one call, as in a trace for Chrome. The first profile of a process also measures its own set-up."""
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.cuda.synchronize()
            call()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(errors="replace"), strict=False)["traceEvents"]
    return events


def breakdown(events: Iterable[Mapping[str, Any]]) -> Breakdown:
    """Counts and times of the events of a trace for Chrome, in us."""
    events = [event for event in events if event.get("ph") == "X"]
    launches = _outermost(
        event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver") and _LAUNCH.match(event["name"])
    )
    work = [event for event in events if event.get("cat") in _DEVICE_WORK]
    time_us = dict.fromkeys(get_args(Kind), 0.0)
    for event in work:
        time_us[kind_of(event["name"]) if event["cat"] == "kernel" else "other"] += float(event["dur"])
    return Breakdown(
        launches=len(launches),
        launch_us=sum(float(event["dur"]) for event in launches),
        kernels=sum(event["cat"] == "kernel" for event in work),
        product_us=time_us["product"],
        pointwise_us=time_us["pointwise"],
        other_us=time_us["other"],
        scan_us=time_us["scan"],
        gaps_us=_gaps_us((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in work),
    )


def _outermost(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without those within another on the same thread: the runtime's launch calls the driver's."""
    outermost: list[Mapping[str, Any]] = []
    ends: dict[Any, float] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= ends.get(event.get("tid"), float("-inf")):
            outermost.append(event)
            ends[event.get("tid")] = event["ts"] + event["dur"]
    return outermost


def _gaps_us(intervals: Iterable[tuple[float, float]]) -> float:
    """How long nothing ran between the first start and the last end."""
    gaps, reached = 0.0, None
    for start, end in sorted(intervals):
        gaps += max(0.0, start - (start if reached is None else reached))
        reached = end if reached is None else max(reached, end)
    return gaps


def render(rows: Sequence[Row]) -> str:
    figures = (
        "launches", "launching, us", "over cudnn's", "kernels", "products, us", "pointwise, us", "other, us", "gaps, us",
        "products' share",
    )  # fmt: skip
    header = ("call", "implementation", *figures, PAPER_COLUMN)
    of_cudnn = {row.mode: row.found for row in rows if row.name == "cudnn"}
    lines = [[row.mode, row.name, *_figures(row, of_cudnn.get(row.mode)), PAPER.get(row.name, "-")] for row in rows]
    reasons = "\n".join(f"- {row.name}, {row.mode}: {escape(row.reason)}" for row in rows if row.found is None)
    sizes = f"LSTM of {CASE.layers} layers, batch {CASE.batch}, hidden size {CASE.hidden_size}, {CASE.steps} steps, float32."
    note = (
        "From one profiled call; the profiler itself lengthens every launch and gap. A launch is a call of the runtime or the "
        "driver that launches a kernel or a graph, not a copy; times on the device are sums over kernels, which overlap where "
        "streams do; gaps are when nothing ran."
    )
    return document(["## Launches and kernels of one call", sizes, table(header, lines, figures), note, reasons])


def _figures(row: Row, cudnn: Breakdown | None) -> list[str]:
    if (call := row.found) is None:
        return ["-"] * 9
    times = map(partial(significant, digits=4), (call.product_us, call.pointwise_us, call.other_us, call.gaps_us))
    over = significant(call.launch_us / cudnn.launch_us) if cudnn and cudnn.launch_us else "-"
    return [str(call.launches), significant(call.launch_us), over, str(call.kernels), *times, percent(call.product_share)]
