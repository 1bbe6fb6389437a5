"""The test items of cases that Hypothesis draws around one: results on them, and an implementation's properties."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pytest_ecornn.cases.strategies import SizeLimits, property_corners
from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.exploration import PROFILES, CaseSearch, Profile, RefusalError, run_drawn_cases
from pytest_ecornn.run.items.items import CheckItem, build_and_compare
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.outcomes import CheckFailed, SkipCheck, WrongCase
from pytest_ecornn.verification.properties import properties
from pytest_ecornn.verification.properties.subject import PropertyContext
from pytest_ecornn.verification.verification import failed_tensors

# Cases to draw of each cell in a dtype. Small ones: what properties find does not hide in size, and each takes many calls.
EXAMPLES = {"quick": 3, "default": 10, "thorough": 25}
SIZES = SizeLimits(steps=12, min_size=2, batch=9, hidden=65, inputs=33)
# Of one case alone, as many repeats as of three drawn ones; as many as of one where timing repeats it too.
FIXED_REPEATS, TIMED_REPEATS = 60, 20


@dataclass(frozen=True)
class _AroundCase(CheckItem):
    """Runs cases that Hypothesis draws around `case`, always the same ones of a `number`, or if it `is_fixed` it alone."""

    is_fixed: bool = False
    number: int | None = None
    test = ""  # by which pytest names it

    def __str__(self) -> str:
        return f"{self.found.name}-{self.case if self.is_fixed else self._label}"

    @property
    def _label(self) -> str:
        """The name that cases drawn around `case` share: cell, dtype and, except on a CPU, device."""
        return "-".join([self.case.cell, self.case.dtype, *([self.case.device] if self.case.device != "cpu" else [])])

    @property
    def is_drawn(self) -> bool:
        return not self.is_fixed

    def empty_row(self) -> Row:
        row = super().empty_row()
        if not self.is_fixed:
            row.case, row.mode = f"{self._label}-{self.session.options.profile}", ""
        return row

    def rerun(self, case: Case | str = "", is_timed: bool = False, earlier: Sequence[Case] = ()) -> str:
        """The command that draws the cases once more, or repeats one of them."""
        if case or self.is_fixed:
            return super().rerun(case, False, earlier)
        name, device = self.found.name, self.case.device
        extra = f"{self.session.locator_options(self.found, False)} --ecornn-profile {self.session.options.profile}"
        extra += f" --ecornn-device {device}" if device != "cpu" else ""
        return f"pytest --ecornn-verify --ecornn-only {name} -k {shlex.quote(f'{self.test} and {name}-{self._label}')}{extra}"

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Within it cases are drawn: an error of `unsupported` is the implementation's, what Hypothesis finds is a failure."""
        try:
            yield
        except RefusalError as refusal:
            with self.attributed_to(refusal.case):
                raise refusal.error from None
        except AssertionError as error:
            raise CheckFailed(f"{self.found.name}: {error}") from error


@dataclass(frozen=True)
class DrawnItem(_AroundCase):
    """Verifies cases that Hypothesis draws around `case`: its cell, dtype and device."""

    kind, test = "drawn", "test_drawn_cases"

    @property
    def profile(self) -> Profile:
        return PROFILES[self.session.options.profile]

    def fill(self, row: Row) -> None:
        def check(case: Case) -> list[TensorCheck]:
            with self.session.lock.shared(), self.attributed_to(case):
                _, comparisons = build_and_compare(self.found, case)
            if message := failed_tensors(self.found.name, case, comparisons):
                raise WrongCase(message, case)
            return comparisons

        with self.drawing():
            run_drawn_cases(self.found, self.case, self.profile, check, row, self.number, self.session.options.seed)


@dataclass(frozen=True)
class PropertyItem(_AroundCase):
    """Checks properties on drawn cases, or on its own alone."""

    kind, test = "properties", "test_properties"
    _broken: list[properties.Property] = field(default_factory=list, compare=False)

    def fill(self, row: Row) -> None:
        if self.is_fixed:
            self._check_fixed(row)
            return
        with self.drawing():
            search = CaseSearch(self.found, self.case, row, SIZES, self.number)
            search.run(EXAMPLES[self.session.options.profile], lambda case: self._check(case, row))
            search.run_corners(lambda case: self._check(case, row), property_corners)
        search.check_some_ran()

    def _check_fixed(self, row: Row) -> None:
        self.check_not_fatal()
        if reason := self.found.cls().refusal(self.case):
            raise SkipCheck(reason)
        self._check(self.case, row, TIMED_REPEATS if self.session.options.bench else FIXED_REPEATS)

    def _check(self, case: Case, row: Row, repeats: int = PropertyContext.num_repeats) -> None:
        """Counts the properties checked by name. After a failure, while its case is simplified, only that one is."""
        try:
            with self.session.lock.shared(), self.attributed_to(case, properties.PropertyViolation):
                subject = PropertyContext(self.found.cls, case, repeats)
                checked = properties.check(subject, self._broken or properties.PROPERTIES)
        except properties.PropertyViolation as broken:
            self._broken[:] = [broken.property]
            raise CheckFailed(f"{self.found.name} on {case}: {broken}", case) from broken
        row.examples += 1
        for name, reason in checked.items():
            counts = row.uninformative if reason else row.informative
            counts[name] = counts.get(name, 0) + 1
