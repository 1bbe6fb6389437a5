"""The answer of a run: the fastest proven implementation of each case, its ratio to the baseline, and whether that is certain.

Terminal and report.md show these answers. Bold means the same there and in summary.svg: the implementation is faster than the
baseline by its verdict, or is the baseline and every other is slower by theirs, and no other proven one is in doubt. Two that
took turns are compared by their verdict; two that did not, by their intervals, which must not overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import inf, isnan

from pytest_ecornn.reporting import standing
from pytest_ecornn.results.rows import BaselineRatio, Row

_CERTAIN = ("faster", "others slower")


@dataclass(frozen=True)
class Entrant:
    """An implementation with a proven time of a case, and its ratios to baselines that are not known to be wrong.

    A baseline that is no row of the run has no interval of its own.
    """

    name: str
    time_us: float
    low_us: float
    high_us: float
    against: tuple[BaselineRatio, ...] = ()

    def ratio_to(self, name: str) -> BaselineRatio | None:
        return next((ratio for ratio in self.against if ratio.baseline == name), None)


@dataclass(frozen=True)
class Answer:
    """One case by one column of times.

    row: of the fastest; the case's first where it has none. fastest: None where nothing is proven. rivals: names of those that
    may be as fast. ratio: to the baseline, None of itself.
    verdict: faster, same, unclear, others slower (of a baseline), alone, not compared, or how the rows ended.
    """

    row: Row
    column: str
    fastest: Entrant | None
    rivals: tuple[str, ...]
    ratio: BaselineRatio | None
    verdict: str
    is_certain: bool

    @property
    def case(self) -> str:
        return self.row.case

    @property
    def is_baseline(self) -> bool:
        """Whether the fastest is what the others were compared with."""
        return self.ratio is None and self.verdict in ("others slower", "same", "unclear")

    @property
    def bold(self) -> str:
        """The one name that may be set in bold; empty where the fastest is in doubt."""
        return self.fastest.name if self.fastest and self.is_certain else ""


def answers(rows: Iterable[Row], unproven: Collection[standing.Key]) -> list[Answer]:
    """One a case that was to be timed, in their order; where a GPU's times by replay exist, another for them."""
    by_case = standing.by_case(row for row in rows if row.kind == "benchmark")
    return [of_case(of, unproven, column) for of in by_case.values() for column in standing.columns(of)]


def of_case(rows: list[Row], unproven: Collection[standing.Key], column: str = "timing") -> Answer:
    """The answer of the rows of one case, of which there is at least one."""
    entrants, bases = _entrants(rows, unproven, column), standing.baselines(rows)
    if not entrants:
        return Answer(rows[0], column, None, (), None, _ends(rows, unproven), False)
    unbeaten = [one for one in entrants if not _is_beaten(one, entrants)]
    fastest = min(unbeaten or entrants, key=lambda one: (isnan(one.time_us), one.time_us))
    others = [one for one in entrants if one is not fastest]
    rivals = tuple(one.name for one in unbeaten if one is not fastest and not _is_slower(one, fastest))
    is_ahead = all(_is_slower(other, fastest) for other in others)
    base = next((name for name in bases if name == fastest.name or fastest.ratio_to(name)), None)
    ratio = fastest.ratio_to(base) if base is not None else None
    verdict = _verdict(fastest, others, ratio, is_ahead)
    if not unbeaten:
        verdict = "unclear"  # each was slower than another
    row = next((row for row in rows if row.implementation == fastest.name), rows[0])
    return Answer(row, column, fastest, rivals, ratio, verdict, is_ahead and verdict in _CERTAIN)


def _entrants(rows: list[Row], unproven: Collection[standing.Key], column: str) -> list[Entrant]:
    """Rows with a proven time, then baselines that rows were compared with and that have no row here.

    What chose another implementation is no rival of the one that it runs.
    """
    timings = {row.implementation: standing.is_publishable(row, unproven, column) for row in standing.in_order(rows)}
    entrants = []
    for name, timing in timings.items():
        if timing is not None:
            proven = (one for one in timing.against if timings.get(one.baseline, timing) is not None)
            entrants.append(Entrant(name, timing.time_us, timing.low_us, timing.high_us, tuple(proven)))
    missing = {one.baseline: one.time_us for entrant in entrants for one in entrant.against if one.baseline not in timings}
    entrants = [*(Entrant(name, time_us, -inf, inf) for name, time_us in missing.items()), *entrants]
    timed = {one.name for one in entrants}
    choosers = {row.implementation for row in rows if row.delegate in timed}
    return [one for one in entrants if one.name not in choosers]


def _is_beaten(one: Entrant, entrants: Iterable[Entrant]) -> bool:
    """Whether a verdict says that another is faster."""
    names = {other.name for other in entrants}
    is_slower = any(ratio.verdict == "slower" and ratio.baseline in names for ratio in one.against)
    return is_slower or any(ratio.verdict == "faster" for other in entrants if (ratio := other.ratio_to(one.name)))


def _is_slower(other: Entrant, fastest: Entrant) -> bool:
    """Whether the other is slower for certain."""
    verdicts = list(_verdicts_between(other, fastest))
    if verdicts:
        return all(verdicts)
    for ratio in fastest.against:
        if common := other.ratio_to(ratio.baseline):
            return ratio.high < common.low
    return fastest.high_us < other.low_us


def _verdicts_between(other: Entrant, fastest: Entrant) -> Iterator[bool]:
    """Yields whether the other is slower, according to each comparison of the two by turns."""
    if ratio := other.ratio_to(fastest.name):
        yield ratio.verdict == "slower"
    if ratio := fastest.ratio_to(other.name):
        yield ratio.verdict == "faster"


def _verdict(fastest: Entrant, others: list[Entrant], ratio: BaselineRatio | None, is_ahead: bool) -> str:
    if ratio is not None:
        return ratio.verdict
    if not others:
        return "alone"
    verdicts = {one.verdict for other in others if (one := other.ratio_to(fastest.name))}
    if not verdicts:
        return "not compared"
    return "others slower" if is_ahead else "same" if verdicts <= {"same", "slower"} else "unclear"


def _ends(rows: list[Row], unproven: Collection[standing.Key]) -> str:
    """How the rows of a case ended of which none has a proven time: the worst word."""
    states = {standing.status(row, unproven) for row in rows}
    return next((word for word in ("failed", "unproven", "skipped") if word in states), "not timed")
