"""EcoRNN's figure of the layout: X W^T, states with a sequence's features side by side, against W X^T, the batch side by side.

Times of both, and their L2 hit rates by Nsight Compute on a program that runs just that product. Source: EcoRNN, arXiv
1805.08899, the product [64 x 512] x [2048 x 512].
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from pytest_ecornn.measurement.alternating import Arm, Replay, measure_interleaved
from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.results.statistics import Ratio, paired_ratio
from pytest_ecornn.suites.published.common.bars import format_ratio
from pytest_ecornn.suites.published.common.launches import is_main_product

SHAPES = ((64, 512), (32, 650), (32, 200), (20, 1500), (64, 1500))  # batch, hidden size
DTYPES = ("float32", "bfloat16", "float16")
HIT_RATE_SHAPE = SHAPES[0]
LAYOUTS = ("row_major", "transposed")
PAPER = "almost 2x; hit rate 10 % X W^T, 50 % W X^T"
_GATES = 4
_PRODUCTS = 16  # in one graph
_OPERANDS = 8  # states and outputs that the products rotate over; W stays, as in the steps of one sequence
_ROUNDS = 20
METRIC = "lts__t_sector_hit_rate.pct"
_NCU_SECONDS = 60
# The caches are emptied before each kernel: today's L2 would hold both operands whole, the paper's could not hold W.
_COMMAND = ("ncu", "--clock-control", "none", "--cache-control", "all", "--metrics", METRIC, "--csv")
_PROGRAM = """
import sys, torch
batch, hidden, layout = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
weight = torch.randn(4 * hidden, hidden, device="cuda")
if layout == "row_major":
    a, b = torch.randn(batch, hidden, device="cuda"), weight.T
else:
    a, b = weight, torch.randn(hidden, batch, device="cuda")
out = torch.empty(a.shape[0], b.shape[1], device="cuda")
for _ in range(2):
    torch.mm(a, b, out=out)
torch.cuda.synchronize()
"""


@dataclass(frozen=True)
class Row:
    """Times of one product [B x H] x [4H x H] in both layouts, and that of X W^T over that of W X^T."""

    batch: int
    hidden_size: int
    dtype: str
    row_major_us: float
    transposed_us: float
    ratio: Ratio


@dataclass(frozen=True)
class HitRate:
    """percent: None where there is only a reason. kernel: the one that it was read of."""

    percent: float | None = None
    kernel: str = ""
    reason: str = ""


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


def measure_hit_rate(batch: int, hidden: int, layout: str) -> HitRate:
    """Measures the float32 product [B x H] x [4H x H] in a layout: "row_major" (X W^T) or "transposed" (W X^T)."""
    if shutil.which(_COMMAND[0]) is None:
        return HitRate(reason="ncu (Nsight Compute) is not on the PATH")
    command = [*_COMMAND, sys.executable, "-c", _PROGRAM, str(batch), str(hidden), layout]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NCU_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HitRate(reason=f"ncu had not finished after {_NCU_SECONDS} s")
    try:
        return parse(done.stdout)
    except ValueError as error:
        return HitRate(reason=f"{error}; ncu exited with {done.returncode}: {_last_line(done.stdout + done.stderr)}")


def parse(text: str) -> HitRate:
    """The last product of what ncu printed (the last kernel where none is known as one). Raises ValueError for no figure."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = [row for row in csv.DictReader(lines[start:]) if row.get("Metric Name") == METRIC]
    products = [row for row in rows if is_main_product(row["Kernel Name"])]
    if not rows:
        raise ValueError(f"no {METRIC} in what ncu printed")
    last = (products or rows)[-1]
    try:
        return HitRate(float(last["Metric Value"].replace(",", "")), last["Kernel Name"])
    except ValueError:
        raise ValueError(f"expected {METRIC} as a number, got {last['Metric Value']!r}") from None


def _last_line(text: str) -> str:
    """An error's line where there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "ERR" in line.upper()), lines[-1] if lines else "no output")


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
    figures = [significant(row.row_major_us), significant(row.transposed_us), format_ratio(row.ratio)]
    return [_text((row.batch, row.hidden_size)), row.dtype, *figures, *rates, PAPER if is_published else "-"]


def _text(shape: tuple[int, int]) -> str:
    batch, hidden = shape
    return escape(f"[{batch} x {hidden}] x [{_GATES * hidden} x {hidden}]")


def _percent(rate: HitRate | None) -> str:
    return "none, see below" if rate is None or rate.percent is None else f"{significant(rate.percent)} %"


def _source(rate: HitRate) -> str:
    return f"no hit rate: {rate.reason}" if rate.percent is None else f"hit rate of {rate.kernel}"
