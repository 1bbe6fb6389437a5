"""scan_gpu's share of a copy's bandwidth: a copy of as many bytes as the scan must move, in the same run, both as CUDA graphs.

The fewest that a scan can move: forward the G pre-activations in and the state out, G + 1 values an element and step; backward
those, the output's gradient, and G gradients out, 2 G + 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil
from statistics import median

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.measurement.alternating import Arm, Replay, measure_interleaved
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import relative_error, significant
from pytest_ecornn.results.statistics import Ratio, paired_ratio
from pytest_ecornn.suites.published.common.bars import MinTarget, format_ratio
from pytest_ecornn.suites.published.common.item_rows import ItemRow, import_optional, measure_each
from pytest_ecornn.suites.published.scan_kernel_parts.scan_judge import sample_channels, sampled, states

# Of a sample of channels, relative to the largest of the reference there; the harness's own verdict is elsewhere.
LIMITS = {"float32": 2.0**-16, "bfloat16": 2.0**-5}
_CACHES = 3.0  # how often the arrays of a way's graphs fill the L2, at the least
_PIECE_BYTES = 2**28  # that one copy takes: those of a GiB and more run a third slower
_ROUNDS = 20
_SAMPLE = 4  # channels of the last sequence
_LONG_SHARES = {(256, "float32"): 0.8, (64, "float32"): 0.6}  # bars of one sequence of the most steps, by H and type


@dataclass(frozen=True)
class ScanShape:
    """The sizes of a scan that a part measures."""

    cell: str
    batch: int
    steps: int
    hidden: int
    dtype: str

    @property
    def gates(self) -> int:
        return len(cells.get(self.cell).gates)

    @property
    def sizes(self) -> str:
        return f"{self.batch} x {self.steps:,} x {self.hidden:,}, {self.dtype}"

    def bytes_of(self, values: int) -> int:
        """Returns the bytes of arrays with `values` values for each sequence, channel and step."""
        return values * self.batch * self.steps * self.hidden * int(getattr(torch, self.dtype).itemsize)


@dataclass(frozen=True)
class Shape(ScanShape):
    """One scan. bar: the share that it has to reach, None where it is for information."""

    is_backward: bool
    bar: MinTarget | None

    @property
    def bytes(self) -> int:
        """Read or written, at the least."""
        return self.bytes_of(2 * self.gates + 2 if self.is_backward else self.gates + 1)

    def __str__(self) -> str:
        return f"{self.cell} {'backward' if self.is_backward else 'forward'}, {self.sizes}"


@dataclass(frozen=True)
class Row(ItemRow):
    """share: the copy's time over the scan's. error: of a sample. No figures where there is only a reason."""

    shape: Shape
    scan_us: float = 0.0
    copy_us: float = 0.0
    share: Ratio | None = None
    error: float = 0.0
    reason: str = ""


def shapes() -> list[Shape]:
    """The bars, those of the largest arrays last."""
    targets = {False: MinTarget(0.88), True: MinTarget(0.85)}
    small = [Shape("mingru", 8, 256, 1536, dtype, False, MinTarget(1 / 1.3)) for dtype in LIMITS]
    small += [Shape("mingru", 1, 65_536, *size, False, MinTarget(share)) for size, share in _LONG_SHARES.items()]
    largest = (("mingru", 8, 4096, 1536), ("mingru", 64, 2048, 1024), ("minlstm", 8, 4096, 1536), ("mingru", 8, 65_536, 1536))
    return small + [
        Shape(*sizes, dtype, backward, target if sizes[0] == "mingru" else None)
        for sizes, dtype, (backward, target) in product(largest, LIMITS, targets.items())
    ]


def measure(deadline: float, device: str = "cuda") -> Iterator[Row]:
    """A row for each shape; those begun after `deadline` (of time.monotonic) have only the reason."""
    return measure_each(shapes(), deadline, lambda shape: _row(shape, device), lambda shape, why: Row(shape, reason=why))


@torch.no_grad()
def _row(shape: Shape, device: str) -> Row:
    count = ceil(_CACHES * torch.cuda.get_device_properties(device).L2_cache_size / shape.bytes)
    scans = [Scan(shape, device, *_ops()) for _ in range(count)]
    arms = [Arm([Replay(scan.run) for scan in scans]), Arm([Replay(make_copy(shape.bytes, device)) for _ in range(count)])]
    measure_interleaved(arms, _ROUNDS)
    error = max(scan.error() for scan in scans)
    if not error <= LIMITS[shape.dtype]:
        return Row(shape, error=error, reason=f"wrong: error {relative_error(error)}")
    scan_us, copy_us = (arm.samples_us for arm in arms)
    return Row(shape, median(scan_us), median(copy_us), paired_ratio(copy_us, scan_us), error)


Forward = Callable[..., tuple[Tensor, Tensor]]


def _ops() -> tuple[Forward, Forward]:
    scan: Forward = import_optional("_scan_gpu_op", "scan")  # whose module defines the ops
    return scan, torch.ops.pytest_ecornn.scan_backward


class Scan:
    """One scan on arrays of its own. `run` makes it; `error` is that of what the last run, or its replay, left."""

    def __init__(self, shape: Shape, device: str, forward: Forward, backward: Forward):
        self._shape, self._forward, self._backward = shape, forward, backward
        sizes = shape.batch, shape.steps, shape.gates * shape.hidden
        self._x = x = torch.randn(sizes, device=device, dtype=getattr(torch, shape.dtype))
        self._options = (None, None, shape.cell, True, False)
        self._result: Tensor | None = None
        if shape.is_backward:
            self._output = forward(x, None, None, *self._options)[0]
            self._d_output = torch.randn_like(self._output)
            self._d_final = torch.zeros_like(self._output[:, 0])

    def run(self) -> None:
        if self._shape.is_backward:
            saved = self._output, self._d_output, self._d_final
            self._result = self._backward(self._x, None, None, *saved, *self._options)[0]
        else:
            self._result = self._forward(self._x, None, None, *self._options)[0]

    def error(self) -> float:
        """The largest, over the reference's largest element, in a few channels of one sequence."""
        hidden = self._shape.hidden
        channels = sample_channels(hidden, _SAMPLE, self._x.device)
        assert self._result is not None
        x = sampled(self._x[-1:], channels, hidden).double()
        actual = sampled(self._result[-1:], channels, hidden)
        with torch.enable_grad():
            exact = states(x.requires_grad_(), self._shape.cell)
        if self._shape.is_backward:
            (exact,) = torch.autograd.grad(exact, x, sampled(self._d_output[-1:], channels, hidden).double())
        return float((actual - exact).abs().max() / exact.abs().max())


