"""persistent_gpu beside FlashRNN's fused LSTM in bfloat16: ours with the product of its inputs, theirs without, as called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pytest_ecornn.contract import MODES, Case
from pytest_ecornn.measurement.alternating import Arm, measure_interleaved
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import limit_fraction, significant
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio, median_interval, paired_ratio
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.items.items import build_and_compare
from pytest_ecornn.suites.published.common.bars import MinTarget, Times
from pytest_ecornn.suites.published.common.candidates import call_of, prepare
from pytest_ecornn.suites.published.common.item_rows import ItemRow, measure_each
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.verification import Candidate

OURS, THEIRS = "persistent_gpu", "flashrnn"
BARS = {"inference": MinTarget(2.6), "training": MinTarget(2.4)}
_SIZES = Case(cell="lstm", steps=1024, batch=16, hidden_size=768, dtype="bfloat16", device="cuda")
_BLOCK_US = 30e3


@dataclass(frozen=True)
class Row(ItemRow):
    """Times of one mode. reasons: by name, where there is no time. share: FlashRNN's largest error over the harness's limit."""

    mode: str
    time_us: dict[str, Times]
    reasons: dict[str, str]
    theirs_over_ours: Ratio | None = None
    share: float | None = None


def measure(deadline: float) -> Iterator[Row]:
    """A row for each mode; of what begins after `deadline` (of time.monotonic) only the reason."""
    return measure_each(MODES, deadline, _row, lambda mode, why: Row(mode, {}, {OURS: why, THEIRS: why}))


def cases(mode: str) -> dict[str, Case]:
    """Theirs is given pre-activations, in the order in which the package takes them."""
    own = replace(_SIZES, mode=mode)
    return {OURS: own, THEIRS: replace(own, projected=True, batch_first=True)}


def _row(mode: str) -> Row:
    of_name, shares, reasons, arms = cases(mode), list[float](), dict[str, str](), dict[str, Arm]()

    def beyond_its_limit(kind: ImplementationInfo, case: Case) -> tuple[Candidate, list[TensorCheck]]:
        """Builds a candidate that is timed even beyond its error limit: less exactness can only make it faster."""
        candidate, comparisons = build_and_compare(kind, case)
        shares.append(max(check.share for check in comparisons))
        return candidate, []

    candidates = {OURS: prepare(of_name[OURS], OURS), THEIRS: prepare(of_name[THEIRS], THEIRS, beyond_its_limit)}
    for name, candidate in candidates.items():
        if isinstance(candidate, str):
            reasons[name] = candidate
        else:
            arms[name] = Arm([call_of(candidate)], block_us=_BLOCK_US)
    with torch.set_grad_enabled(mode == "training"):
        measure_interleaved(list(arms.values()), MIN_PAIRS)
    samples = {name: arm.samples_us for name, arm in arms.items()}
    return row(mode, samples, reasons, shares[0] if shares else None)


def row(mode: str, samples_us: dict[str, list[float]], reasons: dict[str, str], share: float | None) -> Row:
    """Returns a mode's row, from each implementation's samples (one a round) or the reason why it has none."""
    times = {name: median_interval(samples) for name, samples in samples_us.items()}
    ratio = paired_ratio(samples_us[THEIRS], samples_us[OURS]) if len(times) == 2 else None
    return Row(mode, times, reasons, ratio, share)


def render(rows: Sequence[Row]) -> str:
    figures = (f"{OURS}, us", f"{THEIRS}, us", f"{THEIRS}'s over {OURS}'s", "bar", "holds", f"{THEIRS}'s error over its limit")
    reasons = dict.fromkeys(f"- {name}, {row.mode}: {escape(why)}" for row in rows for name, why in row.reasons.items())
    text = (
        f"LSTM, bfloat16, B {_SIZES.batch}, H {_SIZES.hidden_size}, T {_SIZES.steps:,}, as called: {OURS} from the inputs on, "
        f"{THEIRS} (its fused kernel) from ready pre-activations on; training: with the gradients of all leaves. Ratios with "
        f"their intervals (99 %, {MIN_PAIRS} pairs of blocks): over 1 {OURS} is faster. {OURS} is timed only where it is right "
        f"by the harness's rule, {THEIRS} also beyond its limit, which would be in its favour."
    )
    times = table(("mode", *figures), [[row.mode, *_figures(row)] for row in rows], figures)
    return document(["## Beside FlashRNN", text, times, "\n".join(reasons)])


def _figures(row: Row) -> Iterator[str]:
    yield from (significant(row.time_us[name][0], 4) if name in row.time_us else "-" for name in (OURS, THEIRS))
    yield from BARS[row.mode].cells(row.theirs_over_ours)
    yield "-" if row.share is None else limit_fraction(row.share) if row.share <= 1 else f"**{limit_fraction(row.share)}**"
