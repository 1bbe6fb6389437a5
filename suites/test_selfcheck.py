"""The harness tries itself: what is planted must be caught for the reason that it states, and what is right must pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ecornn.selfcheck.plugin import PROPERTY, CorrectItem
from pytest_ecornn.selfcheck.trial import Trial

Record = Callable[[str, object], None]


def test_planted(ecornn_trial: Trial, record_property: Record) -> None:
    """A wrong kernel, or a cheat."""
    if reason := ecornn_trial.missing():
        pytest.skip(reason)
    record_property(PROPERTY, {"planted": ecornn_trial.kind, "name": str(ecornn_trial)})
    assert not (message := ecornn_trial.survived()), message


def test_correct(ecornn_correct: CorrectItem, record_property: Record) -> None:
    """Drawn cases of a right implementation."""
    row = ecornn_correct.finished()
    record_property(PROPERTY, {"name": str(ecornn_correct), "cases": row.examples})
    if row.status == "failed":
        pytest.fail(row.reason, pytrace=False)
