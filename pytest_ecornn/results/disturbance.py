"""Criteria by which a row counts as disturbed by others, and their wording in reports."""

from __future__ import annotations

from math import inf

from pytest_ecornn.results.rows import Disturbance, Timing

CALM = 0.05  # of a block's time: what its threads may wait, for others, in a block that counts as undisturbed
_DISTURBED_BLOCKS = 0.1  # of all; a median does not feel fewer
_OTHERS = 0.03  # of the processors that a row may use: what others take at least where threads wait for them
_MENTIONED = 0.1  # of them: what others take where it is said, though no thread waited
_UNSEEN = 0.2  # of our own work, by threads whose waits are not known
_OUTSIDE = 0.05  # of the time: what the hypervisor or a quota may take, and others of a GPU
_TICK_SECONDS = 0.01  # the system counts others' work by these
_TICKS = 3.0  # a processor, by which a count may be off


def is_disturbed(found: Disturbance | None) -> bool:
    """Whether others may have shaped a column's times. Threads' waits alone do not tell: they wait for each other as well."""
    if found is None:
        return False
    is_waiting = found.disturbed > _DISTURBED_BLOCKS * found.blocks
    least = _OTHERS if is_waiting else inf if knows_waits(found) else _MENTIONED
    return _others(found) > least or outside_share(found) > _OUTSIDE


def knows_waits(found: Disturbance) -> bool:
    """Whether all of the threads were seen that may have waited."""
    return found.blocks > 0 and found.unseen <= _UNSEEN


def _others(found: Disturbance) -> float:
    """The share of the processors that other processes took; 0 where the system's counts are too coarse to tell."""
    share = found.others / max(1, found.processors)
    return share if share * found.seconds > _TICKS * _TICK_SECONDS else 0.0


def outside_share(found: Disturbance) -> float:
    """Share of every block's time lost to the hypervisor, a quota or other processes on the GPU, at most 1."""
    return min(1.0, found.stolen / max(1, found.processors) + found.throttled + found.gpu)


def describe(timing: Timing | None) -> str:
    """One sentence on a column that others disturbed, or might have; empty for others."""
    found = timing.disturbance if timing else None
    if found is None or not (is_disturbed(found) or _others(found) > _MENTIONED):
        return ""
    used = [
        (found.others, f"other processes took {found.others:.1f} of {_processors(found.processors)}"),
        (found.stolen, f"the hypervisor took {found.stolen:.1f} of {_processors(found.processors)}"),
        (found.throttled, f"a quota held the process for {found.throttled:.0%} of the time"),
        (found.gpu, f"other processes took {found.gpu:.0%} of the GPU"),
    ]
    causes = ", ".join(words for amount, words in used if amount >= 0.05)
    return f"{found.disturbed / max(1, found.blocks):.0%} of blocks disturbed: {causes or 'threads waited for a processor'}"


def _processors(count: int) -> str:
    return f"{count} processor" if count == 1 else f"{count} processors"
