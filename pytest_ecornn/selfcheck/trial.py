"""Runs a planted layer as the suite would run it, and decides whether it failed for the reason that its decorator states.

A wrong kernel of `mutants/` is verified on drawn cases. A trick of `exploits/` is timed on one case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

from pytest_ecornn.contract import Case, Implementation
from pytest_ecornn.results.rows import AGAIN, Row
from pytest_ecornn.run.discovery import DiscoveryError, ImplementationInfo, discover
from pytest_ecornn.run.items.benchmark_items import BenchmarkItem
from pytest_ecornn.run.items.drawn_items import DrawnItem, PropertyItem
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.selfcheck import planting
from pytest_ecornn.selfcheck.planting import Expectation
from pytest_ecornn.selfcheck.trial_session import TRIAL, TrialSession
from pytest_ecornn.verification.outcomes import CheckFailed

PACKAGES = {"fault": planting.MUTANTS, "cheat": planting.EXPLOITS}
CHEAT_SECONDS = 0.01  # of a cheat's first row, which has three rounds at least; of each further one twice as long
CHEAT_ROWS = 6  # at most, until one shows it: a short row may time no call in which it acts


# What the reason of a failed row says, by the check that is meant to have failed.
_REASONS = {
    # At most the values themselves, in whichever tensor it shows first, or a share of 16-bit elements.
    "equivalence: rounding": r"(relative error (0\.\d+|1|\d[\d.]*e-\d+)|share of elements .*) is over its limit",
    "equivalence: non-finite": r"expected (nan|-?inf), got|expected [^,]+, got (nan|-?inf)",
    "poison": r"expected -?\d[^,]*, got nan",
    "unchanged": r"expected .* unchanged by the call",
    "form": r"expected (a tensor of shape|the tuple|the final state).*got",
    "required": r"must support .*, but says",
}
# The same where no tensor decides. " or " stands between several checks, or details: `{}` is one that follows a colon.
_WHOLE_REASONS = {
    "property": r": {} is broken: ",
    "timed call": r"^a timed call returned a wrong result",
    "first call": r"^the first call, whose time is published, returned a wrong result",
    "unfinished": r"expected results finished when the call returns|^a timed call returned a wrong result",
    "overwritten": r"expected results that later calls leave alone",
    "moved": r"expected \w+ as it was, but a timed call has changed its memory",
    "threads": r"expected a call's work done when it returns",
    "changed": r": {}: expected .* as before",
    "asked": r"but it asked for {}$",
    "cost": r": cost: expected .* {}",
}
_NOTHING_GAINED = "gained 0 calls"  # the notes of a cheat that found no occasion
_DOUBTED = "baseline: "  # before what is said of an unclear verdict
_TENSOR = re.compile(r"^  (?P<tensor>[a-z_ ]+?)(_l\d+\w*)?( \(.*?\))?: (?P<problem>.*)")
_PROBLEM = re.compile(r"is over its limit|expected exactly 0|got nothing")
# On a case whose contents are not finite, a mistake shows as a NaN too many or too few.
_NOT_FINITE = re.compile(r"is wrong on \S+-(nan|infinite|negative_infinite)")
# Where an output is all zero, and so proves nothing, its last step shows as a final state.
_SAME = {"final h": "output"}


@dataclass(frozen=True)
class Planted:
    """A layer of `mutants/` or `exploits/` as an implementation, and what must see it."""

    implementation: ImplementationInfo
    expectation: Expectation

    @classmethod
    @cache
    def load(cls, layer: type[Implementation]) -> Planted:
        """Found as a third party's file is."""
        expectation, name = planting.expectation(layer), planting.name_of(layer)
        implementation = discover([planting.own_file(layer)])[name]
        if own := expectation.stands_for:
            implementation = replace(implementation, name=own, is_own=True)
        return cls(implementation, expectation)

    @property
    def needs_properties(self) -> bool:
        """Whether a property is to catch it."""
        return self.expectation.caught_by.startswith("property: ")

    @property
    def base(self) -> Case:
        expected = self.expectation
        options = {"steps": 4, "batch": 2, "hidden_size": 8, **expected.options}
        return Case(cell=expected.cell, dtype=expected.dtype, device=expected.device, mode=expected.mode, **options)


