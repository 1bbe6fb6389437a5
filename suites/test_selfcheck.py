"""The harness tries itself: what is planted must be caught for the reason that it states, and what is right must pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ecornn.results.rows import AGAIN
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.selfcheck.plugin import PROPERTY
from pytest_ecornn.selfcheck.trial import Trial

Record = Callable[[str, object], None]


def test_planted(ecornn_trial: Trial, record_property: Record) -> None:
    """A wrong kernel, or a cheat."""
    if reason := ecornn_trial.missing():
        pytest.skip(reason)
    record_property(PROPERTY, {"planted": ecornn_trial.kind, "name": str(ecornn_trial)})
    assert not (message := ecornn_trial.survived()), message


def test_correct(ecornn_correct: CheckItem, record_property: Record) -> None:
    """Drawn cases, properties or a timed row of a right implementation."""
    row = ecornn_correct.finished()
    name, cases = f"{ecornn_correct.kind}-{ecornn_correct}", row.examples if ecornn_correct.kind == "drawn" else 0
    record_property(PROPERTY, {"name": name, "implementation": row.implementation, "cases": cases})
    if row.status != "passed":
        reason, _, _ = row.reason.partition(AGAIN)  # the plugin names the command
        pytest.fail(reason, pytrace=False)
