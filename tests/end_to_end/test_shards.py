"""Runs of each shard together have the rows of a run of all."""

from __future__ import annotations

from tests.helpers.foreign import Foreign

OPTIONS = (
    "--ecornn-verify", "--ecornn-profile", "quick", "--ecornn-seed", "0", "--ecornn-only", "sequential",
    *(part for steps in range(1, 7) for part in ("--ecornn-case", f"lstm-T{steps}-B2-H4-float32")),
)  # fmt: skip


def test_joined_shards_are_the_whole(foreign: Foreign) -> None:
    foreign.run(*OPTIONS, check=0)
    whole, parts = foreign.rows_by_key(), []
    for number in (1, 2):
        shard = "--ecornn-shard", f"{number}/2", "--ecornn-require", "sequential"
        done = foreign.run(*OPTIONS, *shard, "--ecornn-report", f"part{number}", check=0)
        assert "deselected" in done.stdout
        parts.append(f"part{number}")
    done = foreign.python("-m", "pytest_ecornn", "join", *parts, "--output", "reports/local")
    assert (done.returncode, done.stderr) == (0, "")
    joined = foreign.rows_by_key()
    assert joined.keys() == whole.keys()
    assert all(joined[key]["status"] == row["status"] for key, row in whole.items())


def test_another_shard_does_not_resume_one(foreign: Foreign) -> None:
    foreign.run(*OPTIONS, "--ecornn-shard", "1/2", check=0)
    done = foreign.run_here(*OPTIONS, "--ecornn-shard", "2/2", "--ecornn-resume", check=4)
    assert "shard: 1/2 and 2/2" in done.stderr
