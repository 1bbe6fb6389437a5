"""The L2 hit rate of one product, by Nsight Compute on a program that runs just that product."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from dataclasses import dataclass

from pytest_ecornn.suites.published.common.launches import is_main_product

METRIC = "lts__t_sector_hit_rate.pct"
_SECONDS = 60
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
class HitRate:
    """percent: None where there is only a reason. kernel: the one that it was read of."""

    percent: float | None = None
    kernel: str = ""
    reason: str = ""


def measure(batch: int, hidden: int, layout: str) -> HitRate:
    """Measures the float32 product [B x H] x [4H x H] in a layout: "row_major" (X W^T) or "transposed" (W X^T)."""
    if shutil.which(_COMMAND[0]) is None:
        return HitRate(reason="ncu (Nsight Compute) is not on the PATH")
    command = [*_COMMAND, sys.executable, "-c", _PROGRAM, str(batch), str(hidden), layout]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HitRate(reason=f"ncu had not finished after {_SECONDS} s")
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
