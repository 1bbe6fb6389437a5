"""A whole minGRU layer between its input and output products, by kernels: all steps' outputs in one product, or one a step.

The published system spent 72 % of its GPU time in the output projection, a product launched for every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import MODES, Case, Layer
from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.results.formatting import percent, significant
from pytest_ecornn.suites.published.common.candidates import prepare
from pytest_ecornn.suites.published.common.item_rows import list_reasons, measure_each
from pytest_ecornn.suites.published.common.launches import Breakdown, try_breakdown

IMPLEMENTATION, CELL, GATES = "scan_gpu", "mingru", 2
BATCH, STEPS, WIDTH = 8, 1024, 512
PUBLISHED_SHARE = 0.72
_LIMIT = 1e-4  # between both ways, which add up the same products in another order


# By name: outputs [B, T, D] of states [B, T, H] and the output projection [D, H].
PROJECTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one product": linear,
    "a product a step": lambda states, weight: torch.stack([linear(state, weight) for state in states.unbind(1)], 1),
}


@dataclass(frozen=True)
class Row:
    """One mode and output projection. found: None where there is only a reason."""

    mode: str
    projection: str
    found: Breakdown | None = None
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.mode}, {self.projection}"


def measure(deadline: float, device: str = "cuda") -> Iterator[Row]:
    """A row for each mode and projection; of modes begun after `deadline` (of time.monotonic) only the reason."""
    for rows in measure_each(MODES, deadline, lambda mode: _rows(mode, device), _without):
        yield from rows


def _without(mode: str, why: str) -> list[Row]:
    return [Row(mode, name, reason=why) for name in PROJECTIONS]


def _rows(mode: str, device: str) -> list[Row]:
    case = Case(
        cell=CELL, steps=STEPS, batch=BATCH, hidden_size=WIDTH, batch_first=True, projected=True, mode=mode, device=device
    )  # fmt: skip
    if isinstance(candidate := prepare(case, IMPLEMENTATION), str):
        return _without(mode, candidate)
    whole = LayerWithProjections(candidate.layer, (BATCH, STEPS, WIDTH), case.training, device)
    if (difference := whole.difference()) > _LIMIT:
        return _without(mode, f"wrong: they differ by {difference:.1e}")
    return [Row(mode, name, *try_breakdown(partial(whole.call, name))) for name in PROJECTIONS]


class LayerWithProjections:
    """The layer with both projections. In training a call also makes the gradients of x and both weights."""

    def __init__(self, layer: Layer, sizes: tuple[int, int, int], training: bool, device: str):
        batch, steps, width = sizes
        self._layer, self._training = layer, training
        self._x = torch.randn(batch, steps, width, device=device)
        self._inward = torch.randn(GATES * width, width, device=device) * width**-0.5
        self._outward = torch.randn(width, width, device=device) * width**-0.5
        self._leaves = [leaf.requires_grad_(training) for leaf in (self._x, self._inward, self._outward)]
        self._d_output = torch.randn(batch, steps, width, device=device)

    def call(self, projection: str) -> tuple[Tensor, ...]:
        """The output, and in training the gradients."""
        with torch.set_grad_enabled(self._training), fp32_precision("matmul", "ieee"):
            states, _ = self._layer(linear(self._x, self._inward), None, None)
            output = PROJECTIONS[projection](states, self._outward)
            gradients = torch.autograd.grad(output, self._leaves, self._d_output) if self._training else ()
            return output.detach(), *gradients

    def difference(self) -> float:
        """Between what both projections compute, the largest, relative to the largest element of its tensor."""
        pairs: Any = zip(*(self.call(name) for name in PROJECTIONS), strict=True)
        return max(float((tensor - other).abs().max() / tensor.abs().max()) for tensor, other in pairs)


def render(rows: Sequence[Row]) -> str:
    figures = (
        "launches", "launching, us", "kernels", "scan, us", "products, us", "pointwise, us", "other, us", "gaps, us",
        "scan's share", "products' share",
    )  # fmt: skip
    lines = [[row.mode, row.projection, *_figures(row.found)] for row in rows]
    text = (
        f"{CELL} by {IMPLEMENTATION} between input and output product, B {BATCH}, T {STEPS:,}, D and H {WIDTH}, float32; "
        "training: with the gradients of the input and both weights. The output of all steps in one product, and in one a "
        f"step as the published system made it, in which {PUBLISHED_SHARE:.0%} of its GPU's time went."
    )
    note = (
        "From one profiled call; the profiler itself lengthens every launch and gap. Times on the device are sums over "
        "kernels; shares are of these sums, without gaps."
    )
    by_kernels = table(("call", "output projection", *figures), lines, figures) if rows else ""
    return document(["## The whole layer by kernels", text, by_kernels, note, list_reasons(rows)])


def _figures(call: Breakdown | None) -> list[str]:
    if call is None:
        return ["-"] * 10
    times = (call.scan_us, call.product_us, call.pointwise_us, call.other_us, call.gaps_us)
    shares = call.scan_us / call.busy_us if call.busy_us else 0.0, call.product_share
    counts = str(call.launches), significant(call.launch_us), str(call.kernels)
    return [*counts, *(significant(time_us, 4) for time_us in times), *map(percent, shares)]
