"""scan_gpu beside other people's scans: a whole layer after its input product, forward and backward, time and memory.

A variant is scan_gpu, or a composition around another's scan, which makes the gates by torch; it is there eager and compiled by
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
from pytest_ecornn.suites.published.common import item_rows
from pytest_ecornn.suites.published.common.bars import MinTarget, Times, format_ratio, mean_ratio
from pytest_ecornn.suites.published.common.item_rows import ItemRow, attempt_each, import_optional, measure_each
from pytest_ecornn.suites.published.common.report_rows import CALLED, REPLAYED, TIMING_MODES
from pytest_ecornn.suites.published.scan_kernel_parts.scan_bandwidth import ScanShape
from pytest_ecornn.suites.published.scan_kernel_parts.scan_judge import LongScanVerifier, sample_channels, sampled
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
_SAMPLE = 32  # channels of all sequences, by which a variant is judged
_LONGEST_JUDGED = 4096  # steps; beyond, a plain loop and its gradients take long, and there is an error without a verdict
_DECLARED = Declared("float32", gate_gradients="storage", saved_gates="storage")
BARS = {BTD: MinTarget(2.5), BCT: MinTarget(1.6)}
MEAN_BAR = MinTarget(2.0)  # of layout BCT
MEMORY_BAR = MinTarget(2.0)  # the thriftiest peer's peak over scan_gpu's
_BLOCK_US = 30e3  # the first calls after another variant's find its code in the host's caches, and take up to twice as long

Call = Callable[[Tensor], Tensor]
Values = Mapping[str, tuple[Tensor, Tensor]]  # by layout the pre-activations and the output's gradient
Samples = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # by variant its own times and scan_gpu's beside them, in us


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
    except item_rows.Unavailable as absent:
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
        except item_rows.Unavailable as absent:
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
    return lambda x: run(x, None, cell, kernel, None)


class Shape(ScanShape):
    def __str__(self) -> str:
        return f"{self.cell}, {self.sizes}"


@dataclass(frozen=True)
class VariantResult:
    """Figures of one variant. Times and ratios to scan_gpu's: by CALLED and REPLAYED. is_right: None where not judged.

    host_us: until a call returns. peak_bytes: with pre-activations of the call's own.
    """

    layout: str
    reason: str = ""
    error: float = 0.0
    is_right: bool | None = None
    peak_bytes: int | None = None
    time_us: dict[str, Times] = field(default_factory=dict)
    over_ours: dict[str, Ratio] = field(default_factory=dict)
    not_replayed: str = ""
    host_us: float | None = None


@dataclass(frozen=True)
class Row(ItemRow):
    """One shape; figures by variant, scan_gpu's first."""

    shape: Shape
    figures: dict[str, VariantResult]


def shapes() -> list[Shape]:
    """The longest last."""
    sizes = ((8, 4096, 1536), (8, 1024, 1536), (64, 2048, 1024))
    kinds = [*(("mingru", *size) for size in sizes), ("minlstm", *sizes[0]), ("mingru", 8, 65_536, 1536)]
    return [Shape(*kind, dtype) for kind, dtype in product(kinds, DTYPES)]


def measure(deadline: float) -> Iterator[Row]:
    """A row for each shape; of what begins or is compiled after `deadline` (of time.monotonic) only the reason."""
    items = ((shape, [ours(shape.cell), *peers(shape.cell)]) for shape in shapes())

    def without(item: tuple[Shape, Sequence[Variant]], why: str) -> Row:
        shape, variants = item
        return Row(shape, {variant.name: VariantResult(variant.layout, reason=why) for variant in variants})

    return measure_each(items, deadline, lambda item: _row(*item, deadline), without)


