"""Drawn cases: lets Hypothesis search one cell, dtype and device for a case on which an implementation is wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, reject, seed, settings

from pytest_ecornn.cases.boundaries import DEFAULT, QUICK, Effort, note, plan
from pytest_ecornn.cases.equal_sizes import equal_sizes
from pytest_ecornn.cases.sources.size_hints import size_hints
from pytest_ecornn.cases.sources.source_constants import source_constants
from pytest_ecornn.cases.strategies import MAX_STEPS, SizeLimits, cases, edge_cases, in_few_shapes
from pytest_ecornn.contract import Case, SupportedCases, Unsupported
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.discovery import ImplementationInfo


@dataclass(frozen=True)
class Profile:
    """examples: cases to draw for a cell in one dtype; informative: draws that each tensor needs in which it could have failed;
    steps: T times layers times directions at most.

    More rounds of as many cases are drawn while a tensor lacks them. boundaries: how many sizes are tried where kernels break.
    """

    examples: int
    informative: int
    steps: int = MAX_STEPS
    boundaries: Effort | None = None


MAX_ROUNDS = 4
MAX_REFUSALS = 50  # before any case is checked
SHRINK_SECONDS = 20.0
_REPRODUCED = settings(phases=(Phase.explicit, Phase.generate), database=None)
PROFILES = {
    "quick": Profile(8, 2, boundaries=QUICK),
    "default": Profile(50, 10, boundaries=DEFAULT),
    "thorough": Profile(125, 20, steps=512, boundaries=DEFAULT),
}


class RefusalError(Exception):
    """`unsupported` raised `error` on `case` instead of answering."""

    def __init__(self, case: Case, error: Exception):
        super().__init__(f"unsupported raised {type(error).__name__} on {case}")
        self.case, self.error = case, error


@dataclass
class CaseSearch:
    """Cases like `base` that an implementation runs; what it refuses is counted in `row`.

    The draws are the same for the same `number`, and the first that fails is not simplified; without one they are random.

    Raises Unsupported where it runs no such case, AssertionError where it refuses what it must support.
    """

    implementation: ImplementationInfo
    base: Case
    row: Row
    sizes: SizeLimits
    number: int | None = None

    def __post_init__(self) -> None:
        from pytest_ecornn.cases.required import REQUIRED_DOMAIN

        self._instance, self._turns = self.implementation.cls(), Counter[str]()
        required = REQUIRED_DOMAIN.get(self.implementation.name) if self.implementation.is_own else None
        self._required = required if required is not None and required.has_kind(self.base) else None
        self._reason = ""
        if self.implementation.nearest_supported(self.base, self._unsupported) is None:
            raise Unsupported(self._unsupported(self.base))

    def run(self, examples: int, check: Callable[[Case], None], round: int = 0) -> None:
        """Draws so many cases, others each `round`, and checks each.

        Raises what `check` raises on the simplest case that makes it fail.
        """
        base, patient = self.base, _ShrinkBudget(lambda case: self._is_checked(case, check))

        @settings(
            None if self.number is None else _REPRODUCED,
            max_examples=examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        @given(cases(self._domain, base.cell, base.dtype, base.device, self.sizes))
        def search(case: Case) -> None:
            if not patient(case) and not self._is_refusing_all:
                reject()

        (search if self.number is None else seed(self.number * MAX_ROUNDS + round)(search))()

    def run_corners(self, check: Callable[[Case], None], chosen: Callable[..., list[Case]] = edge_cases) -> None:
        """Checks the cases that chance leaves out."""
        for case in chosen(self._domain, self.base.cell, self.base.dtype, self.base.device):
            self._is_checked(case, check)

    def run_boundaries(self, effort: Effort, seed: int, check: Callable[[Case], None]) -> None:
        """Checks sizes around the constants of its sources and around powers of two, which the row says, and equal sizes."""
        constants = source_constants(self.implementation.path, self.implementation.cls.__module__)
        hints = size_hints(self.implementation.path)
        for planned in plan(self._domain, self.base, constants, effort, seed, self._nearest, hints):
            if self._is_checked(planned.case, check):
                note(planned, self.row.boundaries)
        for case in equal_sizes(self._domain, self.base, effort.modes, seed, self._nearest):
            self._is_checked(case, check)

    def _nearest(self, case: Case) -> Case | None:
        """The case, or the nearest that is supported; a refusal is counted."""
        cls = self.implementation.cls
        if cls.costly_shapes:
            case = in_few_shapes(case, self._turns[case.mode], self.sizes.min_size, cls.takes_resets)
            self._turns[case.mode] += 1
        case = cls.supported.nearest(case)
        reason = self._unsupported(case)
        if not reason:
            return case
        self._refused(case, reason)
        return self.implementation.nearest_supported(case, self._unsupported)

    @property
    def _domain(self) -> SupportedCases:
        return self._required or SupportedCases(
            (self.base.cell,), (self.base.dtype,), resets=self.implementation.cls.takes_resets
        )

    def _is_checked(self, case: Case, check: Callable[[Case], None]) -> bool:
        """Whether the case, or the nearest that is supported, was checked and not refused."""
        nearest = self._nearest(case)
        if nearest is None:
            return False
        try:
            check(nearest)
        except Unsupported as refusal:
            self._refused(nearest, str(refusal))
            return False
        return True

    def _unsupported(self, case: Case) -> str | None:
        try:
            return self._instance.refusal(case)
        except Exception as error:
            raise RefusalError(case, error) from error

    def _refused(self, case: Case, reason: str) -> None:
        assert self._required is None, f"{self.implementation.name} must support {case}, but says: {reason}"
        self.row.refused += 1
        self._reason = reason

    @property
    def _is_refusing_all(self) -> bool:
        """Whether more draws are of no use; to reject each of them is an error to Hypothesis, after hundreds."""
        return not self.row.examples and self.row.refused >= MAX_REFUSALS

    def check_some_ran(self) -> None:
        """Raises Unsupported where every case drawn was refused, with the last reason."""
        if not self.row.examples:
            raise Unsupported(f"build refused each of the {self.row.refused} cases drawn, the last: {self._reason}")


class _ShrinkBudget:
    """Checks each case once: to Hypothesis, a verdict that varies is an error. After a failure it has a while to simplify."""

    def __init__(self, check: Callable[[Case], bool]):
        self._check = check
        self._verdicts: dict[Case, bool | Exception] = {}
        self._end = float("inf")

    def __call__(self, case: Case) -> bool:
        """Whether the case was checked and not refused. Raises what its check did."""
        if case not in self._verdicts:
            if time.monotonic() > self._end:
                return True
            self._verdicts[case] = self._verdict(case)
        verdict = self._verdicts[case]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def _verdict(self, case: Case) -> bool | Exception:
        try:
            return self._check(case)
        except Exception as failure:
            self._end = min(self._end, time.monotonic() + SHRINK_SECONDS)
            return failure
