"""scan_gpu beside other people's scans: a whole layer after its input product, forward and backward, time and memory.

A way is scan_gpu, or a composition around another's scan, which makes the gates by torch; it is there eager and compiled by
torch.compile, in the layout in which its package wants it: [B, T, D], as the input product makes it, or [B, C, T]. All take
turns in one run, as called and replayed as CUDA graphs, each on the same values, and each is judged beforehand on a sample of
channels. There is a table for each shape, and one of the bars, which are of the best peer at each shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import ceil
from statistics import median
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.measurement import clocks
from pytest_ecornn.measurement.alternating import Arm, measure_interleaved
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import relative_error, significant, size
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.item_rows import (
    NOT_REACHED,
    ItemRow,
    Unavailable,
    import_optional,
    measure_each,
    reason,
)
from pytest_ecornn.suites.published.common.report_rows import CALLED, REPLAYED, TIMING_MODES
from pytest_ecornn.suites.published.scan_kernel_parts.scan_bandwidth import ScanShape
from pytest_ecornn.suites.published.scan_kernel_parts.scan_judge import LongScanVerifier, sampled
from pytest_ecornn.system import memory
from pytest_ecornn.system.graphs import GraphCapture

OURS = "scan_gpu"
BTD, BCT = "B,T,D", "B,C,T"
SLOW = ("fused_recurrent",)
# A package's adapter, and its parts (torch's before, the scan, torch's after) for each layout.
PEERS = (
    ("accelerated-scan", "peers._accelerated_scan", {BTD: "BTD", BCT: "BCT"}),
    ("flash-linear-attention", "peers._flash_linear_attention", {BTD: "BTD"}),
)
DTYPES = ("float32", "bfloat16")
_SAMPLE = 32  # channels of all sequences, by which a way is judged
_LONGEST_JUDGED = 4096  # steps; beyond, a plain loop and its gradients take long, and there is an error without a verdict
_DECLARED = Declared("float32", gate_gradients="storage", saved_gates="storage")
BARS = {BTD: MinTarget(2.5), BCT: MinTarget(1.6)}
MEAN_BAR = MinTarget(2.0)  # of layout BCT
MEMORY_BAR = MinTarget(2.0)  # the thriftiest peer's peak over scan_gpu's
_BLOCK_US = 30e3  # the first calls after another way's find its code in the host's caches, and take up to twice as long

Call = Callable[[Tensor], Tensor]
Values = Mapping[str, tuple[Tensor, Tensor]]  # by layout the pre-activations and the output's gradient
Samples = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # by way its own times and scan_gpu's beside them, in us


@dataclass(frozen=True)
class Variant:
    """`call` makes states, laid out as x, of pre-activations. reason: why it cannot, where it is known without a call.

    overwriting_call: one that may write over its pre-activations when it needs them no more, where it has such a form.
    """

    name: str
    layout: str
    call: Call | None = None
    is_compiled: bool = False
    reason: str = ""
    overwriting_call: Call | None = None


def ours(cell: str) -> Variant:
    try:
        scan = import_optional("_scan_gpu_op", "scan")
    except Unavailable as absent:
        return Variant(OURS, BTD, reason=str(absent))

    def call(x: Tensor, overwrites_x: bool = False) -> Tensor:
        output: Tensor = scan(x, None, None, None, None, cell, True, False, overwrites_x)[0]
        return output

    return Variant(OURS, BTD, call, overwriting_call=partial(call, overwrites_x=True))


def peers(cell: str) -> Iterator[Variant]:
    """Eager ones first: a compilation takes seconds. SLOW kernels, several times as slow as the others, are eager only."""
    for is_compiled in (False, True):
        for package, module, parts in PEERS:
            yield from _of(package, module, parts, cell, is_compiled)


def _of(package: str, module: str, parts: dict[str, str], cell: str, is_compiled: bool) -> Iterator[Variant]:
    for layout, name in parts.items():
        try:
            run, kernels = import_optional(module, name), import_optional(module, "KERNELS")
        except Unavailable as absent:
            if not is_compiled:
                yield Variant(f"{package}, {layout}", layout, reason=str(absent))
            continue
        for kernel in kernels:
            if not is_compiled:
                yield Variant(f"{package} {kernel}, {layout}", layout, _bound(run, cell, kernel))
            elif kernel not in SLOW:
                call = _bound(run.compiled(), cell, kernel)  # compiled at the first call
                yield Variant(f"{package} {kernel}, {layout}, compiled", layout, call, is_compiled=True)


def _bound(run: Callable[..., Any], cell: str, kernel: str) -> Call:
    def call(x: Tensor) -> Tensor:
        found: Tensor = run(x, None, cell, kernel, None)
        return found

    return call


class Shape(ScanShape):
    def __str__(self) -> str:
        return f"{self.cell}, {self.sizes}"


@dataclass(frozen=True)
class VariantResult:
    """Figures of one way. Times and ratios to scan_gpu's: by CALLED and REPLAYED. is_right: None where not judged.

    host_us: until a call returns. peak_bytes: with pre-activations of the call's own.
    """

    layout: str
    reason: str = ""
    error: float = 0.0
    is_right: bool | None = None
    peak_bytes: int | None = None
    time_us: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    over_ours: dict[str, Ratio] = field(default_factory=dict)
    not_replayed: str = ""
    host_us: float | None = None


@dataclass(frozen=True)
class Row(ItemRow):
    """One shape; figures by way, scan_gpu's first."""

    shape: Shape
    figures: dict[str, VariantResult]


