"""No run passes by running nothing: an implementation that skips, or that a setting leaves out, is a row with its reason."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign, only

VERIFY = ("--ecornn-verify", "--ecornn-implementations", "kernels", "--ecornn-case", samples.CASE)
IMPORT = "pytest.importorskip('no_such_module')"
# Where a layer may end its test: the text before which the call is written, in the harness's own hands each time.
UNSUPPORTED, BUILD, CALL = "        if case.cell !=", "        def layer(", "            w_ih, w_hh,"


def ending(place: str, call: str) -> str:
    """The source of a right implementation that makes the call before `place`."""
    indent = " " * (len(place) - len(place.lstrip()))
    return "import pytest\n" + samples.RIGHT.replace(place, f"{indent}{call}\n{place}", 1)


def rows(foreign: Foreign) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows of the report by kind and implementation."""
    return {(row["kind"], row["implementation"]): row for row in foreign.report()["rows"]}


def outcomes_in_junit(foreign: Foreign) -> dict[str, str]:
    """By test id, what JUnit's XML says of the test: skipped, failure, or nothing."""
    return {name: next((one.tag for one in case if one.tag != "properties"), "") for name, case in foreign.junit().items()}


def test_a_skip_in_a_layer_is_a_row_with_its_reason_and_a_failure_where_required(foreign: Foreign) -> None:
    reasons = {
        "in_unsupported": (UNSUPPORTED, "pytest.skip('not on this machine')", "not on this machine"),
        "in_build": (BUILD, IMPORT, "could not import 'no_such_module'"),
        "in_call": (CALL, "pytest.skip()", "pytest.skip was called without a reason"),
    }
    for name, (place, call, _) in reasons.items():
        foreign.write(f"kernels/{name}.py", ending(place, call))
    done = foreign.run(*VERIFY, *only(*reasons), "--junitxml", "junit.xml", "--ecornn-require", "in_build", check=1)
    results, in_junit = rows(foreign), outcomes_in_junit(foreign)
    for name, (_, _, reason) in reasons.items():
        for kind, test in (("fixed", "test_fixed_case"), ("properties", "test_properties")):
            is_required = name == "in_build"
            row = results[kind, name]
            assert (row["status"], reason in row["reason"]) == ("failed" if is_required else "skipped", True)
            test_id = "test_unsupported[in_unsupported]" if name == "in_unsupported" else f"{test}[{name}-{samples.CASE}]"
            assert in_junit[test_id] == ("failure" if is_required else "skipped")
    assert "in_build is required, but skipped: could not import 'no_such_module'" in done.stdout


TRAINS_ALONE = f"        if case.mode == 'inference':\n            return 'trains alone'\n{UNSUPPORTED}"


def test_drawn_cases_of_a_layer_that_skips_or_trains_alone(foreign: Foreign) -> None:
    foreign.write("kernels/skips.py", ending(BUILD, IMPORT))
    foreign.write("kernels/trains.py", samples.RIGHT.replace(UNSUPPORTED, TRAINS_ALONE, 1))
    options = ["--ecornn-implementations", "kernels", *only("skips", "trains"), "--ecornn-profile", "quick"]
    foreign.run("--ecornn-verify", *options, "-k", "skips-lstm-float32 or trains-lstm-float32", check=0)
    for kind in ("drawn", "properties"):
        skips, trains = (rows(foreign)[kind, name] for name in ("skips", "trains"))
        assert [(row["status"], row["examples"] > 0) for row in (skips, trains)] == [("skipped", False), ("passed", True)]
        assert "could not import 'no_such_module'" in skips["reason"]


def test_an_outcome_other_than_a_skip_is_a_failed_row(foreign: Foreign) -> None:
    raised = {"xfail": "XFailed", "fail": "Failed", "exit": "Exit"}
    places = {"unsupported": UNSUPPORTED, "build": BUILD, "call": CALL}
    named = {f"{outcome}_in_{place}": outcome for outcome in raised for place in places}
    for name, outcome in named.items():
        foreign.write(f"kernels/{name}.py", ending(places[name.rpartition("_")[2]], f"pytest.{outcome}('enough')"))
    foreign.run(*VERIFY, *only(*named), "--junitxml", "junit.xml", check=1)
    results, in_junit = rows(foreign), outcomes_in_junit(foreign)
    for name, outcome in named.items():
        row = results["fixed", name]
        assert row["status"] == "failed"
        assert f"expected a result or Unsupported, got {raised[outcome]} at {name}.py:" in row["reason"]
        assert in_junit[f"test_fixed_case[{name}-{samples.CASE}]"] == "failure"


