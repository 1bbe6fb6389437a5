"""The test items of cases that Hypothesis draws around one: results on them, and an implementation's properties."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from pytest_ecornn.cases.strategies import SizeLimits, property_corners
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.results.formatting import count
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.exploration import MAX_ROUNDS, PROFILES, CaseSearch, Profile, RefusalError
from pytest_ecornn.run.failures import rerunning
from pytest_ecornn.run.items.items import CheckItem, build_and_compare, check_not_refused
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.outcomes import RAISED, CheckFailed, SkipCheck, WrongCase
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
    _failures: dict[str, list[CheckFailed]] = field(default_factory=dict, compare=False)  # by kind

    def __str__(self) -> str:
        return f"{self.implementation.name}-{self.case if self.is_fixed else self._label}"

    @property
    def _label(self) -> str:
        """The name that cases drawn around `case` share: cell, dtype and, except on a CPU, device."""
        return "-".join([self.case.cell, self.case.dtype, *([self.case.device] if self.case.device != "cpu" else [])])

    @property
    def refusal(self) -> str:
        return self.session.refusal(self.implementation, self.case, is_drawn=not self.is_fixed)

    def empty_row(self) -> Row:
        row = super().empty_row()
        if not self.is_fixed:
            row.case, row.mode = f"{self._label}-{self.session.options.profile}", ""
        return row

    def rerun(self, case: Case | str = "", is_timed: bool = False, earlier: Sequence[Case] = ()) -> str:
        """The command that draws the cases once more, or repeats one of them."""
        if case or self.is_fixed:
            return super().rerun(case, False, earlier)
        name, device = self.implementation.name, self.case.device
        extra = f"{self.session.locator_options(self.implementation, False)} --ecornn-profile {self.session.options.profile}"
        extra += f" --ecornn-device {device}" if device != "cpu" else ""
        extra += " --ecornn-all-failures" if self.session.options.all_failures else ""
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
            raise CheckFailed(f"{self.implementation.name}: {error}") from error

    def note(self, kind: str, failure: CheckFailed) -> None:
        """Raises the failure, or keeps it where all of the row's are asked for."""
        if not self.session.options.all_failures:
            raise failure
        self._failures.setdefault(_NUMBER.sub("#", kind), []).append(failure)

    def raise_noted(self, row: Row) -> None:
        """Raises what was kept: each kind of failure, with one of its cases whole."""
        if not self._failures:
            return
        cases = {str(failure.case) for failures in self._failures.values() for failure in failures}
        kinds, of = count(len(self._failures), "kind"), count(row.examples, "case")
        lines = [f"{self.implementation.name}: {kinds} of failures, on {len(cases)} of {of}"]
        for failures in self._failures.values():
            first, *others = sorted(failures, key=lambda failure: len(str(failure.case)))
            lines += [str(first), *([f"  and on {len(others)} more, as {others[0].case}"] if others else [])]
        raise CheckFailed("\n".join(lines))


_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class DrawnItem(_AroundCase):
    """Verifies cases that Hypothesis draws around `case`: its cell, dtype and device."""

    kind, test = "drawn", "test_drawn_cases"

    @property
    def profile(self) -> Profile:
        return PROFILES[self.session.options.profile]

    def fill(self, row: Row) -> None:
        try:
            with self.drawing():
                self._draw(row)
        except CheckFailed:
            self.raise_noted(row)
            raise
        self.raise_noted(row)

    def _draw(self, row: Row) -> None:
        """Draws cases and checks each, then corners and boundaries that chance leaves out.

        Raises what `CaseSearch` does, and AssertionError where too few draws could have failed.
        """
        profile, check = self.profile, partial(self._check, row)
        search = CaseSearch(self.implementation, self.case, row, SizeLimits(profile.steps), self.number)
        for round in range(MAX_ROUNDS):
            search.run(profile.examples, check, round)
            few = {name: n for name, n in _informative(row).items() if n < profile.informative}
            if not few and row.examples:
                search.run_corners(check)
                if profile.boundaries is not None and not self.implementation.cls.costly_shapes:
                    search.run_boundaries(profile.boundaries, self.session.options.seed, check)
                return
        search.check_some_ran()
        raise AssertionError(
            f"too few informative draws of {row.examples}: {few}; expected {profile.informative} of each tensor"
        )

    def _check(self, row: Row, case: Case) -> None:
        """Counts each tensor by its name without layer and direction."""
        checks: list[TensorCheck] = []
        try:
            with self.session.lock.shared(), self.attributed_to(case):
                _, checks = build_and_compare(self.implementation, case)
        except CheckFailed as failure:
            self.note(str(failure).replace(str(case), ""), failure)
        if message := failed_tensors(self.implementation.name, case, checks):
            wrong = [check.tensor.partition("_l")[0] for check in checks if check.status == "failed"]
            self.note(" ".join(wrong), WrongCase(message, case))
        row.examples += 1
        for check in checks:
            row.count(check.tensor.partition("_l")[0], check.status != "uninformative")


