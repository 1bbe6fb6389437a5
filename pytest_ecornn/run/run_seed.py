"""The seed of a run: drawn once by the process that starts it, and the same in each of its workers and when it is resumed."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from pytest_ecornn.results import journal
from pytest_ecornn.run.process import worker_input

SEEDS = 2**32
INPUT_KEY = "ecornn_seed"  # in `worker_input`, and as "seed" in a journal's header
_OF_SHARDS = 0  # which know nothing of each other
_KEY = pytest.StashKey[int]()


def seed_of(config: pytest.Config) -> int:
    """The seed of this run. Raises UsageError for one that no run can have, or that differs from the resumed run's."""
    if _KEY not in config.stash:
        config.stash[_KEY] = _resolve(config)
    return config.stash[_KEY]


def line(seed: int, effect: str = "tries the same boundary sizes") -> str:
    """How the terminal states the seed. effect: what a further run with it does."""
    return f"seed: {seed}; --ecornn-seed {seed} {effect}"


def _resolve(config: pytest.Config) -> int:
    worker = worker_input(config)
    if INPUT_KEY in worker:
        return int(worker[INPUT_KEY])
    asked = config.getoption("--ecornn-seed")
    if asked is not None and not 0 <= asked < SEEDS:
        raise pytest.UsageError(f"--ecornn-seed must be a number from 0 to {SEEDS - 1}, got {asked}")
    begun = config.invocation_params.dir / config.getoption("--ecornn-report") / journal.NAME
    stored = _stored(begun) if config.getoption("--ecornn-resume") else None
    if None not in (asked, stored) and asked != stored:
        raise pytest.UsageError(f"--ecornn-seed: expected {stored}, which {begun} was begun with, got {asked}")
    if asked is None and config.getoption("--ecornn-shard"):
        asked = _OF_SHARDS
    if asked is None:
        asked = secrets.randbelow(SEEDS) if stored is None else stored
    return int(asked)


def _stored(path: Path) -> int | None:
    """The seed of the run that a journal belongs to; None where it says none. What is wrong with the file is told later."""
    try:
        with path.open(encoding="utf-8") as lines:
            seed = json.loads(lines.readline()).get("seed")
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return seed if isinstance(seed, int) and 0 <= seed < SEEDS else None
