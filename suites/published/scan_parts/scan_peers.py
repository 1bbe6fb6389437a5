"""scan_gpu beside other people's scans: a whole layer after its input product, forward and backward, time and memory.

All take turns in one run, as called and replayed as CUDA graphs, each on the same values in the layout that it wants, and each
is judged beforehand on a sample of channels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, measure_each, reason
from pytest_ecornn.suites.published.scan_parts.peer_times import Samples, called, host, replayed
from pytest_ecornn.suites.published.scan_parts.peer_ways import BCT, BTD, OURS, Call, Variant, ours, peers
from pytest_ecornn.suites.published.scan_parts.scan_judge import LongScanVerifier, sampled
from pytest_ecornn.suites.published.scan_parts.scan_shape import ScanShape
from pytest_ecornn.system import memory

DTYPES = ("float32", "bfloat16")
CALLED, REPLAYED = "as called", "graph replay"
_SAMPLE = 32  # channels of all sequences, by which a way is judged
_LONGEST_JUDGED = 4096  # steps; beyond, a plain loop and its gradients take long, and there is an error without a verdict
_DECLARED = Declared("float32", gate_gradients="storage", saved_gates="storage")


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
class Row:
    """One shape; figures by way, scan_gpu's first."""

    shape: Shape
    figures: dict[str, VariantResult]

    @property
    def label(self) -> str:
        return str(self.shape)


def shapes() -> list[Shape]:
    """The longest last."""
    sizes = ((8, 4096, 1536), (8, 1024, 1536), (64, 2048, 1024))
    found = [Shape("mingru", *size, dtype) for size in sizes for dtype in DTYPES]
    found += [Shape("minlstm", *sizes[0], dtype) for dtype in DTYPES]
    return found + [Shape("mingru", 8, 65_536, 1536, dtype) for dtype in DTYPES]


def measure(deadline: float) -> Iterator[Row]:
    """A row for each shape; of what begins or is compiled after `deadline` (of time.monotonic) only the reason."""
    items = ((shape, [ours(shape.cell), *peers(shape.cell)]) for shape in shapes())
    return measure_each(items, deadline, lambda one: _row(*one, deadline), lambda one, why: _without(*one, why))


def _without(shape: Shape, ways: Sequence[Variant], why: str) -> Row:
    return Row(shape, {way.name: VariantResult(way.layout, reason=why) for way in ways})


Values = Mapping[str, tuple[Tensor, Tensor]]  # by layout the pre-activations and the output's gradient


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
            yield self._as_btd(*call())

    def _as_btd(self, output: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return (output.transpose(1, 2), gradient.transpose(1, 2)) if self.way.layout == BCT else (output, gradient)


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
    found = {name: _with_times(name, one, samples, graphs, missing) for name, one in figures.items()}
    return Row(shape, {name: replace(one, host_us=until_return.get(name)) for name, one in found.items()})


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


def _with_times(
    name: str, figures: VariantResult, as_called: Samples, graphs: Samples, missing: Mapping[str, str]
) -> VariantResult:
    samples = {way: of_way[name] for way, of_way in ((CALLED, as_called), (REPLAYED, graphs)) if name in of_way}
    times = {way: median_interval(own) for way, (own, _) in samples.items()}
    over = {way: paired_ratio(own, beside) for way, (own, beside) in samples.items() if beside and name != OURS}
    return replace(figures, time_us=times, over_ours=over, not_replayed=missing.get(name, ""))