class VariantCall:
    """One variant's call with gradients, on values that all variants share; judged, then timed."""

    def __init__(self, variant: Variant, call: Call, values: Values):
        self.variant, self._call = variant, call
        x, self._d_output = values[variant.layout]
        self._x = x.detach().requires_grad_()

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The states and the gradient of the pre-activations."""
        return self._with_gradient(lambda: self._call(self._x))

    def with_product(self) -> tuple[Tensor, Tensor]:
        """Returns both for a copy of x, which stands for an input product's result: its last user may overwrite it."""
        return self._with_gradient(lambda: (self.variant.overwriting_call or self._call)(self._x.clone()))

    def _with_gradient(self, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            output = forward()
        (gradient,) = torch.autograd.grad(output, self._x, self._d_output)
        return output.detach(), gradient

    def results(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the states and the gradient of either call, as [B, T, ..]."""
        for call in (self, self.with_product):
            output, gradient = call()
            yield (output.transpose(1, 2), gradient.transpose(1, 2)) if self.variant.layout == BCT else (output, gradient)


class Sample:
    """Some channels of the values that the variants share, and the judgement by them."""

    def __init__(self, shape: Shape, x: Tensor, d_output: Tensor):
        self._shape, self._device = shape, str(x.device)
        self._channels = sample_channels(shape.hidden, _SAMPLE, x.device)
        case = Case(
            cell=shape.cell, steps=shape.steps, batch=shape.batch, hidden_size=len(self._channels), batch_first=True,
            projected=True, dtype=shape.dtype, mode="training", device=x.device.type,
        )  # fmt: skip
        loss = self._of(d_output), x.new_zeros(1, shape.batch, len(self._channels))
        problem = replace(contents.problem(case), x=self._of(x), output_gradients=loss)
        self._verifier = LongScanVerifier(problem, case.device, _DECLARED)

    def _of(self, values: Tensor) -> Tensor:
        return sampled(values, self._channels, self._shape.hidden).contiguous()

    def judge(self, call: VariantCall) -> VariantResult:
        """The error of both calls' results, and whether they are right."""
        errors, verdicts = zip(*(self._judge(*map(self._of, results)) for results in call.results()), strict=True)
        return VariantResult(call.variant.layout, error=max(errors), is_right=None if None in verdicts else all(verdicts))

    def _judge(self, output: Tensor, gradient: Tensor) -> tuple[float, bool | None]:
        tensors: dict[str, Tensor | None] = {"output": output, "final h": output[None, :, -1], "grad x": gradient}
        error = self._verifier.largest_error(tensors)
        if self._shape.steps > _LONGEST_JUDGED:
            return error, None
        return error, all(check.status == "passed" for check in self._verifier.compare(tensors, self._device))


def _row(shape: Shape, variants: Sequence[Variant], deadline: float, device: str = "cuda") -> Row:
    torch._dynamo.reset()
    by_name, dtype = {variant.name: variant for variant in variants}, getattr(torch, shape.dtype)
    x = torch.randn(shape.batch, shape.steps, shape.gates * shape.hidden, device=device, dtype=dtype)
    d_output = torch.randn(shape.batch, shape.steps, shape.hidden, device=device, dtype=dtype)
    values = {BTD: (x, d_output)}
    if any(variant.layout == BCT for variant in variants):
        values[BCT] = x.transpose(1, 2).contiguous(), d_output.transpose(1, 2).contiguous()
    sample = Sample(shape, x, d_output)

    def judged(name: str) -> tuple[VariantCall, VariantResult]:
        """Compiles and judges it, and takes its memory. Raises Unavailable where there is nothing to time."""
        variant = by_name[name]
        if variant.is_compiled and time.monotonic() >= deadline:
            raise item_rows.Unavailable(item_rows.NOT_REACHED)
        if variant.call is None:
            raise item_rows.Unavailable(variant.reason)
        call = VariantCall(variant, variant.call, values)
        return call, replace(sample.judge(call), peak_bytes=memory.peak_bytes(call.with_product, device))

    results, reasons = attempt_each(by_name, judged)
    calls = {name: call for name, (call, _) in results.items()}
    samples = called(calls)
    until_return = host(calls, samples, device)
    graphs, missing = replayed(calls, device)
    figures = {name: VariantResult(by_name[name].layout, reason=why) for name, why in reasons.items()}
    for name, (_, result) in results.items():
        result = replace(result, host_us=until_return[name], not_replayed=missing.get(name, ""))
        figures[name] = _with_times(result, {CALLED: samples[name], **({REPLAYED: graphs[name]} if name in graphs else {})})
    return Row(shape, {name: figures[name] for name in by_name})


def called(calls: Mapping[str, VariantCall]) -> Samples:
    arms = {name: Arm([call], block_us=_BLOCK_US) for name, call in calls.items()}
    measure_interleaved(list(arms.values()), MIN_PAIRS)
    return {name: (arm.samples_us, arms[OURS].samples_us if OURS in arms else ()) for name, arm in arms.items()}


def host(calls: Mapping[str, VariantCall], as_called: Samples, device: str) -> dict[str, float | None]:
    """How long a call takes to return; None on a CPU. The variants take turns, in blocks as long as those of `called`."""
    clock = clocks.for_device(device)
    counts = {name: ceil(_BLOCK_US / median(as_called[name][0])) for name in calls}
    rounds = [{name: clock.host_us([call] * counts[name]) for name, call in calls.items()} for _ in range(MIN_PAIRS)]
    times_us = {name: [time_us for times in rounds if (time_us := times[name]) is not None] for name in calls}
    return {name: median(of_name) if of_name else None for name, of_name in times_us.items()}


def replayed(calls: Mapping[str, VariantCall], device: str) -> tuple[Samples, dict[str, str]]:
    """Pair by pair, as a graph keeps all memory that its call takes; and why some have no graph."""
    samples: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    missing: dict[str, str] = {}
    own = _captured(calls[OURS], device) if OURS in calls else "there is no scan_gpu to compare with"
    if isinstance(own, str):
        return samples, dict.fromkeys(calls, own)
    for name, call in calls.items():
        if isinstance(graph := own if name == OURS else _captured(call, device), str):
            missing[name] = graph
            continue
        arms = [Arm([own]), *([] if name == OURS else [Arm([graph])])]
        measure_interleaved(arms, MIN_PAIRS)
        samples[name] = arms[-1].samples_us, arms[0].samples_us
        del graph, arms
        torch.cuda.empty_cache()
    return samples, missing


def _captured(call: VariantCall, device: str) -> Callable[[], Any] | str:
    try:
        capture = GraphCapture(device)
        capture.warm_up(call)
        graph, result = capture.capture(call)
        return partial(_replay, graph, result)
    except Exception as error:
        return item_rows.reason(error)


def _replay(graph: torch.cuda.CUDAGraph, result: object) -> None:
    """result: kept, as the graph writes into it."""
    graph.replay()


def _with_times(result: VariantResult, samples: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> VariantResult:
    """samples: by timing mode the variant's own and scan_gpu's beside them, which are none or, of scan_gpu, the same."""
    times = {mode: median_interval(own) for mode, (own, _) in samples.items()}
    over = {mode: paired_ratio(own, beside) for mode, (own, beside) in samples.items() if beside and own is not beside}
    return replace(result, time_us=times, over_ours=over)


def render(rows: Sequence[Row]) -> str:
    text = (
        "A layer after its input product, forward and backward (the gradient of the pre-activations), B x T x D. Peers make "
        "the gates by torch, eager or compiled by torch.compile, and call their package's scan in the layout that it wants: as "
        "the input product writes it (B,T,D), or transposed (B,C,T), which is given to them so. Times in us, a peer's over "
        f"scan_gpu's with its interval (99 %, {MIN_PAIRS} pairs of blocks of one run): over 1 scan_gpu is faster. Host: until "
        "a call returns; a time as called that is hardly more is the host's. Peak: the most memory of another call, whose "
        "pre-activations are its own, as an input product's are, to be freed or written over when they are needed no more; "
        "less than those and the output nobody can hold. Error: the largest of output and gradient of both calls in a sample "
        "of channels against float64; bold where it is over the harness's limit, and such a peer counts for no bar. Beyond "
        "4,096 steps there is an error without a verdict."
    )
    tables = [part for row in rows for part in (f"### {escape(row.label)}", _table(row))]
    return document(["## Beside other people's scans", text, *tables, _bars(rows)])


def _table(row: Row) -> str:
    results = row.figures
    reason, *others = {result.reason for result in results.values()}
    if reason and not others:
        return f"Nothing measured: {escape(reason)}."
    figures = (
        "as called, us", "called, over scan_gpu's", "host, us", "replayed, us", "replayed, over scan_gpu's", "peak",
        "peak over scan_gpu's", "peak over the least", "error",
    )  # fmt: skip
    lines = [[escape(name), *_cells(row, result)] for name, result in results.items()]
    missing = {name: result.reason or result.not_replayed for name, result in results.items()}
    listed = "\n".join(f"- {escape(name)}: {escape(why)}" for name, why in missing.items() if why)
    return document([table(("way", *figures), lines, figures), listed]).strip()


def _cells(row: Row, result: VariantResult) -> Iterator[str]:
    yield from _times(result, CALLED)
    yield "-" if result.host_us is None else significant(result.host_us)
    yield from _times(result, REPLAYED)
    own, peak, error = row.figures[OURS], result.peak_bytes, relative_error(result.error)
    least = row.shape.bytes_of(row.shape.gates + 1)  # pre-activations and output; the gradient may overwrite the former
    yield "-" if peak is None else size(peak)
    yield significant(peak / own.peak_bytes) if own.peak_bytes and peak and result is not own else "-"
    yield "-" if peak is None else significant(peak / least)
    yield "-" if result.reason else f"**{error}**" if result.is_right is False else error


def _times(result: VariantResult, mode: str) -> Iterator[str]:
    yield significant(result.time_us[mode][0], 4) if mode in result.time_us else "-"
    yield format_ratio(result.over_ours.get(mode))


def _bars(rows: Sequence[Row]) -> str:
    """The lowest over all shapes of each figure, and the geometric mean that a bar is of."""
    lines: list[list[str]] = []
    for (layout, bar), mode in product(BARS.items(), TIMING_MODES):
        ratios = [(best, row) for row in rows if (best := best_ratio(row, layout, mode))]
        lines += _lowest(f"best {layout} peer's time over scan_gpu's, {mode}", bar, ratios)
        if layout == BCT and ratios:
            mean, *judged = MEAN_BAR.cells(mean_ratio([ratio for ratio, _ in ratios]))
            lines.append([f"the same, geometric mean of {len(ratios)}", mean, "-", *judged])
    peaks = [(Ratio(peak, peak, peak), row) for row in rows if (peak := memory_ratio(row))]
    lines += _lowest("thriftiest peer's peak memory over scan_gpu's", MEMORY_BAR, peaks, lambda peak: significant(peak.ratio))
    return document(["### Bars", table(("lowest of", "measured", "where", "bar", "holds"), lines)]).strip() if lines else ""


def _lowest(
    label: str, bar: MinTarget, ratios: Sequence[tuple[Ratio, Row]], text: Callable[[Ratio], str] = format_ratio
) -> Iterator[list[str]]:
    if ratios:
        ratio, row = min(ratios, key=lambda pair: pair[0].ratio)
        yield [label, text(ratio), escape(row.label), *bar.cells(ratio)[1:]]


def best_ratio(row: Row, layout: str, mode: str) -> Ratio | None:
    """Returns the time of a layout's fastest peer over scan_gpu's; None where either has none that counts."""
    peers = [result for result in _counted(row) if result.layout == layout and mode in result.over_ours]
    return min(peers, key=lambda result: result.time_us[mode][0]).over_ours[mode] if peers else None


def memory_ratio(row: Row) -> float | None:
    """The least peak of a peer, of any layout, over scan_gpu's."""
    peaks, own = [result.peak_bytes for result in _counted(row) if result.peak_bytes], row.figures[OURS].peak_bytes
    return min(peaks) / own if peaks and own else None


def _counted(row: Row) -> list[VariantResult]:
    """Peers' that are not known to be wrong; none where scan_gpu itself is."""
    correct = {name: result for name, result in row.figures.items() if not result.reason and result.is_right is not False}
    return [result for name, result in correct.items() if name != OURS] if OURS in correct else []