def _informative(row: Row) -> dict[str, int]:
    return {name: row.informative.get(name, 0) for name in {**row.informative, **row.uninformative}}


@dataclass(frozen=True)
class PropertyItem(_AroundCase):
    """Checks properties on drawn cases, or on its own alone."""

    kind, test = "properties", "test_properties"
    _broken: list[properties.Property] = field(default_factory=list, compare=False)

    def fill(self, row: Row) -> None:
        if self.is_fixed:
            self.check_not_fatal()
            check_not_refused(self.implementation, self.case)
            self._check(self.case, row, TIMED_REPEATS if self.session.options.bench else FIXED_REPEATS)
            self.raise_noted(row)
            return
        with self.drawing():
            search = CaseSearch(self.implementation, self.case, row, SIZES, self.number)
            search.run(EXAMPLES[self.session.options.profile], lambda case: self._check(case, row))
            search.run_corners(lambda case: self._check(case, row), property_corners)
        self.raise_noted(row)
        search.check_some_ran()

    def _check(self, case: Case, row: Row, repeats: int = PropertyContext.num_repeats) -> None:
        """Counts the properties checked by name. After a failure, while its case is simplified, only that one is."""
        checked: dict[str, str] = {}
        with self.session.lock.shared():
            try:
                with self.attributed_to(case):
                    subject = PropertyContext(self.implementation.cls, case, repeats)
            except CheckFailed as failure:
                self.note(str(failure).replace(str(case), ""), failure)
            else:
                for one in self._broken or properties.PROPERTIES:
                    checked |= self._check_one(subject, one)
        row.examples += 1
        for name, reason in checked.items():
            row.count(name, not reason)

    def _check_one(self, subject: PropertyContext, one: properties.Property) -> dict[str, str]:
        """As `properties.check` returns. An error is told with the property and the layer that it was checked by."""
        name, case = self.implementation.name, subject.case
        try:
            with self.attributed_to(case, properties.PropertyViolation):
                return properties.check(subject, [one])
        except properties.PropertyViolation as broken:
            one, failure = broken.property, CheckFailed(f"{name} on {case}: {broken}", case)
        except WrongCase as wrong:
            doing = f"by a layer of {subject.last_built} when {one.name} was checked: {one.description}"
            is_verdict = wrong.__cause__ is None  # of the property
            failure = WrongCase(f"{name} on {case}: {wrong}" if is_verdict else f"{wrong}; {doing}", case)
        if not self.session.options.all_failures:
            self._broken[:] = [one]
        self.note(one.name, failure)
        return {}

    def examined(self, failure: CheckFailed) -> CheckFailed:
        """The failure, after what is nearer to its cause: a result that the reference contradicts, or another property."""
        if isinstance(failure, WrongCase) or not isinstance(failure.case, Case) or not self._broken:
            return super().examined(failure)
        if self._broken[0].name in properties.OWN_CAUSES:
            return failure
        with self.session.lock.shared(), suppress(*RAISED, SkipCheck, Unsupported), rerunning():
            if cause := self._nearer_cause(failure.case, self._broken[0]):
                return CheckFailed(f"{cause}\n{failure}", failure.case)
        return failure

    def _nearer_cause(self, case: Case, broken: properties.Property) -> str:
        name = self.implementation.name
        nearer = properties.nearer_cause(PropertyContext(self.implementation.cls, case), broken)
        is_unwritten = nearer is not None and nearer.property.name == "written"
        wrong = "" if is_unwritten else failed_tensors(name, case, build_and_compare(self.implementation, case)[1])
        return wrong or (f"{name} on {case}: {nearer}" if nearer and nearer.property.name != broken.name else "")

    def is_wrong(self, implementation: ImplementationInfo, case: Case) -> bool:
        """Whether a property fails: after a failure, that one."""
        check_not_refused(implementation, case)
        try:
            properties.check(PropertyContext(implementation.cls, case), self._broken or properties.PROPERTIES)
        except properties.PropertyViolation:
            return True
        return False
