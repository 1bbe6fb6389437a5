"""The report on shapes that vary: scenarios, processes one after the other, bars, and small runs on a CPU."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_ecornn.suites.fresh_processes import own_caches, run_in_turn
from pytest_ecornn.suites.published import varying
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.varying_parts import scenario_times, single_figures, training_steps
from pytest_ecornn.suites.published.varying_parts.scenario_times import COLD, FIXED, WARM, Row
from pytest_ecornn.suites.published.varying_parts.training_steps import OURS, TORCH, Scenario, StepTimes
from tests.helpers.studies import cells_of

CPU = torch.device("cpu")
SMALL = Scenario("GRU", 4, 6, "float32", (1, 3), (2, 5), steps=6)
RAGGED = Scenario("LSTM", 4, 4, "float32", (2, 3), (2, 5), directions=2, is_ragged=True, steps=6)
TIMES = StepTimes(4.0, 3.0, 300.0, 500.0, 4, "a", 0, 0)


def rows_of(folder: Path, part: str) -> list[Row]:
    return list(varying.PLAN.rows(folder, json.loads((folder / "varying.json").read_text()))[part])


# Scenarios.


def test_scenarios_have_names_that_say_what_varies() -> None:
    assert [str(scenario) for scenario in (*FIXED, RAGGED)] == [
        "GRU 256 -> 300 float32, B 1..64, T 5..120",
        "LSTM 2 x 512 float16, B 32, T 5..120",
        "LSTM 650 bfloat16, B 20..40, T 35",
        "LSTM 4 float32, B 2..3, T 2..5, both directions, by lengths",
    ]


def test_scenarios_are_drawn_by_their_seed_within_their_bounds() -> None:
    drawn = varying.make_scenarios(1, 60)[len(FIXED) :]
    assert drawn == varying.make_scenarios(1, 60)[len(FIXED) :] != varying.make_scenarios(2, 60)[len(FIXED) :]
    for one in drawn:
        assert 32 <= one.input_size <= 1024
        assert 1 <= one.batches[0] <= one.batches[1] <= 128
        assert 5 <= one.lengths[0] <= one.lengths[1] <= 200
        assert one.layers * one.directions * one.lengths[1] <= 400
    assert {one.cell for one in drawn} == {"RNN", "LSTM", "GRU"}
    assert {one.is_ragged for one in drawn} == {True, False}


def test_inputs_have_the_drawn_shapes_and_stay_in_few_buffers() -> None:
    inputs = list(training_steps.draw_inputs(replace(RAGGED, steps=40), CPU))
    for x, lengths in inputs:
        assert lengths is not None
        assert 2 <= x.shape[0] <= 5
        assert x.shape[1:] == (len(lengths), 4)
        assert 1 <= int(lengths.min()) <= int(lengths.max()) <= x.shape[0]
    assert len({x.untyped_storage().data_ptr() for x, _ in inputs}) == 1
    assert len({x.shape for x, _ in inputs}) > 3
    assert all(lengths is None for _, lengths in training_steps.draw_inputs(SMALL, CPU))


def test_packed_steps_ignore_what_is_beyond_the_lengths() -> None:
    ((x, lengths),) = training_steps.draw_inputs(replace(RAGGED, steps=1, batches=(3, 3), lengths=(5, 5)), CPU)
    assert lengths is not None
    step = training_steps.make_step(replace(RAGGED, mode="inference"), TORCH, CPU)
    changed = x.masked_fill((torch.arange(5)[:, None] >= lengths)[..., None], 7.0)
    torch.testing.assert_close(step(x, lengths), step(changed, lengths), rtol=0, atol=0)
    assert not torch.equal(step(x, None), step(x, lengths))


def test_our_modules_are_given_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer(torch.nn.LSTM):
        def forward(self, x: Any, hx: Any = None, *, lengths: Any) -> Any:
            return super().forward(x * (torch.arange(len(x))[:, None] < lengths)[..., None], hx)

    monkeypatch.setattr(training_steps, "import_module", lambda library: SimpleNamespace(LSTM=Layer))
    ((x, lengths),) = training_steps.draw_inputs(replace(RAGGED, steps=1), CPU)
    step = training_steps.make_step(RAGGED, OURS, CPU)
    assert float(step(x, lengths)) > 0
    with pytest.raises(TypeError, match="lengths"):
        step(x, None)


def test_steps_train_and_have_equal_losses_by_equal_seeds() -> None:
    first, second, other = (training_steps.measure(one, TORCH, CPU) for one in (SMALL, SMALL, replace(SMALL, seed=2)))
    assert first.digest == second.digest != other.digest
    assert 0 < first.first_ms <= first.longest_ms <= 1e3 * first.total_s
    ((x, _),) = training_steps.draw_inputs(replace(SMALL, steps=1), CPU)
    step = training_steps.make_step(SMALL, TORCH, CPU)
    losses = [float(step(x, None)) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_losses_that_are_not_finite_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_steps, "make_step", lambda *given: lambda x, lengths: x.sum() / 0)
    with pytest.raises(ValueError, match="expected finite losses"):
        training_steps.measure(SMALL, TORCH, CPU)


# Processes.


def test_processes_wait_for_their_turn(tmp_path: Path) -> None:
    code = "import time; print('ready', flush=True); input(); a = time.time(); time.sleep(0.2); print(a, time.time())"
    done = run_in_turn([(["-c", code], own_caches(tmp_path))] * 3)
    assert {reason for _, reason in done} == {""}
    times = [float(word) for line, _ in done for word in line.split()]
    assert times == sorted(times)


def test_a_process_that_fails_says_why_and_others_go_on() -> None:
    done = run_in_turn([(["-c", code], {}) for code in ("raise ValueError('no')", "raise SystemExit(3)", "print(1)", "")])
    assert done == [("", "ValueError: no"), ("", "ended with 3"), ("1", ""), ("", "ended with 0")]


# Bars.


def row(torch_s: Sequence[float], cold: StepTimes, warm: Sequence[StepTimes]) -> Row:
    arms = {TORCH: [replace(TIMES, total_s=seconds) for seconds in torch_s], COLD: [cold], WARM: list(warm)}
    return Row(SMALL, arms)


def test_bars_are_judged_by_the_least_of_each_figure() -> None:
    cold = replace(TIMES, total_s=6.5, longest_ms=601.0, slow_steps=6)
    warm = [replace(TIMES, total_s=4.1), replace(TIMES, total_s=3.9, longest_ms=700.0, digest="b")]
    text = scenario_times.render([row([5.0, 4.0], cold, warm)])
    assert [cells_of(text, f"{what}, {arm}")[0][2:] for arm in (COLD, WARM) for what in ("all steps", "longest step")] == [
        ["6.5", "s", "at most 6.5", "yes"],
        ["0.601", "s", "at most 0.6", "no"],
        ["3.9", "s", "at most 4", "yes"],
        ["0.5", "s", "at most 0.6", "yes"],
    ]
    assert cells_of(text, f"steps over 100 ms, {COLD}")[0][2:] == ["6", "", "at most 5", "no"]
    assert cells_of(text, f"runs whose losses are others, {WARM}")[0][2:] == ["1", "", "at most 0", "no"]
    assert cells_of(text, f"runs whose losses are others, {COLD}") == []


def test_an_arm_that_failed_has_a_reason_and_no_bar() -> None:
    failed = Row(SMALL, {COLD: [TIMES], WARM: [TIMES]}, {TORCH: "RuntimeError: <no>"})
    text = scenario_times.render([failed])
    assert f"- {SMALL}, torch.nn: RuntimeError: <no>".replace("<", "&lt;").replace(">", "&gt;") in text
    assert cells_of(text, f"all steps, {COLD}") == []  # beside what it would be judged is not there
    assert cells_of(text, f"longest step, {COLD}")[0][2:] == ["0.5", "s", "at most 0.6", "yes"]
    assert "others" not in text  # one run alone


# Single figures.


def test_memos_of_a_package_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, others = lru_cache(abs), lru_cache(abs)
    for name, module in {"made_up.memos": SimpleNamespace(kept=kept, number=3), "else": SimpleNamespace(others=others)}.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    kept(-1), others(-1)
    single_figures.clear_memos("made_up")
    assert (kept.cache_info().currsize, others.cache_info().currsize) == (0, 1)


def test_choices_and_imports_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_figures, "IMPORTS", ("decimal", "time"))
    median, longest = single_figures.choice_times("", "cpu", count=3)
    assert 0 < median[0] <= longest[0]
    first, second = single_figures.import_times("", count=1)
    assert 0 < second[0] < first[0]  # what a process has imported
    monkeypatch.setattr(single_figures, "IMPORTS", ("no_such_module", "json"))
    with pytest.raises(RuntimeError, match="no_such_module"):
        single_figures.import_times("", count=1)


def test_lengths_are_timed_beside_padding_where_modules_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_figures, "_BLOCK_US", 1e3)
    monkeypatch.setattr(single_figures, "OURS", TORCH)  # whichever modules take lengths
    (ratio, low, high), _ = single_figures.length_ratios(replace(RAGGED, steps=1), "cpu")
    assert 0 < low <= ratio <= high


# The command.


def test_a_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scenario_times, "FIXED", (SMALL, RAGGED))
    monkeypatch.setitem(scenario_times._TIMED_CHOICES, "ECORNN_AUTO", "torch")
    arguments = ["--output", str(tmp_path), "--device", "cpu", "--drawn", "0", "--steps", "6", "--repeats", "1"]
    assert varying.main([*arguments, "--parts", "scenarios"]) == 0
    first, second = rows_of(tmp_path, "scenarios")
    assert (first.scenario, set(first.arms), first.reasons) == (SMALL, set(scenario_times.ARMS), {})
    assert len({run.digest for runs in first.arms.values() for run in runs}) == 1  # torch.nn's
    assert len(second.arms[TORCH]) == 1
    assert {*second.arms} | {*second.reasons} == {*scenario_times.ARMS}
    text = (tmp_path / "varying.md").read_text()
    assert "6 training steps of a fresh process" in text
    assert len(cells_of(text, "GRU 4 -&gt; 6 float32, B 1..3, T 2..5")) == 3
    assert f"scenarios: {SMALL}" in capsys.readouterr().out
    monkeypatch.setattr(scenario_times, "measure_arms", lambda scenario, *given: Row(scenario, reasons={TORCH: "anew"}))
    assert varying.main([*arguments, "--parts", "scenarios", "--resume"]) == 0
    assert rows_of(tmp_path, "scenarios") == [first, second]
    changed = [*arguments, "--parts", "scenarios", "--resume", "--only", "GRU", "--seed", "2"]
    assert varying.main(changed) == 0  # of the same name one row alone, and what is not named stays
    assert [(one.scenario.seed, one.scenario.cell) for one in rows_of(tmp_path, "scenarios")] == [(1, "LSTM"), (2, "GRU")]


def test_first_calls_and_deterministic_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, str | None, str]] = []

    def run_here(runs: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[tuple[str, str]]:
        """As the processes would."""
        jobs = [json.loads(arguments[-1]) for arguments, _ in runs]
        seen.extend(
            (job["is_deterministic"], variables.get("CUBLAS_WORKSPACE_CONFIG"), variables["ECORNN_COMPILE"])
            for job, (_, variables) in zip(jobs, runs, strict=True)
        )
        times = [training_steps.measure(Scenario(**job["scenario"]), job["library"], CPU) for job in jobs]
        return [(json.dumps(asdict(one)), "") for one in times]

    monkeypatch.setattr(scenario_times, "FIXED", (SMALL,))
    monkeypatch.setattr(scenario_times, "run_in_turn", run_here)
    monkeypatch.setattr(single_figures, "FIRST_CALLED", (replace(SMALL, mode="inference", steps=1),))
    arguments = ["--output", str(tmp_path), "--device", "cpu", "--drawn", "0", "--parts", "first_call", "deterministic"]
    assert varying.main(arguments) == 0
    assert seen == [(False, None, "wait"), *[(False, None, "")] * 9, *[(True, ":4096:8", "")] * 2]
    text = (tmp_path / "varying.md").read_text()
    assert cells_of(text, f"first call, {TORCH}")[0][3:] == ["s", "-", "-"]
    assert cells_of(text, f"{WARM}, beyond {TORCH}")[0][4] == "at most 0.06"
    assert cells_of(text, f"runs whose losses are others, deterministic, {COLD}")[0][2:] == ["0", "", "at most 0", "yes"]


def test_a_process_can_be_deterministic(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(builtins, "input", lambda: "")
    job = {"scenario": asdict(SMALL), "library": TORCH, "device": "cpu", "is_deterministic": True}
    try:
        training_steps.main(json.dumps(job))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    ready, line = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert StepTimes(**json.loads(line)).digest == training_steps.measure(SMALL, TORCH, CPU).digest


def test_what_the_deadline_does_not_reach_says_so(tmp_path: Path) -> None:
    assert varying.main(["--output", str(tmp_path), "--device", "cpu", "--deadline", "0"]) == 0
    text = (tmp_path / "varying.md").read_text()
    assert text.count(NOT_REACHED) == 8 * 3 + 2 * 4 + 2 * 2 + 2 + 2 + 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "0"], "--steps: expected at least 1, got 0"),
        (["--drawn", "-1"], "--drawn: expected at least 0, got -1"),
        (["--repeats", "0"], "--repeats: expected at least 1, got 0"),
        (["--only", "QRNN"], "--only: expected a part of a name of GRU 256 -> 300"),
        (["--device", "tpu"], "--device: invalid choice: 'tpu'"),
        (["--parts", "others"], "--parts: invalid choice: 'others'"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        varying.main(["--output", "new", *arguments])
    assert said in capsys.readouterr().err
    assert not Path("new").exists()