@dataclass(frozen=True)
class Trial:
    """A planted layer, and whether it is caught as it states. kind: fault or cheat. seed: of the run, and so of its cases."""

    layer: type[Implementation]
    kind: str = "fault"
    seed: int = 0

    def __str__(self) -> str:
        return planting.name_of(self.layer)

    @property
    def planted(self) -> Planted:
        return Planted.load(self.layer)

    def missing(self) -> str:
        """Why it cannot be tried here; empty where it can."""
        needs_gpu = planting.expectation(self.layer).device == "cuda" and not torch.cuda.is_available()
        return "needs a CUDA device" if needs_gpu else ""

    def survived(self) -> str:
        """How it was not caught; empty where it was."""
        caught_by = planting.expectation(self.layer).caught_by
        is_timed = caught_by == "nothing gained" or caught_by.startswith(_DOUBTED)
        for row in self._rows():
            if is_caught(row, caught_by) and (row.timing is None or is_timed):
                return ""
        reason = row.reason.partition(AGAIN)[0]  # the command names a file that ends with the process
        return f"expected {caught_by!r} to fail, got {row.status}: {reason or doubts(row) or row.notes}"

    def _rows(self) -> Iterator[Row]:
        try:
            planted = self.planted
        except DiscoveryError as error:
            yield _not_imported(self, str(error))
            return
        if self.kind == "fault":
            yield explored(planted, planted.expectation.profile, self.seed)
            return
        for number in range(CHEAT_ROWS):
            yield timed(planted, self.seed, CHEAT_SECONDS * 2**number)


def _not_imported(trial: Trial, reason: str) -> Row:
    expected = planting.expectation(trial.layer)
    return Row("benchmark", str(trial), "", expected.cell, expected.dtype, expected.device, expected.mode, "failed", reason)


def all_trials(*kinds: str, seed: int = 0) -> list[Trial]:
    """Trials of the given kinds; of all kinds, unless some are given."""
    return [Trial(layer, kind, seed) for kind in kinds or PACKAGES for layer in planting.layers(PACKAGES[kind])]


class _Drawn(DrawnItem):
    """Leaves out how a failure repeats: of a trial it is known."""

    def examined(self, failure: CheckFailed) -> CheckFailed:
        return failure


def explored(planted: Planted, profile: str, seed: int = 0) -> Row:
    """The row of drawn cases, finished: always the same ones of a seed."""
    return item(planted, profile, seed).finished()


def item(planted: Planted, profile: str, seed: int = 0) -> CheckItem:
    """The test item that is to fail on drawn cases."""
    kind = PropertyItem if planted.needs_properties else _Drawn
    own = TrialSession(replace(TRIAL, profile=profile, seed=seed))
    return kind(own, planted.implementation, replace(planted.base, mode="inference"), number=seed)


def timed(planted: Planted, seed: int = 0, seconds: float = CHEAT_SECONDS) -> Row:
    """The row of one case, finished: timed beside a plain loop, or its properties checked. The contents are the seed's."""
    own, case = TrialSession(replace(TRIAL, budget=seconds, seed=seed)), replace(planted.base, seed=seed)
    if planted.needs_properties:
        return PropertyItem(own, planted.implementation, case, is_fixed=True).finished()
    return BenchmarkItem(own, planted.implementation, case).finished()


def is_caught(row: Row, caught_by: str) -> bool:
    """Whether the row failed, by that check: of several wrong tensors, the first decides, which may be one or another."""
    if caught_by == "nothing gained":
        return row.status == "passed" and row.notes == _NOTHING_GAINED
    if caught_by.startswith(_DOUBTED):
        return row.status == "passed" and caught_by.removeprefix(_DOUBTED) in doubts(row)
    if row.status != "failed":
        return False
    check, _, detail = caught_by.partition(": ")
    if patterns := [_WHOLE_REASONS[name] for name in check.split(" or ") if name in _WHOLE_REASONS]:
        details = "|".join(map(re.escape, detail.split(" or ")))
        return bool(re.search("|".join(patterns).replace("{}", f"({details})"), row.reason, re.MULTILINE))
    first = next((match for line in row.reason.splitlines() if (match := _TENSOR.match(line))), None)
    if caught_by in _REASONS:
        return bool(re.search(_REASONS[caught_by], first[0] if first else row.reason))
    if first is None or re.search(_WHOLE_REASONS["timed call"], row.reason):
        return False
    if not _PROBLEM.search(first["problem"]) and not _NOT_FINITE.search(row.reason):
        return False
    return not {first["tensor"], _SAME.get(first["tensor"])}.isdisjoint(detail.split(" or "))


def doubts(row: Row) -> str:
    """Why the row's intervals are wider than its blocks', where no verdict says that it is faster."""
    against = row.timing.against if row.timing else []
    return "; ".join(one.doubt for one in against if one.doubt and one.verdict != "faster")
