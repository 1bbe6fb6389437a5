"""The self-check counts what was caught and what was wrongly accused, and keeps its score only when it is whole."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ecornn.contract import DTYPES, cells
from pytest_ecornn.reporting import markdown
from pytest_ecornn.results import score
from pytest_ecornn.run import run_seed
from pytest_ecornn.run.exploration import Profile
from pytest_ecornn.selfcheck import planting, public_cheats, right_items, trial
from pytest_ecornn.selfcheck.plugin import PROPERTY, SelfCheckPlugin
from pytest_ecornn.selfcheck.right_items import FalseAlarmItem
from tests.helpers.foreign import Foreign
from tests.helpers.reporting_samples import concluded, sample_rows, sample_run

SEED = 7


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path / "cache"))


def selfcheck(**options: Any) -> SelfCheckPlugin:
    given = SimpleNamespace(keyword="", markexpr="", lf=False, **options)
    config: Any = SimpleNamespace(option=given, args_source=pytest.Config.ArgsSource.ARGS, args=[], getoption=lambda name: 100)
    config.stash = pytest.Stash()
    config.stash[run_seed._KEY] = SEED
    return SelfCheckPlugin(config)


def report(passed: bool, **found: Any) -> Any:
    return SimpleNamespace(when="call", passed=passed, skipped=not found, user_properties=[(PROPERTY, found)] if found else [])


def ended(running: SelfCheckPlugin, status: int) -> Any:
    session: Any = SimpleNamespace(exitstatus=status)
    running.pytest_sessionfinish(session)
    return session


def filled(**options: Any) -> SelfCheckPlugin:
    running = selfcheck(**options)
    running.pytest_runtest_logreport(report(True, planted="fault", name="gates_swapped"))
    running.pytest_runtest_logreport(report(False, planted="fault", name="gates_hard_sigmoid"))
    running.pytest_runtest_logreport(report(True, planted="cheat", name="clock_patched"))
    running.pytest_runtest_logreport(report(True, name="drawn-a-mingru-float32", implementation="a", cases=29))
    running.pytest_runtest_logreport(report(False, name="drawn-b-lstm-float32", implementation="b", cases=3))
    running.pytest_runtest_logreport(report(True, name="properties-b-lstm-float32", implementation="b", cases=0))
    running.pytest_runtest_logreport(report(False))
    return running


def test_a_whole_run_leaves_its_score_for_reports() -> None:
    assert score.load_last() is None
    ended(filled(), pytest.ExitCode.TESTS_FAILED)
    found = score.load_last()
    assert found is not None
    assert found.families == {"fault": {"gates": [1, 2]}, "cheat": {"clock": [1, 1]}}
    assert (found.survivors, found.false_alarms) == (["gates_hard_sigmoid"], ["drawn-b-lstm-float32"])
    assert (found.correct, found.left_out, found.seed) == (32, 1, SEED)
    assert found.implementations == ["a", "b"]
    run = sample_run()
    run.score = found
    caught = "1 of 2 planted faults caught, 1 of 1 planted cheats caught"
    right = "1 false alarm in 32 verified cases of 2 right implementations (seed 7,"
    assert f"the harness itself: {caught}, {right}" in markdown.render(run, concluded(sample_rows())).replace("\\", "")


@pytest.mark.parametrize(
    ("status", "keyword"),
    [(pytest.ExitCode.INTERRUPTED, ""), (pytest.ExitCode.OK, "gates"), (pytest.ExitCode.INTERNAL_ERROR, "")],
)
def test_a_part_of_a_run_leaves_no_score(status: int, keyword: str) -> None:
    running = filled()
    running._config.option.keyword = keyword
    ended(running, status)
    assert score.load_last() is None
    assert "score not kept: not all was tried" in list(running._lines())


def test_a_score_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    running = filled()
    assert ended(running, pytest.ExitCode.OK).exitstatus == pytest.ExitCode.TESTS_FAILED
    assert any(line.startswith("score ERROR: cannot be kept") for line in running._lines())


def test_a_score_of_another_form_is_none() -> None:
    score.path().parent.mkdir()
    for text in ("", "[]", '{"taken": 1}'):
        score.path().write_text(text)
        assert score.load_last() is None


def test_right_implementations_share_the_cases_and_each_runs_some() -> None:
    items = right_items.right_items(1, 1000)
    names = {item.implementation.name for item in items}
    drawn = [item for item in items if isinstance(item, FalseAlarmItem)]
    assert {"sequential", "scan_cpu", "scan_torch", "torch_cpu"} < names
    assert names >= set(map(planting.name_of, planting.layers(planting.CORRECT)))
    assert all(item.profile == Profile(-(-1000 // len(drawn)), 0) for item in drawn)
    assert {item.implementation.name for item in drawn} == names
    for kind in ("properties", "benchmark"):
        assert sorted(item.implementation.name for item in items if item.kind == kind) == sorted(names)
    ids = [f"{item.kind}-{item}" for item in items]
    assert len(set(ids)) == len(ids)


def test_the_right_layers_run_every_cell_in_every_dtype() -> None:
    layers = [found for found in right_items.right_implementations() if found.cli_option]
    assert {(base.cell, base.dtype) for found in layers for base in right_items.supported(found)} == {
        (cell, dtype) for cell in cells.names() for dtype in DTYPES
    }


def test_each_seed_draws_other_cases_and_always_the_same() -> None:
    first, again, other = (
        {f"{item.kind}-{item}-{getattr(item, 'number', item.case)}" for item in right_items.right_items(seed, 100)}
        for seed in (1, 1, 2)
    )
    assert first == again
    assert not first & other


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ecornn-selfcheck", "--ecornn-bench"], "expected no --ecornn-bench"),
        (["--ecornn-selfcheck", "--ecornn-only", "scan_cpu"], "expected no --ecornn-only"),
        (["--ecornn-selfcheck", "--ecornn-correct-cases", "0"], "over 0, got 0"),
        (["--ecornn-correct-cases", "9"], "expected --ecornn-selfcheck beside it"),
    ],
)
def test_what_a_selfcheck_cannot_be_asked_is_a_usage_error(arguments: list[str], expected: str, foreign: Foreign) -> None:
    assert expected in foreign.run_here(*arguments, check=4).stderr


def test_a_planted_fault_is_tried_and_counted_from_an_empty_directory(foreign: Foreign) -> None:
    done = foreign.run("--ecornn-selfcheck", "-k", "gates_hard_sigmoid", check=0)
    assert "faults caught: gates 1/1" in done.stdout, done.stdout + done.stderr


def test_public_families_are_counted_and_stand_in_the_documents() -> None:
    found = score.MutationScore("2026-01-01", 1.0, "0", "")
    for is_caught in (True, False):
        found.add_planted("cheat", "clock_slowed", is_caught, public_cheats.families_of("clock_slowed"))
    found.add_planted("cheat", "memo_in_files", True, public_cheats.families_of("memo_in_files"))
    assert found.public == {"timer patched": [1, 2], "results replayed": [1, 1]}
    assert "1 of 2 families of public cheats caught" in found.one_line()
    assert "public cheats caught: results replayed 1/1, timer patched 1/2" in list(found.lines())
    page = (Path(__file__).parents[2] / "docs/how-it-verifies.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`.+`) \|$", page, re.M)
    assert {family: tuple(re.findall(r"`(\w+)`", names)) for family, names in listed} == public_cheats.FAMILIES
    planted = {str(one) for one in trial.all_trials()}
    assert all(planted.issuperset(names) for names in public_cheats.FAMILIES.values())
