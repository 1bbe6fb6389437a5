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


INI = """
[pytest]
ecornn_baseline =
    scan_cpu
    sequential
ecornn_budget = 2.5
ecornn_cases =
    seed
    sets/mine.csv
ecornn_report = out
"""


def given(pytester: pytest.Pytester, *arguments: str) -> options.Options:
    return options.Options.from_config(pytester.parseconfig("--ecornn-bench", "--ecornn-seed", "0", *arguments))


def test_the_ini_file_gives_what_was_not_typed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.path.joinpath("pytest.ini").write_text(INI)
    pytester.mkdir("below")
    monkeypatch.chdir(pytester.path / "below")
    found = given(pytester)
    assert (found.baselines, found.budget) == (("scan_cpu", "sequential"), 2.5)
    assert found.case_sets == ("seed", str(pytester.path / "sets/mine.csv"))
    assert found.report == pytester.path / "out"
    # What pytest has as the default, too.
    typed = ("--ecornn-budget", "10", "--ecornn-report", "/".join(["reports", "local"]), "--ecornn-cases", "smoke")
    found = given(pytester, *typed, "--ecornn-baseline", "torch_cpu")
    assert (found.baselines, found.budget, found.case_sets) == (("torch_cpu",), 10.0, ("smoke",))
    assert found.report == pytester.path / "below/reports/local"


def test_workers_have_the_value_of_the_process_that_started_them(pytester: pytest.Pytester) -> None:
    """pytest-xdist hands on values alone, among them a budget that was typed and is the default."""
    pytester.path.joinpath("pytest.ini").write_text(INI)
    for typed, budget in {(): 2.5, ("--ecornn-budget", "10"): 10.0}.items():
        config = pytester.parseconfig("--ecornn-bench", *typed)
        options.Options.from_config(config)
        worker = pytester.parseconfig("--ecornn-bench")
        vars(worker.option).update(json.loads(json.dumps({"ecornn_budget": config.option.ecornn_budget})))
        assert options.Options.from_config(worker).budget == budget


def test_weights_of_a_file_take_no_case_set_of_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("pytest.ini").write_text(INI)
    assert given(pytester, "--ecornn-state-dict", "weights.pt").cases == (options.DEFAULT_CASE_OF_STATE_DICT,)
    with pytest.raises(pytest.UsageError, match="got --ecornn-cases smoke"):
        given(pytester, "--ecornn-state-dict", "weights.pt", "--ecornn-cases", "smoke")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("ecornn_budget = 0", "ecornn_budget must be a number of seconds over 0, got 0.0"),
        ("ecornn_budget = long", "ecornn_budget: could not convert string to float: 'long'"),
        ("ecornn_report =", "ecornn_report: expected a path, got an empty one"),
        ("ecornn_cases = deepbank", "ecornn_cases: unknown case set 'deepbank'"),
        ("ecornn_baseline = no_such", "ecornn_baseline: unknown implementation 'no_such'"),
    ],
)
def test_a_wrong_ini_value_is_a_usage_error_that_names_it(foreign: Foreign, value: str, error: str) -> None:
    foreign.write("pytest.ini", f"[pytest]\n{value}\n")
    done = foreign.run_here("--ecornn-bench", check=4)
    assert f"ERROR: {error}" in done.stderr
    foreign.run_here(check=5)  # no run, no complaint


def test_a_resumed_run_finds_its_journal_where_the_ini_file_has_the_report(foreign: Foreign) -> None:
    foreign.write("pytest.ini", "[pytest]\necornn_report = out\n")
    run = ("--ecornn-verify", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE, "-k", "fixed")
    foreign.run(*run, check=0)
    header = json.loads((foreign.path / "out/journal.jsonl").read_text().partition("\n")[0])
    assert f"seed: {header['seed']};" in foreign.run(*run, "--ecornn-resume", check=0).stdout