def test_baselines_that_skip_or_raise_leave_their_candidates_rows(foreign: Foreign) -> None:
    ends = {
        "skips": (BUILD, IMPORT, ""),
        "gives_up": (CALL, "pytest.xfail('never')", "it raised XFailed"),
        "raises": (CALL, "raise RuntimeError('worn out')", "it raised RuntimeError"),
    }
    baselines = [argument for name in ends for argument in ("--ecornn-baseline", name)]
    for name, (place, call, _) in ends.items():
        foreign.write(f"kernels/{name}.py", ending(place, call))
    options = ["--ecornn-implementations", "kernels", *baselines, *only("sequential"), "--ecornn-case", samples.CASE]
    foreign.run("--ecornn-bench", *options, *QUICK, check=0)
    row = rows(foreign)["benchmark", "sequential"]
    assert row["timing"]["time_us"] > 0
    for name, (_, _, words) in ends.items():
        assert f"not compared with {name}: {words}" in row["notes"]


def test_a_skip_from_outside_a_row_is_a_row_and_a_failure_where_required(foreign: Foreign) -> None:
    """A conftest.py that skips tests which it does not know: here by a marker, and before they are set up."""
    foreign.write("kernels/mine.py", samples.RIGHT)
    foreign.write(
        "conftest.py",
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        if 'torch_cpu' in item.name:\n            item.add_marker(pytest.mark.skip(reason='not today'))\n"
        "        if 'mine' in item.name:\n            item.add_marker(pytest.mark.xfail(run=False, reason='never'))\n",
    )
    foreign.run(*VERIFY, *only("mine", "torch_cpu"), "--ecornn-require", "mine", check=1)
    results = rows(foreign)
    assert (results["fixed", "torch_cpu"]["status"], results["fixed", "mine"]["status"]) == ("skipped", "failed")
    assert results["fixed", "torch_cpu"]["reason"] == "not today"
    assert "mine is required, but skipped" in results["fixed", "mine"]["reason"]


def test_a_required_implementation_without_a_row_fails_the_run(foreign: Foreign) -> None:
    done = foreign.run("--ecornn-verify", *("--ecornn-case", samples.CASE), "-k", "torch_cpu", "--ecornn-require", "sequential")
    assert done.returncode == 1
    assert "ERROR: sequential is required, but no row of it ran" in done.stdout


@pytest.mark.parametrize(
    ("ini", "arguments", "name"),
    [
        ("", ["--ecornn-only", "sequential"], "--ecornn-only"),
        ("", [f"--ecornn-case={samples.CASE}"], "--ecornn-case"),
        ("", ["--ecornn-implementations", "kernels"], "--ecornn-implementations"),
        ("", ["--ecornn-shard", "1/2"], "--ecornn-shard"),
        ("--ecornn-require nobody", [], "--ecornn-require"),
    ],
)
def test_an_option_of_a_run_without_a_run_is_a_usage_error(foreign: Foreign, ini: str, arguments: list[str], name: str) -> None:
    foreign.write("pytest.ini", f"[pytest]\naddopts = {ini}\n")
    foreign.write("test_own.py", "def test_own():\n    pass\n")
    done = foreign.run_here(*arguments, check=4)
    assert f"ERROR: {name} expected --ecornn-verify or --ecornn-bench beside it" in done.stderr


def test_settings_in_the_ini_file_are_no_error_without_a_run(foreign: Foreign) -> None:
    foreign.write("pytest.ini", "[pytest]\naddopts = --ecornn-budget 2 --ecornn-isolate\n")
    foreign.write("test_own.py", "def test_own():\n    pass\n")
    foreign.run_here(check=0)


def test_a_named_case_that_is_timed_has_its_own_properties_checked(foreign: Foreign) -> None:
    """Wrong on what has gaps between its rows, which the timed calls are not given."""
    call = "            x = x if x.is_contiguous() else 2 * x\n"
    foreign.write("kernels/mine.py", samples.RIGHT.replace(CALL, call + CALL, 1))
    options = ["--ecornn-implementations", "kernels", "--ecornn-only", "mine", "--ecornn-case", samples.CASE]
    foreign.run("--ecornn-bench", *options, *QUICK, check=1)
    results = rows(foreign)
    assert "mine on lstm-T6-B3-H8-float32: layouts is broken" in results["properties", "mine"]["reason"]
    assert results["benchmark", "mine"]["status"] == "unproven"


NARROW = """
from pytest_ecornn.implementations.sequential import Sequential

class Narrow(Sequential):
    def unsupported(self, case, device):
        if {condition}:
            return super().unsupported(case, device)
        return "another export, please"
"""
EXPORTED = "case.bidirectional and case.projected and not case.training and case.cell == 'gru' and case.dtype == 'float32'"
FIXED = f"{EXPORTED} and (case.steps, case.batch, case.hidden_size) == (21, 6, 54)"
NOTHING = "nothing was verified: {count} skipped (another export, please), of --ecornn-only mine {cases} --ecornn-device cpu"


