"""How far scans are from float64 over the number of steps: in linear space, in logarithms by a kernel and by torch's cumsum.

The functions are called directly: the harness refuses the logarithms of torch where sequences are long, and this shows why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from pytest_ecornn.results.formatting import relative_error
from pytest_ecornn.suites.published.common.item_rows import import_optional, measure_each, reason
from pytest_ecornn.suites.published.scan_kernel_parts.scan_judge import states
from pytest_ecornn.verification import comparison
from pytest_ecornn.verification.comparison import Slices

CELL = "mingru_positive"
STEPS = (64, 256, 1024, 4096, 16_384, 65_536)
BATCH, HIDDEN = 1, 256
DTYPES = ("float32", "bfloat16")
CONTENTS = ("normal", "near_one")
_IN_LABEL = {"normal": "", "near_one": ", gates near one"}

Scan = Callable[[Tensor], Tensor]
# By name: what makes outputs [B, T, H] of pre-activations [B, T, G*H].
SCANS: Mapping[str, Scan] = {
    "linear": lambda x: import_optional("_scan_gpu_op", "scan")(x, None, None, None, None, CELL, True, False)[0],
    "log": lambda x: import_optional("_scan_gpu_log_op", "log_scan")(x, None, None, CELL, True, False)[0],
    "log by torch": lambda x: import_optional("scan_torch", "log_space_scan")(x, None, CELL),
}
SOURCES = {"linear": "scan_gpu", "log": "scan_gpu_log", "log by torch": "scan_torch"}


@dataclass(frozen=True)
class ErrorPair:
    """maximum: over the reference's largest element; rms: over its root mean square. None where there is only a reason."""

    maximum: float | None = None
    rms: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One dtype, kind of contents and number of steps; errors by scan."""

    dtype: str
    contents: str
    steps: int
    found: dict[str, ErrorPair]

    @property
    def label(self) -> str:
        return f"{self.dtype}, {self.contents}, {self.steps:,} steps"


def measure(deadline: float, device: str = "cuda") -> Iterator[Row]:
    """Rows from few steps to many, until `deadline` (of time.monotonic); those after it have only the reason."""

    def without(item: tuple[int, str, str], why: str) -> Row:
        steps, dtype, kind = item
        return Row(dtype, kind, steps, dict.fromkeys(SCANS, ErrorPair(reason=why)))

    return measure_each(product(STEPS, DTYPES, CONTENTS), deadline, lambda item: _row(*item, device), without)


def _row(steps: int, dtype: str, kind: str, device: str) -> Row:
    case = Case(
        cell=CELL, steps=steps, batch=BATCH, hidden_size=HIDDEN, batch_first=True, projected=True, dtype=dtype, contents=kind,
        device=device,
    )  # fmt: skip
    with torch.no_grad():
        x = contents.problem(case).x
        wanted = states(x, CELL)
        return Row(dtype, kind, steps, {name: _errors(scan, x, wanted) for name, scan in SCANS.items()})


def _errors(scan: Scan, x: Tensor, wanted: Tensor) -> ErrorPair:
    try:
        output = scan(x)
        strange = int((~output.isfinite()).sum())
    except Exception as failure:  # one scan's must not end the others' measurement
        return ErrorPair(reason=reason(failure))
    if strange:
        return ErrorPair(reason=f"{strange:,} of {output.numel():,} elements are not finite")
    whole = Slices(1, {"": (0, wanted.shape[1])})
    error = comparison.errors(comparison.to_float64(output, wanted.device), wanted, [whole], None, 0.0)[""]
    return ErrorPair(error.maximum, error.rms)


def render(rows: Sequence[Row]) -> str:
    names = list(rows[0].found) if rows else []
    figures = [f"{name}, {measure}" for name in names for measure in ("max", "rms")]
    header = ("type", "gates", "T", *figures)
    lines = [[row.dtype, row.contents, f"{row.steps:,}", *_cells(row)] for row in _sorted(rows)]
    sources = ", ".join(f"{name}: {SOURCES[name]}" for name in names if name in SOURCES)
    text = (
        f"Forward pass of {CELL}, batch {BATCH}, hidden size {HIDDEN}, against float64 in linear space on the same "
        f"pre-activations; {sources}. Max: the largest error over the reference's largest element; rms: their root mean "
        "squares. Gates near one keep 0.9975 of the state at a step."
    )
    return document(["## Errors over the number of steps", text, table(header, lines, ("T", *figures)) if rows else ""])


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (DTYPES.index(row.dtype), CONTENTS.index(row.contents), row.steps))


def _cells(row: Row) -> Iterator[str]:
    for error in row.found.values():
        if error.maximum is None or error.rms is None:
            yield from (escape(error.reason), "-")
        else:
            yield from map(relative_error, (error.maximum, error.rms))


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """Returns a plot for each dtype, by file name: the largest error over the steps, gates near one dashed."""
    plots = {}
    for dtype in DTYPES:
        lines = list(_lines([row for row in _sorted(rows) if row.dtype == dtype]))
        if any(line.shown for line in lines):
            title = f"{CELL}, forward, {dtype}: error against float64"
            plots[f"scan_errors_{dtype}.svg"] = log_plot(title, "time steps", "largest error, relative", lines).document()
    return plots


def _lines(rows: Sequence[Row]) -> Iterator[Line]:
    for kind in CONTENTS:
        chosen = [row for row in rows if row.contents == kind]
        for colour, name in enumerate(chosen[0].found if chosen else (), 1):
            points = [(row.steps, row.found[name].maximum or 0.0) for row in chosen]
            yield Line(f"{name}{_IN_LABEL[kind]}", points, colour, is_dashed=kind == "near_one")
