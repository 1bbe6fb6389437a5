"""Which tests a run leaves out."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import ci_only
from tests.helpers.ci_only import is_left_out

NUMBERS = range(300)


def item(number: int, **arguments: Any) -> Any:
    marker = SimpleNamespace(args=(3,))
    return SimpleNamespace(name=f"test_it[{number}]", get_closest_marker=lambda name: marker if name in arguments else None)


def run_here(**how: bool) -> set[int]:
    return {number for number in NUMBERS if not is_left_out(item(number, thinned=True), **how)}


def test_one_in_n_of_a_tests_parameters_is_left() -> None:
    assert 60 <= len(run_here(is_ci=False, is_whole=False)) <= 140


def test_three_commits_turns_run_each_parameter_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for turn in (7, 8, 9):
        monkeypatch.setattr(ci_only, "commit", lambda turn=turn: turn)
        parts.append(run_here(is_ci=True, is_whole=False))
    assert sum(map(len, parts)) == len(NUMBERS)
    assert set.union(*parts) == set(NUMBERS)


def test_all_leaves_nothing_out() -> None:
    assert run_here(is_ci=True, is_whole=True) == set(NUMBERS)


def test_what_is_marked_for_ci_alone_runs_there() -> None:
    assert is_left_out(item(0, ci_only=True), is_ci=False, is_whole=False)
    assert not is_left_out(item(0, ci_only=True), is_ci=True, is_whole=False)
    assert not is_left_out(item(0), is_ci=False, is_whole=False)


def test_a_commits_number_is_of_its_hash() -> None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no clone")
    assert f"{ci_only.commit():08x}" == done.stdout[:8]
