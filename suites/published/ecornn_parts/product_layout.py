"""EcoRNN's figure of the layout: X W^T, states with a sequence's features side by side, against W X^T, the batch side by side.

Source: EcoRNN, arXiv 1805.08899, the product [64 x 512] x [2048 x 512].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median

import torch
from torch import Tensor

from pytest_ecornn.measurement.alternating import Arm, Replay, measure_interleaved
from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio, paired_ratio
from pytest_ecornn.suites.published.common.bars import format_ratio
from pytest_ecornn.suites.published.common.item_rows import list_reasons, measure_each
from pytest_ecornn.suites.published.common.launches import PAPER_COLUMN

SHAPES = ((64, 512), (32, 650), (32, 200), (20, 1500), (64, 1500))  # batch, hidden size
DTYPES = ("float32", "bfloat16", "float16")
PUBLISHED = SHAPES[0]
PAPER = "almost 2x"  # of float32
_GATES = 4
_PRODUCTS = 16  # in one graph
_OPERANDS = 8  # states and outputs that the products rotate over; W stays, as in the steps of one sequence
_ROUNDS = 20


@dataclass(frozen=True)
class Row:
    """Times of one product [B x H] x [4H x H] in both layouts, and that of X W^T over that of W X^T; or the reason for none."""

    batch: int
    hidden_size: int
    dtype: str
    row_major_us: float = 0.0
    transposed_us: float = 0.0
    ratio: Ratio | None = None
    reason: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return self.batch, self.hidden_size

    @property
    def label(self) -> str:
        return f"B {self.batch}, H {self.hidden_size}, {self.dtype}"


def measure(deadline: float) -> Iterator[Row]:
    """Every shape in every type, float32 in IEEE precision; of what begins after `deadline` (of time.monotonic) the reason."""
    with fp32_precision("matmul", "ieee"):
        yield from measure_each(
            product(SHAPES, DTYPES), deadline, lambda item: _row(*item), lambda item, why: Row(*item[0], item[1], reason=why)
        )


def _row(shape: tuple[int, int], dtype: str) -> Row:
    batch, hidden = shape
    random = partial(torch.randn, device="cuda", dtype=getattr(torch, dtype))
    weight = random(_GATES * hidden, hidden) * hidden**-0.5
    states = [random(batch, hidden) for _ in range(_OPERANDS)]
    states_hb = [random(hidden, batch) for _ in range(_OPERANDS)]
    outputs = [random(batch, _GATES * hidden) for _ in range(_OPERANDS)]
    outputs_gb = [random(_GATES * hidden, batch) for _ in range(_OPERANDS)]
    row_major = _arm([(x, weight.T, out) for x, out in zip(states, outputs, strict=True)])
    transposed = _arm([(weight, x, out) for x, out in zip(states_hb, outputs_gb, strict=True)])
    measure_interleaved([row_major, transposed], _ROUNDS)
    times = row_major.samples_us, transposed.samples_us
    return Row(batch, hidden, dtype, median(times[0]), median(times[1]), paired_ratio(*times))


def _arm(products: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Arm:
    def launch() -> None:
        for number in range(_PRODUCTS):
            a, b, out = products[number % len(products)]
            torch.mm(a, b, out=out)

    return Arm([Replay(launch)], _PRODUCTS)


def render(rows: Sequence[Row]) -> str:
    figures = ("X W^T, us", "W X^T, us", "X W^T over W X^T")
    lines = [[describe(row.shape), row.dtype, *_figures(row)] for row in rows]
    times = table(("product", "type", *figures, PAPER_COLUMN), lines, figures)
    note = (
        f"Each time is a product's share of the replay of a CUDA graph of {_PRODUCTS}, which rotate over {_OPERANDS} X and "
        "outputs while W stays, as in the steps of a sequence; the two layouts alternate in one run; brackets: 99 %."
    )
    return document(["## Layout of the product", times, note, list_reasons(rows)])


def _figures(row: Row) -> Iterator[str]:
    yield from map(significant, (row.row_major_us, row.transposed_us)) if row.ratio else ("-", "-")
    yield format_ratio(row.ratio)
    yield PAPER if (row.shape, row.dtype) == (PUBLISHED, DTYPES[0]) else "-"


def describe(shape: tuple[int, int]) -> str:
    """The product of a batch and hidden size, in Markdown."""
    batch, hidden = shape
    return escape(f"[{batch} x {hidden}] x [{_GATES * hidden} x {hidden}]")