@pytest.mark.parametrize("condition", [EXPORTED, FIXED], ids=["options", "sizes"])
def test_cases_are_drawn_within_what_an_implementation_runs(foreign: Foreign, condition: str) -> None:
    foreign.write("mine.py", NARROW.format(condition=condition))
    options = ["--ecornn-implementations", "mine.py", "--ecornn-only", "mine", "--ecornn-profile", "quick"]
    foreign.run("--ecornn-verify", *options, "-k", "gru", check=0)
    statuses = {(row["kind"], row["dtype"]): row["status"] for row in foreign.report()["rows"] if row["cell"] == "gru"}
    assert statuses["drawn", "float32"] == statuses["properties", "float32"] == "passed"
    assert statuses["fixed", "float32"] == statuses["drawn", "float64"] == "skipped"


def test_a_run_that_skips_every_row_is_no_success_and_names_a_case_that_would_run(foreign: Foreign) -> None:
    foreign.write("mine.py", NARROW.format(condition=EXPORTED))
    options = ["--ecornn-verify", "--ecornn-implementations", "mine.py", "--ecornn-only", "mine"]
    done = foreign.run(*options, "--ecornn-case", "lstm-T3-B2-H4-float32", check=5)
    cases = "--ecornn-case lstm-T3-B2-H4-float32"
    assert f"ERROR: {NOTHING.format(count='2 rows', cases=cases)}" in done.stdout
    advice = "nothing was verified of mine: it runs gru-T4-B2-H8-float32-bidirectional-projected: pytest --ecornn-verify "
    assert advice in done.stdout
    (command,) = [line.partition(": pytest ")[2] for line in done.stdout.splitlines() if line.startswith(advice)]
    assert "1 passed" in foreign.run(*shlex.split(command), "-k", "fixed", check=0).stdout


def test_a_run_that_times_nothing_is_no_success_though_drawn_cases_passed(foreign: Foreign) -> None:
    foreign.write("mine.py", NARROW.format(condition="case.cell == 'gru' and case.bidirectional"))
    options = ["--ecornn-implementations", "mine.py", "--ecornn-only", "mine", "-k", "mine-gru", "--ecornn-profile", "quick"]
    done = foreign.run("--ecornn-bench", *options, *QUICK, check=5)
    assert {row["status"] for row in foreign.report()["rows"] if row["kind"] == "drawn"} == {"passed"}
    asked = "--ecornn-only mine --ecornn-cases smoke --ecornn-device cpu -k mine-gru"
    assert f"ERROR: nothing was timed: 2 rows skipped (another export, please), of {asked}" in done.stdout
    assert "mine: it runs gru-T35-B16-H128-float32-bidirectional-state: pytest --ecornn-bench --ecornn-only mine" in done.stdout


def test_a_run_of_what_runs_nothing_says_so(foreign: Foreign) -> None:
    foreign.write("mine.py", NARROW.format(condition="False"))
    options = ["--ecornn-verify", "--ecornn-implementations", "mine.py", "--ecornn-only", "mine"]
    done = foreign.run(*options, "--ecornn-shard", "1/2", check=5)
    assert "no case was found that it runs here: another export, please" in done.stdout


def test_one_that_skips_everything_beside_one_that_runs_is_named(foreign: Foreign) -> None:
    foreign.write("mine.py", NARROW.format(condition="case.cell == 'gru'"))
    foreign.write("other.py", samples.RIGHT)
    sources = ["--ecornn-implementations", "mine.py", "--ecornn-implementations", "other.py", *only("mine", "other")]
    done = foreign.run("--ecornn-verify", *sources, "--ecornn-case", samples.CASE, check=0)
    assert "nothing was verified of mine: it runs gru-T4-B2-H8-float32: pytest" in done.stdout


def test_a_shard_whose_rows_are_skipped_passes_where_another_has_rows_that_run(foreign: Foreign) -> None:
    foreign.write("mine.py", samples.RIGHT)
    cases = [argument for cell in ("lstm", "gru", "rnn_tanh") for argument in ("--ecornn-case", f"{cell}-T3-B2-H4-float32")]
    options = ["--ecornn-verify", "--ecornn-implementations", "mine.py", "--ecornn-only", "mine", *cases]
    statuses = []
    for number in range(1, 5):
        done = foreign.run(*options, "--ecornn-shard", f"{number}/4")
        statuses.append({row["status"] for row in foreign.report()["rows"]} if done.returncode != 5 else set())
    assert {"skipped"} in statuses
    assert any("passed" in found for found in statuses)
