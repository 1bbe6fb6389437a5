"""The test item that verifies drawn cases, and what all items of drawn cases share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.exploration import PROFILES, Profile, RefusalError, run_drawn_cases
from pytest_ecornn.run.items.items import CheckItem, build_and_compare
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.outcomes import CheckFailed, WrongCase
from pytest_ecornn.verification.rerun import rerun_test_command
from pytest_ecornn.verification.verification import failed_tensors


@dataclass(frozen=True)
class DrawnItem(CheckItem):
    """Verifies cases that Hypothesis draws around `case`: its cell, dtype and device; always the same ones of a `number`."""

    number: int | None = None
    kind, test = "drawn", "test_drawn_cases"

    def __str__(self) -> str:
        return f"{self.found.name}-{drawn_label(self.case)}"

    @property
    def is_drawn(self) -> bool:
        return True

    def empty_row(self) -> Row:
        return drawn_row(super().empty_row(), self.case, self.session.options.profile)

    def rerun(self, case: Case | str = "", is_timed: bool = False, earlier: Sequence[Case] = ()) -> str:
        return super().rerun(case, False, earlier) if case else rerun_drawn(self, self.test)

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

        try:
            run_drawn_cases(self.found, self.case, self.profile, check, row, self.number, self.session.options.seed)
        except RefusalError as refusal:
            with self.attributed_to(refusal.case):
                raise refusal.error from None
        except AssertionError as error:
            raise CheckFailed(f"{self.found.name}: {error}") from error


def drawn_label(case: Case) -> str:
    """The name that cases drawn around `case` share: cell, dtype and, except on a CPU, device."""
    return "-".join([case.cell, case.dtype, *([case.device] if case.device != "cpu" else [])])


def drawn_row(row: Row, case: Case, profile: str) -> Row:
    """The row as that of a set of drawn cases."""
    row.case, row.mode = f"{drawn_label(case)}-{profile}", ""
    return row


def rerun_drawn(item: CheckItem, test: str) -> str:
    """The command that draws an item's cases once more."""
    options, device = item.session.options, item.case.device
    extra = f" --ecornn-profile {options.profile}" + (f" --ecornn-device {device}" if device != "cpu" else "")
    return rerun_test_command(
        item.found.name, test, drawn_label(item.case), item.session.locator_options(item.found, False) + extra
    )
