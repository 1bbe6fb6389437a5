"""Shares of a run's rows: each row in one, and in the same one whatever else there is."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_ecornn.results.shard import Shard, parse_shard
from pytest_ecornn.run import run_seed
from pytest_ecornn.run.options import Options

ROWS = [f"scan_cpu-mingru-T{steps}-B2-H8-float32" for steps in range(1, 400)]


def shards(count: int) -> list[Shard]:
    return [parse_shard(f"{number}/{count}") for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_row_is_in_one_shard_and_all_have_about_as_many(count: int) -> None:
    sizes = Counter(str(shard) for row in ROWS for shard in shards(count) if shard.has(row))
    assert sizes.total() == len(ROWS)
    assert max(sizes.values()) < 1.5 * len(ROWS) / count


def test_a_row_is_in_the_same_shard_on_every_machine() -> None:
    assert [next(shard.number for shard in shards(4) if shard.has(row)) for row in ROWS[:8]] == [2, 2, 1, 4, 1, 4, 3, 3]


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1.0/4"])
def test_no_such_shard(text: str, pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig("--ecornn-verify", f"--ecornn-shard={text}")
    with pytest.raises(pytest.UsageError, match=rf"--ecornn-shard: expected I/N, I from 1 to N, got {text}"):
        Options.from_config(config)


def test_all_shards_draw_alike(pytester: pytest.Pytester) -> None:
    def seed(*arguments: str) -> int:
        return run_seed.seed_of(pytester.parseconfig("--ecornn-verify", *arguments))

    assert seed("--ecornn-shard", "1/4") == seed("--ecornn-shard", "2/4") == 0
    assert seed("--ecornn-shard", "1/4", "--ecornn-seed", "7") == 7