def make_copy(count: int, device: str) -> Callable[[], None]:
    """Copies so that `count` bytes are moved, read and written ones together."""
    source = torch.empty(count // (2 * torch.float32.itemsize), device=device).uniform_()
    piece = _PIECE_BYTES // source.element_size()
    pieces = list(zip(torch.empty_like(source).split(piece), source.split(piece), strict=True))

    def copy() -> None:
        for target, part in pieces:
            target.copy_(part)

    return copy


def render(rows: Sequence[Row]) -> str:
    figures = ("MB moved", "scan, us", "copy, us", "GB/s", "share of copy")
    text = (
        "scan_gpu and a copy of as many bytes, read and written, by turns in one run: CUDA graphs whose arrays together fill "
        f"the L2 {_CACHES:.0f} times at least; copies are cut in pieces of 256 MiB. MB: the fewest a scan can move. Share: the "
        f"copy's time over the scan's, with its interval (99 %, {_ROUNDS} pairs of blocks). B x T x H. A bar holds where the "
        "whole interval reaches it; that of T 256 is 1.3 times the copy's time. Error: the largest in a few channels after the "
        "last replay, against float64."
    )
    scans = table(("scan", *figures, "bar", "holds", "error"), [_cells(row) for row in rows], figures) if rows else ""
    return document(["## Share of a copy's bandwidth", text, scans])


def _cells(row: Row) -> list[str]:
    shape, share, bar = row.shape, row.share, row.shape.bar
    cells = [str(shape), significant(shape.bytes / 1e6)]
    judged = bar.cells(share) if bar else (format_ratio(share), "-", "-")
    if share is None:
        return [*cells, escape(row.reason), "-", "-", *judged, "-"]
    figures = row.scan_us, row.copy_us, shape.bytes / row.scan_us / 1e3
    return [*cells, *(significant(figure, 4) for figure in figures), *judged, relative_error(row.error)]
