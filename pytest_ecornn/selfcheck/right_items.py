"""Items that must pass: right implementations, this project's and unusual ones in `correct/`, on cases of the run's seed.

A failure of one is a false alarm.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from math import ceil
from random import Random

from pytest_ecornn.contract import DTYPES, MODES, Case, cells
from pytest_ecornn.run import discovery
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.exploration import Profile
from pytest_ecornn.run.items.benchmark_items import BenchmarkItem
from pytest_ecornn.run.items.drawn_items import DrawnItem, PropertyItem
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.selfcheck import planting
from pytest_ecornn.selfcheck.trial_session import TRIAL, TrialSession

_KINDS_OF_A_LAYER = 2  # cells in a dtype that a run draws for each layer of `correct/`
_ROW_SECONDS = 0.02  # of a timed row


@dataclass(frozen=True)
class FalseAlarmItem(DrawnItem):
    """Verifies drawn cases of an implementation that is right."""

    examples: int = 1

    @property
    def profile(self) -> Profile:
        return Profile(self.examples, 0)


def right_items(seed: int, num_cases: int) -> list[CheckItem]:
    """Drawn cases, at least so many in all; and of each implementation the properties and a timed row of one cell and dtype."""
    implementations = right_implementations()
    drawn_items = [
        (implementation, base)
        for implementation, bases in implementations.items()
        for base in _drawn_bases(implementation, bases, seed)
    ]
    examples = ceil(num_cases / max(1, len(drawn_items)))
    options = replace(TRIAL, budget=_ROW_SECONDS, seed=seed)
    items: list[CheckItem] = [
        FalseAlarmItem(
            TrialSession(options), implementation, base, number=_number(seed, implementation, base), examples=examples
        )
        for implementation, base in drawn_items
    ]
    for implementation, bases in implementations.items():
        random = Random(f"{seed} {implementation.name}")
        base = random.choice(bases)
        items.append(PropertyItem(TrialSession(options), implementation, base, number=_number(seed, implementation, base)))
        items.append(BenchmarkItem(TrialSession(options), implementation, _row_case(implementation, base, random, seed)))
    return items


def right_implementations() -> dict[ImplementationInfo, list[Case]]:
    """The right implementations, which run on a CPU, and what they have `supported`; the layers of `correct/` last."""
    every = discovery.discover(map(planting.own_file, planting.layers(planting.CORRECT))).values()
    in_order = sorted(every, key=lambda implementation: bool(implementation.cli_option))
    return {implementation: bases for implementation in in_order if (bases := supported(implementation))}


def supported(implementation: ImplementationInfo) -> list[Case]:
    """The cases around which others may be drawn: one a cell and dtype."""
    bases = [Case(cell=cell, dtype=dtype, steps=4, batch=2, hidden_size=8) for cell in cells.names() for dtype in DTYPES]
    return [base for base in bases if implementation.nearest_supported(base, implementation.cls().refusal) is not None]


def _drawn_bases(implementation: ImplementationInfo, bases: list[Case], seed: int) -> list[Case]:
    """All of an own implementation; a few of a layer of `correct/`, others with each seed."""
    if not implementation.cli_option:
        return bases
    return Random(f"{implementation.name} {seed}").sample(bases, min(_KINDS_OF_A_LAYER, len(bases)))


def _row_case(implementation: ImplementationInfo, base: Case, random: Random, seed: int) -> Case:
    """A small case of the base's cell and dtype, to be timed."""
    wanted = replace(base, steps=6, batch=3, mode=random.choice(MODES), seed=seed)
    case = implementation.nearest_supported(wanted, implementation.cls().refusal)
    return base if case is None else case


def _number(seed: int, implementation: ImplementationInfo, base: Case) -> int:
    return zlib.crc32(f"{seed} {implementation.name} {base}".encode())
