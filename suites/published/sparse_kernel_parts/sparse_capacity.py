"""The largest hidden size whose non-zeros stay on this chip, by density and type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.sparse_persistent_gpu.heuristics import capacity
from pytest_ecornn.reporting.markdown_syntax import document, table
from pytest_ecornn.suites.published.common.item_rows import measure_each

CELLS, DTYPES, DENSITIES, BATCH = ("rnn_tanh", "gru", "lstm"), ("float32", "float16"), (0.01, 0.05, 0.1, 0.2, 0.3), 4
LARGE = 2304  # that the paper calls so


@dataclass(frozen=True)
class Row:
    """hidden: of a random pattern forward, and backward; 0 where there was a reason."""

    cell: str
    dtype: str
    density: float
    hidden: tuple[int, int] = (0, 0)
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.cell}, {self.dtype}, {self.density:.0%}"


def measure(deadline: float, device: Device | None = None) -> Iterator[Row]:
    """A row for each; of what begins after `deadline` (of time.monotonic) only the reason. device: the current one if None."""
    device = device or Device.of(with_index("cuda"))
    kinds = product(CELLS, DTYPES, DENSITIES)
    return measure_each(kinds, deadline, lambda kind: _row(*kind, device), lambda kind, why: Row(*kind, reason=why))


def _row(cell: str, dtype: str, density: float, device: Device) -> Row:
    problems = (ProblemSize(cell, 1, BATCH, MathMode.of(dtype, "ieee"), is_backward) for is_backward in (False, True))
    forward, backward = (capacity(problem, density, device) for problem in problems)
    return Row(cell, dtype, density, (forward, backward))


def render(rows: Sequence[Row]) -> str:
    text = (
        f"The largest H at which a random pattern fits, B {BATCH}, forward and backward, as "
        "`sparse_persistent_gpu.heuristics.capacity` finds it, and its recurrent parameters, zeros counted, over those of "
        f"H {LARGE:,}, which the paper calls large: its layers are over 5 times larger than dense ones."
    )
    header = ("cell", "type", "density", "H forward", "H backward", f"parameters over H {LARGE:,}'s")
    return document(["## What stays on chip", text, table(header, [list(_figures(row)) for row in rows])])


def _figures(row: Row) -> Iterator[str]:
    yield from (row.cell, row.dtype, f"{row.density:.0%}")
    yield from (f"{hidden:,}" if hidden else row.reason for hidden in row.hidden)
    yield f"{(row.hidden[0] / LARGE) ** 2:.1f}"
