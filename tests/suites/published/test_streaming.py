"""The page of single steps on a CPU: candidates are judged first, two tiny cases are measured, tables are of stored rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import stored, streaming
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, Unavailable
from pytest_ecornn.suites.published.streaming_parts import stream_calls, stream_steps
from pytest_ecornn.suites.published.streaming_parts.stream_calls import (
    BFLOAT16,
    BOUND,
    JAX,
    MODULE,
    NAMES,
    NOT_INSTALLED,
    ONNX,
    OUT,
    TORCH,
    WRONG,
    StreamCall,
)  # fmt: skip
from pytest_ecornn.suites.published.streaming_parts.stream_steps import CASES, NAMED, Row, StepTime, StreamCase
from tests.helpers.studies import cells_of

ABSENT = tuple(stream_calls._NEEDED)
PRESENT = tuple(name for name in NAMES if name not in ABSENT)
TINY = (StreamCase("lstm", 8), StreamCase("gru", 5, 2, "denoising", layers=2, input_size=3))


@pytest.fixture
def without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_calls, "find_spec", lambda package: None)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_ROUNDS": 3, "_BLOCK_US": 50.0, "_MIN_CALLS": 20, "_CLOCKED_CALLS": 40, "_CHUNKS": 2}.items():
        monkeypatch.setattr(stream_steps, name, value)


# Cases.


def test_cases_have_a_name_each_and_those_of_bars_come_first() -> None:
    labels = [str(case) for case in CASES]
    assert len(set(labels)) == len(labels) == 31
    assert set(NAMED) <= set(CASES)
    assert str(NAMED[1]) == "lstm 2 x 8, I 1, B 1 (guitar amplifier)"
    plain = {(case.cell, case.hidden_size) for case in CASES[:13] if case.is_plain}
    assert plain == {(cell, hidden) for cell in ("lstm", "gru") for hidden in (8, 32, 64, 128, 256, 512)}
    assert not any(case.is_plain for case in CASES[13:])


# The judgement.


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("case", TINY, ids=str)
def test_a_candidate_is_right_on_carried_steps(name: str, case: StreamCase) -> None:
    with torch.no_grad():
        call = case.problem().make(name)
    assert [tuple(state.shape) for state in call.results()[1]] == [(case.layers, case.batch, case.hidden_size)] * (
        1 + (case.cell == "lstm")
    )


@pytest.mark.parametrize("name", ABSENT)
@pytest.mark.parametrize("case", TINY, ids=str)
def test_other_people_s_steps_are_right(name: str, case: StreamCase) -> None:
    for package in stream_calls._NEEDED[name]:
        pytest.importorskip(package)
    with torch.no_grad():
        assert case.problem().make(name).x.shape[0] == case.batch


def forgetting(problem: Problem) -> StreamCall:
    """Each step starts from the initial state."""
    call = stream_calls._MAKERS[OUT](problem)

    def step() -> None:
        for state, initial in zip(call.results()[1], problem.state, strict=True):
            state.copy_(initial)
        call.step()

    return StreamCall(call.x, step, call.results)


def rounded(problem: Problem) -> StreamCall:
    """Weights are rounded unasked."""
    return stream_calls._MAKERS[BFLOAT16](problem)


@pytest.mark.parametrize("wrong", [forgetting, rounded])
def test_what_is_wrong_has_no_time_and_says_why(
    wrong: Callable[[Problem], StreamCall],
    short: None,
    without_peers: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(stream_calls._MAKERS, BOUND, wrong)
    (row,) = stream_steps.measure(time.monotonic() + 60, cases=TINY[:1])
    assert row.reasons == {**dict.fromkeys(ABSENT, NOT_INSTALLED), BOUND: WRONG}
    assert row.times.keys() == {*PRESENT} - {BOUND}
    assert f"{BOUND} is wrong on lstm-T20-B1-H8-float32-state:\n  output" in capsys.readouterr().out


def test_weights_that_are_not_rounded_are_wrong_where_rounded_ones_are_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stream_calls._MAKERS, BFLOAT16, stream_calls._MAKERS[BOUND])
    with pytest.raises(Unavailable, match=WRONG), torch.no_grad():
        TINY[0].problem().make(BFLOAT16)


# A run.


def test_a_run_measures_every_candidate_and_goes_on(short: None, without_peers: None, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    plan = streaming.make_plan(TINY)
    plan.run(tmp_path, 0.0, ["steps"])
    assert plan.lacking(tmp_path / "streaming.json") == ["steps"]
    assert f"- lstm 8, B 1, all: {NOT_REACHED}" in (tmp_path / "streaming.md").read_text()
    plan.run(tmp_path, 60.0, ["steps"], tmp_path / "streaming.json")
    rows = stored.load(tmp_path / "streaming.json").rows["steps"]
    assert [row.case for row in rows] == list(TINY)
    for row in rows:
        assert row.times.keys() == set(PRESENT)
        assert row.reasons == dict.fromkeys(ABSENT, NOT_INSTALLED)
        assert row.times[TORCH].over == {TORCH: Ratio(1.0, 1.0, 1.0)}
        for taken in row.times.values():
            assert 0 < taken.percentiles_us[0] <= taken.percentiles_us[1] <= taken.percentiles_us[2]
            assert 20 <= taken.calls <= 40
            assert taken.tail >= 1
    text = (tmp_path / "streaming.md").read_text()
    assert [line[3] for line in cells_of(text, "lstm 8, B 1")[:3]] == [NOT_INSTALLED] * 3
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, True)
    plan.run(tmp_path, 60.0, ["steps"], tmp_path / "streaming.json")
    assert stored.load(tmp_path / "streaming.json").rows["steps"] == rows


def test_the_command_needs_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert streaming.main(["--output", str(tmp_path), "--seconds", "0"]) == 0
    assert len(json.loads((tmp_path / "streaming.json").read_text())["rows"]["steps"]) == len(CASES)
    assert f"{len(CASES)} not reached" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        streaming.main(["--output", str(tmp_path), "--resume", str(tmp_path / "none.json")])
    assert f"{tmp_path}/none.json: cannot be read" in capsys.readouterr().err


# Tables.


def step_time(time_us: float, tail: float = 2.0) -> StepTime:
    over = {name: Ratio(other / time_us, 0.9 * other / time_us, 1.1 * other / time_us) for name, other in BASE_US.items()}
    return StepTime((time_us, 0.9 * time_us, 1.1 * time_us), over, (time_us, 1.5 * time_us, tail * time_us), 10_000)


BASE_US = {TORCH: 200.0, ONNX: 20.0}


def row(hidden: int, times: dict[str, StepTime], **reasons: str) -> Row:
    return Row(StreamCase("lstm", hidden), {**{name: step_time(one) for name, one in BASE_US.items()}, **times}, reasons)


def bars(*rows: Row) -> list[list[str]]:
    text = stream_steps.render(rows).partition("### Bars")[2]
    return [line for one in rows for line in cells_of(text, str(one.case))]


def test_bars_are_of_one_layer_and_one_sequence() -> None:
    small = row(64, {BOUND: step_time(5.0, tail=3.0), MODULE: step_time(100.0)})
    label, stream, runtime = "lstm 64, B 1", f"{TORCH} over {BOUND}", f"{ONNX} over {BOUND}"
    assert bars(small) == [
        [label, stream, "40.0 [36.0, 44.0]", "at least 20", "yes"],
        [label, runtime, "4.00 [3.60, 4.40]", "at least 2.5", "yes"],
        [label, f"{TORCH} over {MODULE}", "2.00 [1.80, 2.20]", "at least 5", "no"],
        [label, f"99.9 over 50 % of {BOUND}", "3.00", "at most 2", "no"],
    ]
    assert [line[1:] for line in bars(row(256, {BOUND: step_time(20.0)}))] == [
        [stream, "10.0 [9.0, 11.0]", "at least 2.5", "yes"],
        [runtime, "1.000 [0.900, 1.100]", "at least 1", "unclear"],
    ]
    assert bars(row(512, {BFLOAT16: step_time(10.0)}))[0][1] == f"{ONNX} over {BFLOAT16}"
    for other in ({"batch": 4}, {"layers": 2}, {"input_size": 1}):
        assert bars(replace(small, case=replace(small.case, **other))) == []


def test_tables_have_a_column_for_each_candidate_and_say_what_is_missing() -> None:
    text = stream_steps.render(
        [row(64, {BOUND: step_time(5.0)}, **{JAX: NOT_INSTALLED, OUT: WRONG, MODULE: "ValueError: <no>"})]
    )
    times, over_torch, over_onnx, single, *_ = (line[1:] for line in cells_of(text, "lstm 64, B 1"))
    column: dict[str, Any] = dict(zip(NAMES, times, strict=True))
    assert column[TORCH] == "200 [180, 220]"
    assert (column[JAX], column[OUT], column[MODULE], column[BFLOAT16]) == (NOT_INSTALLED, WRONG, "-", "-")
    assert (over_torch[NAMES.index(BOUND)], over_onnx[NAMES.index(BOUND)]) == ("40.0 [36.0, 44.0]", "4.00 [3.60, 4.40]")
    assert single[NAMES.index(BOUND)] == "5.00 / 7.50 / 10.0, 2.0, 10,000"
    assert "- lstm 64, B 1, fused_cpu: ValueError: &lt;no&gt;" in text
    assert text.count("- lstm") == 1


def test_without_onnx_runtime_there_is_no_ratio_to_it() -> None:
    alone = Row(TINY[0], {TORCH: replace(step_time(200.0), over={TORCH: Ratio(1.0, 1.0, 1.0)})}, {ONNX: NOT_INSTALLED})
    text = stream_steps.render([alone])
    assert f"### {TORCH} over each" in text
    assert f"### {ONNX} over each" not in text
    assert text.rstrip().endswith("None of these is measured.")