def shapes() -> list[Shape]:
    """The longest last."""
    sizes = ((8, 4096, 1536), (8, 1024, 1536), (64, 2048, 1024))
    found = [Shape("mingru", *size, dtype) for size in sizes for dtype in DTYPES]
    found += [Shape("minlstm", *sizes[0], dtype) for dtype in DTYPES]
    return found + [Shape("mingru", 8, 65_536, 1536, dtype) for dtype in DTYPES]


def measure(deadline: float) -> Iterator[Row]:
    """A row for each shape; of what begins or is compiled after `deadline` (of time.monotonic) only the reason."""
    items = ((shape, [ours(shape.cell), *peers(shape.cell)]) for shape in shapes())

    def without(item: tuple[Shape, Sequence[Variant]], why: str) -> Row:
        return Row(item[0], {way.name: VariantResult(way.layout, reason=why) for way in item[1]})

    return measure_each(items, deadline, lambda item: _row(*item, deadline), without)


class VariantCall:
    """One way's call with gradients, on values that all ways share; judged, then timed."""

    def __init__(self, way: Variant, call: Call, values: Values):
        self.way, self._call = way, call
        x, self._d_output = values[way.layout]
        self._x = x.detach().requires_grad_()

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The states and the gradient of the pre-activations."""
        return self._with_gradient(lambda: self._call(self._x))

    def with_product(self) -> tuple[Tensor, Tensor]:
        """Returns both for a copy of x, which stands for an input product's result: its last user may overwrite it."""
        return self._with_gradient(lambda: (self.way.overwriting_call or self._call)(self._x.clone()))

    def _with_gradient(self, made: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            output = made()
        (gradient,) = torch.autograd.grad(output, self._x, self._d_output)
        return output.detach(), gradient

    def results(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the states and the gradient of either call, as [B, T, ..]."""
        for call in (self, self.with_product):
            output, gradient = call()
            yield (output.transpose(1, 2), gradient.transpose(1, 2)) if self.way.layout == BCT else (output, gradient)


class Sample:
    """Some channels of the values that the ways share, and the judgement by them."""

    def __init__(self, shape: Shape, x: Tensor, d_output: Tensor):
        self._shape, self._device = shape, str(x.device)
        self._channels = torch.linspace(0, shape.hidden - 1, min(_SAMPLE, shape.hidden), device=x.device).long()
        case = Case(
            cell=shape.cell, steps=shape.steps, batch=shape.batch, hidden_size=len(self._channels), batch_first=True,
            projected=True, dtype=shape.dtype, mode="training", device=x.device.type,
        )  # fmt: skip
        loss = self._of(d_output), x.new_zeros(1, shape.batch, len(self._channels))
        problem = replace(contents.problem(case), x=self._of(x), output_gradients=loss)
        self._judge = LongScanVerifier(problem, case.device, _DECLARED)

    def _of(self, values: Tensor) -> Tensor:
        return sampled(values, self._channels, self._shape.hidden).contiguous()

    def figures(self, step: VariantCall) -> VariantResult:
        found = [self._judged(*map(self._of, results)) for results in step.results()]
        verdicts = [is_right for _, is_right in found if is_right is not None]
        return VariantResult(
            step.way.layout, error=max(error for error, _ in found), is_right=all(verdicts) if verdicts else None
        )

    def _judged(self, output: Tensor, gradient: Tensor) -> tuple[float, bool | None]:
        tensors: dict[str, Tensor | None] = {"output": output, "final h": output[None, :, -1], "grad x": gradient}
        error = self._judge.largest_error(tensors)
        if self._shape.steps > _LONGEST_JUDGED:
            return error, None
        return error, all(one.status == "passed" for one in self._judge.compare(tensors, self._device))


def _row(shape: Shape, ways: Sequence[Variant], deadline: float, device: str = "cuda") -> Row:
    torch._dynamo.reset()
    dtype, gates = getattr(torch, shape.dtype), shape.gates
    x = torch.randn(shape.batch, shape.steps, gates * shape.hidden, device=device, dtype=dtype)
    d_output = torch.randn(shape.batch, shape.steps, shape.hidden, device=device, dtype=dtype)
    values = {BTD: (x, d_output)}
    if any(way.layout == BCT for way in ways):
        values[BCT] = x.transpose(1, 2).contiguous(), d_output.transpose(1, 2).contiguous()
    sample = Sample(shape, x, d_output)
    steps: dict[str, VariantCall] = {}
    figures: dict[str, VariantResult] = {}
    for way in ways:
        if way.is_compiled and time.monotonic() >= deadline:
            figures[way.name] = VariantResult(way.layout, reason=NOT_REACHED)
            continue
        figures[way.name], step = _tried(way, values, sample, device)
        if step is not None:
            steps[way.name] = step
    samples = called(steps)
    until_return = host(steps, samples, device)
    graphs, missing = replayed(steps, device)
    found = {name: replace(one, host_us=until_return.get(name)) for name, one in figures.items()}
    return Row(shape, {name: _with_times(name, one, samples, graphs, missing) for name, one in found.items()})


def _tried(way: Variant, values: Values, sample: Sample, device: str) -> tuple[VariantResult, VariantCall | None]:
    """Compiles and judges it, and takes its memory. None where there is nothing to time."""
    if way.call is None:
        return VariantResult(way.layout, reason=way.reason), None
    try:
        step = VariantCall(way, way.call, values)
        figures = sample.figures(step)
        return replace(figures, peak_bytes=memory.peak_bytes(step.with_product, device)), step
    except Exception as error:  # one way's failure must not end the others' measurement
        return VariantResult(way.layout, reason=reason(error)), None


def called(steps: Mapping[str, VariantCall]) -> Samples:
    arms = {name: Arm([step], block_us=_BLOCK_US) for name, step in steps.items()}
    measure_interleaved(list(arms.values()), MIN_PAIRS)
    return {name: (arm.samples_us, arms[OURS].samples_us if OURS in arms else ()) for name, arm in arms.items()}


def host(steps: Mapping[str, VariantCall], as_called: Samples, device: str) -> dict[str, float | None]:
    """How long a call takes to return, by way; None on a CPU. The ways take turns, in blocks as long as those of `called`."""
    clock = clocks.for_device(device)
    counts = {name: ceil(_BLOCK_US / median(as_called[name][0])) for name in steps}
    found = [{name: clock.host_us([step] * counts[name]) for name, step in steps.items()} for _ in range(MIN_PAIRS)]
    taken = {name: [one for times in found if (one := times[name]) is not None] for name in steps}
    return {name: median(times) if times else None for name, times in taken.items()}


def replayed(steps: Mapping[str, VariantCall], device: str) -> tuple[Samples, dict[str, str]]:
    """Pair by pair, as a graph keeps all memory that its call takes; and why some have no graph."""
    found: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    missing: dict[str, str] = {}
    own = _captured(steps[OURS], device) if OURS in steps else "there is no scan_gpu to compare with"
    for name, step in steps.items():
        graph = own if name == OURS else _captured(step, device) if not isinstance(own, str) else own
        if isinstance(own, str) or isinstance(graph, str):
            missing[name] = str(graph)
            continue
        arms = [Arm([own]), Arm([graph])]
        measure_interleaved(arms[: 1 if name == OURS else 2], MIN_PAIRS)
        found[name] = arms[-1].samples_us or arms[0].samples_us, arms[0].samples_us
        del graph, arms
        torch.cuda.empty_cache()
    return found, missing


def _captured(step: Callable[[], Any], device: str) -> Callable[[], Any] | str:
    try:
        capturing = GraphCapture(device)
        capturing.warm_up(step)
        graph, result = capturing.capture(step)
        return partial(_replay, graph, result)
    except Exception as error:
        return reason(error)


def _replay(graph: torch.cuda.CUDAGraph, result: object) -> None:
    """result: kept, as the graph writes into it."""
    graph.replay()


def _with_times(
    name: str, figures: VariantResult, as_called: Samples, graphs: Samples, missing: Mapping[str, str]
) -> VariantResult:
    samples = {way: of_way[name] for way, of_way in ((CALLED, as_called), (REPLAYED, graphs)) if name in of_way}
    times = {way: median_interval(own) for way, (own, _) in samples.items()}
    over = {way: paired_ratio(own, beside) for way, (own, beside) in samples.items() if beside and name != OURS}
    return replace(figures, time_us=times, over_ours=over, not_replayed=missing.get(name, ""))


def render(rows: Sequence[Row]) -> str:
    parts = [
        "## Beside other people's scans",
        "A layer after its input product, forward and backward (the gradient of the pre-activations), B x T x D. Peers make "
        "the gates by torch, eager or compiled by torch.compile, and call their package's scan in the layout that it wants: as "
        "the input product writes it (B,T,D), or transposed (B,C,T), which is given to them so. Times in us, a peer's over "
        f"scan_gpu's with its interval (99 %, {MIN_PAIRS} pairs of blocks of one run): over 1 scan_gpu is faster. Host: until "
        "a call returns; a time as called that is hardly more is the host's. Peak: the most memory of another call, whose "
        "pre-activations are its own, as an input product's are, to be freed or written over when they are needed no more; "
        "less than those and the output nobody can hold. Error: the largest of output and gradient of both calls in a sample "
        "of channels against float64; bold where it is over the harness's limit, and such a peer counts for no bar. Beyond "
        "4,096 steps there is an error without a verdict.",
    ]
    for row in rows:
        parts += [f"### {escape(row.label)}", _table(row)]
    return document([*parts, _bars(rows)])


def _table(row: Row) -> str:
    if reason := _common_reason(row):
        return f"Nothing measured: {escape(reason)}."
    figures = (
        "as called, us", "called, over scan_gpu's", "host, us", "replayed, us", "replayed, over scan_gpu's", "peak",
        "peak over scan_gpu's", "peak over the least", "error",
    )  # fmt: skip
    lines = [[escape(name), *_cells(row, one)] for name, one in row.figures.items()]
    reasons = [
        f"- {escape(name)}: {escape(why)}" for name, one in row.figures.items() if (why := one.reason or one.not_replayed)
    ]
    return document([table(("way", *figures), lines, figures), "\n".join(reasons)]).strip()


def _common_reason(row: Row) -> str:
    """Returns the one reason why no way has been measured; empty where there is none or several."""
    reasons = {one.reason for one in row.figures.values()}
    return next(iter(reasons)) if len(reasons) == 1 else ""


def _least_bytes(row: Row) -> int:
    """Returns the bytes of the pre-activations and the output; the gradient may overwrite the pre-activations."""
    return row.shape.bytes_of(row.shape.gates + 1)


def _cells(row: Row, figures: VariantResult) -> Iterator[str]:
    yield from _times(figures, CALLED)
    yield "-" if figures.host_us is None else significant(figures.host_us)
    yield from _times(figures, REPLAYED)
    yield "-" if figures.peak_bytes is None else size(figures.peak_bytes)
    own = row.figures[OURS].peak_bytes
    yield significant(figures.peak_bytes / own) if own and figures.peak_bytes and figures is not row.figures[OURS] else "-"
    yield "-" if figures.peak_bytes is None else significant(figures.peak_bytes / _least_bytes(row))
    if figures.reason:
        yield "-"
    else:
        error = relative_error(figures.error)
        yield f"**{error}**" if figures.is_right is False else error


def _times(figures: VariantResult, way: str) -> Iterator[str]:
    yield significant(figures.time_us[way][0], 4) if way in figures.time_us else "-"
    yield format_ratio(figures.over_ours.get(way))


def _bars(rows: Sequence[Row]) -> str:
    """The lowest over all shapes of each figure, and the geometric mean that a bar is of."""
    lines: list[list[str]] = []
    for (layout, bar), way in product(BARS.items(), TIMING_MODES):
        found = [(best, row) for row in rows if (best := best_ratio(row, layout, way))]
        lines += _lowest(f"best {layout} peer's time over scan_gpu's, {way}", bar, found)
        if layout == BCT and found:
            mean, label = mean_ratio([ratio for ratio, _ in found]), f"the same, geometric mean of {len(found)}"
            lines.append([label, format_ratio(mean), "-", str(MEAN_BAR), MEAN_BAR.is_met(mean)])
    peaks = [(Ratio(peak, peak, peak), row) for row in rows if (peak := memory_ratio(row))]
    lines += _lowest("thriftiest peer's peak memory over scan_gpu's", MEMORY_BAR, peaks, lambda one: significant(one.ratio))
    return document(["### Bars", table(("lowest of", "measured", "where", "bar", "holds"), lines)]).strip() if lines else ""


def _lowest(
    label: str, bar: MinTarget, found: Sequence[tuple[Ratio, Row]], text: Callable[[Ratio], str] = format_ratio
) -> Iterator[list[str]]:
    if found:
        ratio, row = min(found, key=lambda one: one[0].ratio)
        yield [label, text(ratio), escape(row.label), str(bar), bar.is_met(ratio)]


def best_ratio(row: Row, layout: str, way: str) -> Ratio | None:
    """Returns the time of a layout's fastest peer over scan_gpu's; None where either has none that counts."""
    peers = [one for one in _counted(row) if one.layout == layout and way in one.over_ours]
    return min(peers, key=lambda one: one.time_us[way][0]).over_ours[way] if peers else None


def memory_ratio(row: Row) -> float | None:
    """The least peak of a peer, of any layout, over scan_gpu's."""
    peaks, own = [one.peak_bytes for one in _counted(row) if one.peak_bytes], row.figures[OURS].peak_bytes
    return min(peaks) / own if peaks and own else None


def _counted(row: Row) -> list[VariantResult]:
    """Peers' that are not known to be wrong; none where scan_gpu itself is."""
    correct = {name: one for name, one in row.figures.items() if not one.reason and one.is_right is not False}
    return [one for name, one in correct.items() if name != OURS] if OURS in correct else []
