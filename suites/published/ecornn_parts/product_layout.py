"""EcoRNN's figure of the layout: X W^T, states with a sequence's features side by side, against W X^T, the batch side by side.

Source: EcoRNN, arXiv 1805.08899, the product [64 x 512] x [2048 x 512].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import ratio_interval, significant
from pytest_ecornn.results.statistics import Ratio, paired_ratio
from pytest_ecornn.suites.published.common.alternating import Arm, Replay, measure_interleaved
from pytest_ecornn.suites.published.ecornn_parts.hit_rate import HitRate

SHAPES = ((64, 512), (32, 650), (32, 200), (20, 1500), (64, 1500))  # batch, hidden size
DTYPES = ("float32", "bfloat16", "float16")
HIT_RATE_SHAPE = SHAPES[0]
LAYOUTS = ("row_major", "transposed")
PAPER = "almost 2x; hit rate 10 % X W^T, 50 % W X^T"
_GATES = 4
_PRODUCTS = 16  # in one graph
_OPERANDS = 8  # states and outputs that the products rotate over; W stays, as in the steps of one sequence
_ROUNDS = 20


@dataclass(frozen=True)
class Row:
    """Times of one product [B x H] x [4H x H] in both layouts, and that of X W^T over that of W X^T."""

    batch: int
    hidden_size: int
    dtype: str
    row_major_us: float
    transposed_us: float
    ratio: Ratio


def measure() -> list[Row]:
    """Every shape in every type, float32 in IEEE precision."""
    with fp32_precision("matmul", "ieee"):
        return [_row(batch, hidden, dtype) for batch, hidden in SHAPES for dtype in DTYPES]


def _row(batch: int, hidden: int, dtype: str) -> Row:
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


def render(rows: Sequence[Row], hit_rates: dict[str, HitRate], paper_column: str) -> str:
    """The table, and under it what it does not say. hit_rates: by layout, of LAYOUTS."""
    figures = ("X W^T, us", "W X^T, us", "X W^T over W X^T")
    header = ("product", "type", *figures, "L2 hit rate, X W^T", "L2 hit rate, W X^T", paper_column)
    return document(
        [
            "## Layout of the product",
            table(header, (_cells(row, hit_rates) for row in rows), figures),
            f"Each time is a product's share of the replay of a CUDA graph of {_PRODUCTS}, which rotate over {_OPERANDS} X and "
            "outputs while W stays, as in the steps of a sequence; the two layouts alternate in one run; brackets: 99 %. "
            f"Hit rates by Nsight Compute for one product with cold caches ({_text(HIT_RATE_SHAPE)}, float32 only).",
            "\n".join(f"- {escape(layout)}: {escape(_source(rate))}" for layout, rate in hit_rates.items()),
        ]
    )


def _cells(row: Row, hit_rates: dict[str, HitRate]) -> list[str]:
    is_published = (row.batch, row.hidden_size) == HIT_RATE_SHAPE and row.dtype == "float32"
    rates = [_percent(hit_rates.get(layout)) if is_published else "-" for layout in LAYOUTS]
    ratio = ratio_interval(row.ratio.ratio, row.ratio.low, row.ratio.high)
    times = [significant(row.row_major_us), significant(row.transposed_us)]
    return [_text((row.batch, row.hidden_size)), row.dtype, *times, ratio, *rates, PAPER if is_published else "-"]


def _text(shape: tuple[int, int]) -> str:
    batch, hidden = shape
    return escape(f"[{batch} x {hidden}] x [{_GATES * hidden} x {hidden}]")


def _percent(rate: HitRate | None) -> str:
    return "none, see below" if rate is None or rate.percent is None else f"{significant(rate.percent)} %"


def _source(rate: HitRate) -> str:
    return f"no hit rate: {rate.reason}" if rate.percent is None else f"hit rate of {rate.kernel}"
