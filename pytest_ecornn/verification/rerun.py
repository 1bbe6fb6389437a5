"""The one command that repeats a failure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from pytest_ecornn.contract import Case


def rerun_command(name: str, cases: Iterable[Case | str], extra: str = "", *, is_timed: bool = False) -> str:
    """The command that runs an implementation on cases in their order: `is_timed` with their timing, else the checks alone."""
    each = "".join(f' --ecornn-case "{case}"' for case in cases)
    return f"pytest --ecornn-{'bench' if is_timed else 'verify'} --ecornn-only {name}{each}{extra}"


def rerun_test_command(name: str, test: str, label: str, extra: str = "") -> str:
    """The command that draws an implementation's cases of one test once more; `label` is the id of the set."""
    return f"pytest --ecornn-verify --ecornn-only {name} -k {shlex.quote(f'{test} and {name}-{label}')}{extra}"
