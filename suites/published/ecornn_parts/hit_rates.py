"""EcoRNN's L2 hit rates of X W^T and W X^T, by Nsight Compute on a program that runs just that product.

Source: EcoRNN, arXiv 1805.08899, the product [64 x 512] x [2048 x 512].
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.suites.published.common.item_rows import ItemRow, measure_each
from pytest_ecornn.suites.published.common.launches import PAPER_COLUMN, is_main_product
from pytest_ecornn.suites.published.ecornn_parts.product_layout import PUBLISHED, describe

PAPER = {"row_major": "10 %", "transposed": "50 %"}  # by layout
PRODUCTS = {"row_major": "X W^T", "transposed": "W X^T"}
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
class Row(ItemRow):
    """One layout. percent: None where there is only a reason. kernel: the one that it was read of."""

    layout: str
    percent: float | None = None
    kernel: str = ""
    reason: str = ""


def measure(deadline: float) -> Iterator[Row]:
    """A row for each layout of the published product; of what begins after `deadline` (of time.monotonic) only the reason."""
    return measure_each(PRODUCTS, deadline, _row, lambda layout, why: Row(layout, reason=why))


def _row(layout: str) -> Row:
    if shutil.which(_COMMAND[0]) is None:
        return Row(layout, reason="ncu (Nsight Compute) is not on the PATH")
    command = [*_COMMAND, sys.executable, "-c", _PROGRAM, *map(str, PUBLISHED), layout]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_NCU_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Row(layout, reason=f"ncu had not finished after {_NCU_SECONDS} s")
    try:
        return Row(layout, *parse(done.stdout))
    except ValueError as error:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()] or ["no output"]
        shown = next((line for line in lines if "ERR" in line.upper()), lines[-1])
        return Row(layout, reason=f"{error}; ncu exited with {done.returncode}: {shown}")


def parse(text: str) -> tuple[float, str]:
    """Returns hit rate and kernel of the last product that ncu printed, of the last kernel where none is known as one.

    Raises ValueError for no figure.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = [row for row in csv.DictReader(lines[start:]) if row.get("Metric Name") == METRIC]
    products = [row for row in rows if is_main_product(row["Kernel Name"])]
    if not rows:
        raise ValueError(f"no {METRIC} in what ncu printed")
    last = (products or rows)[-1]
    try:
        return float(last["Metric Value"].replace(",", "")), last["Kernel Name"]
    except ValueError:
        raise ValueError(f"expected {METRIC} as a number, got {last['Metric Value']!r}") from None


def render(rows: Sequence[Row]) -> str:
    header = ("product", "hit rate", "kernel", PAPER_COLUMN)
    figures = [("-", "-") if row.percent is None else (f"{significant(row.percent)} %", escape(row.kernel)) for row in rows]
    lines = [[PRODUCTS[row.layout], *cells, PAPER[row.layout]] for row, cells in zip(rows, figures, strict=True)]
    text = f"L2 hit rate of {describe(PUBLISHED)} in float32, by Nsight Compute, for one product with cold caches."
    reasons = "\n".join(f"- {PRODUCTS[row.layout]}: {escape(row.reason)}" for row in rows if row.percent is None)
    return document(["## Hit rates of the product", text, table(header, lines, ("hit rate",)), reasons])
