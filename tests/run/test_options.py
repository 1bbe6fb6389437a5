"""A new option is one field of `Options`: pytest parses it, runs and their workers have it, and the documents list it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ecornn.run import options, session
from tests.helpers import samples
from tests.helpers.foreign import Foreign
from tests.tools import readme

PLUGIN = """
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_ecornn.run import options, session


@dataclass(frozen=True)
class WithWarmup(options.Options):
    warmup: int = options.option(
        "--ecornn-warmup", "Warming up", "Calls before the first block. Default: 3.",
        type=int, default=3, metavar="N", parse=options._over_0, setup=int,
    )


options.Options = session.Options = WithWarmup


def pytest_sessionfinish(session):
    run = session.config.pluginmanager.getplugin("ecornn-running").session
    place = "worker" if hasattr(session.config, "workerinput") else "controller"
    Path(place).write_text(str(run.options.warmup))
"""


@pytest.fixture
def foreign(foreign: Foreign) -> Foreign:
    foreign.write("warmup.py", PLUGIN)
    return foreign


def test_a_field_more_is_an_option_of_runs_and_their_workers(foreign: Foreign) -> None:
    run = ("--ecornn-verify", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE, "-k", "fixed", "-p", "warmup")
    foreign.run(*run, "-n", "1", "--ecornn-warmup", "5", check=0)
    assert [(foreign.path / place).read_text() for place in ("controller", "worker")] == ["5", "5"]
    journal = (foreign.path / "reports/local/journal.jsonl").read_text()
    assert json.loads(journal.partition("\n")[0])["setup"]["warmup"] == 5
    done = foreign.run(*run, "--ecornn-resume", check=4)
    assert "its rows cannot stand beside new ones (warmup: 5 and 3)" in done.stderr
    done = foreign.run(*run, "--ecornn-warmup", "0", check=4)
    assert "--ecornn-warmup must be a number over 0, got 0" in done.stderr
    done = foreign.run("-p", "warmup", "--ecornn-warmup", "5", check=4)
    assert "--ecornn-warmup expected --ecornn-verify or --ecornn-bench beside it" in done.stderr


def test_a_field_more_is_a_row_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (options, session):
        monkeypatch.setattr(module, "Options", options.Options)
    scope: dict[str, Any] = {"__name__": __name__}
    exec(PLUGIN, scope)
    tables = readme.options(scope["WithWarmup"])
    assert tables.endswith("| `--ecornn-warmup N` | 3 | Calls before the first block. |")
    assert tables.count("###") == readme.options().count("###") + 1


def test_options_of_no_run_are_the_parsers_defaults(pytester: pytest.Pytester) -> None:
    """A trial of the self-check has no configuration."""
    parsed = options.Options.from_config(pytester.parseconfig("--ecornn-seed", "0"))
    unset = options.Options()
    differ = {name for name in options.Options.declared() if getattr(parsed, name) != getattr(unset, name)}
    assert differ == {"report", "limits"}  # a path's folder; thresholds are equal to themselves alone
