"""The peak memory of a training step of persistent_gpu beside cuDNN's, at the language models and the long sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant, size
from pytest_ecornn.suites.published.common.bars import MaxTarget
from pytest_ecornn.suites.published.common.case_times import prepared
from pytest_ecornn.suites.published.common.item_rows import ItemRow, measure_each
from pytest_ecornn.suites.published.persistent_parts.persistent_times import BASELINE, LANGUAGE, LONG, OURS

BAR = MaxTarget(1.0)  # ours over cuDNN's


@dataclass(frozen=True)
class Row(ItemRow):
    """Peaks by name, or the reasons why there are none."""

    case: Case
    peak_bytes: dict[str, int]
    reasons: dict[str, str]

    @property
    def ratio(self) -> float | None:
        """Ours over cuDNN's."""
        own, other = (self.peak_bytes.get(name) for name in (OURS, BASELINE))
        return own / other if own and other else None


def cases() -> list[Case]:
    """An LSTM's training steps."""
    return [
        Case(cell="lstm", layers=layers, batch=batch, hidden_size=hidden, steps=steps, dtype=dtype, mode="training",
             device="cuda")
        for (layers, batch, hidden, steps), dtype in product((*LANGUAGE, *LONG), ("float16", "float32"))
    ]  # fmt: skip


def measure(deadline: float) -> Iterator[Row]:
    """A row for each case; of what begins after `deadline` (of time.monotonic) only the reason."""
    return measure_each(cases(), deadline, _row, lambda case, why: Row(case, {}, {OURS: why, BASELINE: why}))


def _row(case: Case) -> Row:
    """One call of each after the calls by which it was verified."""
    pool, candidates = InputPool(case), prepared(case, (OURS, BASELINE))
    reasons = {name: one for name, one in candidates.items() if isinstance(one, str)}
    peaks = {name: Arm(one, pool).peak_bytes() for name, one in candidates.items() if not isinstance(one, str)}
    return Row(case, {name: peak for name, peak in peaks.items() if peak is not None}, reasons)


def render(rows: Sequence[Row]) -> str:
    figures = (OURS, BASELINE, f"{OURS}'s over {BASELINE}'s")
    reasons = [f"- {name}, {escape(row.label)}: {escape(why)}" for row in rows for name, why in row.reasons.items()]
    return document(
        [
            "## Memory",
            "The most memory that torch allocates during a training step beyond what there was before: outputs, what is kept "
            "for the backward pass, workspaces and the gradients of all leaves.",
            table(("case", *figures, "bar", "holds"), [[escape(row.label), *_figures(row)] for row in rows], figures),
            "\n".join(reasons),
        ]
    )


def _figures(row: Row) -> Iterator[str]:
    yield from (size(row.peak_bytes[name]) if name in row.peak_bytes else "-" for name in (OURS, BASELINE))
    ratio = row.ratio
    yield "-" if ratio is None else significant(ratio)
    yield from (str(BAR), "-" if ratio is None else BAR.is_met((ratio, ratio, ratio)))
