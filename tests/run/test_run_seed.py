"""The seed of a run: given, drawn, passed on to workers, kept by a resumed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results import journal
from pytest_ecornn.run import run_seed


def config(pytester: pytest.Pytester, *arguments: str) -> pytest.Config:
    return pytester.parseconfig("--ecornn-verify", *arguments)


def begun(folder: Path, **header: Any) -> None:
    """Leaves the journal of an interrupted run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / journal.NAME).write_text(json.dumps({"schema_version": 1, **header}) + "\n")


def test_a_given_seed_is_that_of_the_run(pytester: pytest.Pytester) -> None:
    assert run_seed.seed_of(config(pytester, "--ecornn-seed", "0")) == 0


def test_one_is_drawn_once_a_run(pytester: pytest.Pytester) -> None:
    runs = [config(pytester) for _ in range(3)]
    drawn = [run_seed.seed_of(one) for one in runs]
    assert drawn == [run_seed.seed_of(one) for one in runs]
    assert len(set(drawn)) > 1
    assert all(0 <= seed < run_seed.SEEDS for seed in drawn)


def test_a_worker_has_the_seed_of_the_process_that_started_it(pytester: pytest.Pytester) -> None:
    first, worker = config(pytester), config(pytester)
    worker.workerinput = {run_seed.INPUT_KEY: run_seed.seed_of(first)}  # type: ignore[attr-defined]
    assert run_seed.seed_of(worker) == run_seed.seed_of(first)


@pytest.mark.parametrize("seed", ["-1", str(2**32)])
def test_a_seed_out_of_range_is_a_usage_error(pytester: pytest.Pytester, seed: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"--ecornn-seed must be a number from 0 to 4294967295, got {seed}"):
        run_seed.seed_of(config(pytester, "--ecornn-seed", seed))


def test_a_resumed_run_keeps_its_seed(pytester: pytest.Pytester) -> None:
    begun(pytester.path / "report", seed=41)
    report = ("--ecornn-report", "report")
    assert run_seed.seed_of(config(pytester, *report, "--ecornn-resume")) == 41
    assert run_seed.seed_of(config(pytester, *report, "--ecornn-resume", "--ecornn-seed", "41")) == 41
    assert run_seed.seed_of(config(pytester, *report, "--ecornn-seed", "5")) == 5
    with pytest.raises(pytest.UsageError, match=r"expected 41, which .*journal\.jsonl was begun with, got 5"):
        run_seed.seed_of(config(pytester, *report, "--ecornn-resume", "--ecornn-seed", "5"))


@pytest.mark.parametrize("header", ["", "[]", "{", '{"seed": "many"}', '{"seed": -1}'])
def test_a_journal_that_says_no_seed_has_none(pytester: pytest.Pytester, header: str) -> None:
    begun(pytester.path / "report")
    (pytester.path / "report" / journal.NAME).write_text(header)
    assert 0 <= run_seed.seed_of(config(pytester, "--ecornn-report", "report", "--ecornn-resume")) < run_seed.SEEDS
