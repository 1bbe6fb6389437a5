"""How a row may end: a refusal, a failure, or one of pytest's outcomes that an implementation raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from pytest_ecornn.contract import Case, Unsupported, skip_reason

# pytest.fail and pytest.xfail raise no Exception, lest a test catch them by chance.
RAISED = (Exception, SystemExit, pytest.fail.Exception)


class SkipCheck(Exception):
    """The implementation will not run the case, for the reason given."""


class CheckFailed(Exception):
    """The implementation is wrong, as the message says: on `case`, or as a whole row; `is_timed` where only timing shows it.

    earlier: the cases that must run before for it to be wrong.
    """

    def __init__(self, message: str, case: Case | str = "", is_timed: bool = False, earlier: Sequence[Case] = ()):
        super().__init__(message)
        self.case, self.is_timed, self.earlier = case, is_timed, earlier


class WrongCase(CheckFailed):
    """The implementation computes a wrong result of `case`, or raises there."""


@contextmanager
def skips_as_unsupported() -> Iterator[None]:
    """Raises Unsupported, with the reason, where pytest.skip or pytest.importorskip is called within it."""
    try:
        yield
    except pytest.skip.Exception as skip:
        raise Unsupported(skip_reason(skip)) from skip
