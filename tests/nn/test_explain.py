"""The command that lists persistent_gpu's forms of a layer: what it prints, where there is a GPU and where not."""

from __future__ import annotations

import re

import pytest
import torch

from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.nn import __main__ as program
from pytest_ecornn.nn import explain, form_times
from tests.helpers.persistent import A100
from tests.simulator.clusters_on_cpu import H200


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of an A100's limits."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    monkeypatch.setattr(explain, "with_index", torch.device)
    monkeypatch.setattr(Device, "of", lambda device: A100)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What the command prints: of the chip, of each pass, of a call."""
    assert program.main(["explain", *arguments]) == 0
    return capsys.readouterr().out.split("\n\n")


@pytest.mark.parametrize("text", ["LSTM H 768 B 32 float16", "lstm H768 B32 FLOAT16"])
def test_the_best_forms_of_each_pass_are_listed_and_the_chosen_one_is_marked(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chip, *passes, call = said(capsys, *text.split() if text.islower() else [text])
    assert chip == "lstm, H 768, B 32, float16: 132 multiprocessors (H100, as torch finds no GPU here)"
    for is_backward, lines in enumerate(passes):
        title, *forms, gemm = lines.splitlines()
        assert re.match(
            f"{('forward', 'backward')[is_backward]}: the best of [0-9]+ forms that fit, us a step, estimated", title
        )
        times = [float(line[1:].split()[0]) for line in forms]
        assert len(times) == 15
        assert times == sorted(times)
        assert gemm.endswith(f"{explain.gemm_step_us(problem(is_backward)):.2f}  a GEMM a step")
        chosen = select_config(problem(is_backward), H200)
        (marked,) = (line for line in forms if line.startswith(">"))
        assert str(chosen).partition(": ")[2] in marked
    assert re.fullmatch(
        r"inference, T 64, L 1, 1 direction, I 768: persistent_gpu [\d,]+ us, cuDNN [\d,]+ us, estimated\n"
        r"training, T 64, L 1, 1 direction, I 768: persistent_gpu [\d,]+ us, cuDNN [\d,]+ us, estimated\n",
        call,
    )


def problem(is_backward: int) -> ProblemSize:
    return ProblemSize("lstm", 768, 32, MathMode.of("float16", "ieee"), bool(is_backward))


def test_options_are_of_the_call_and_the_chip(capsys: pytest.CaptureFixture[str]) -> None:
    text = "GRU H 200 B 8 tf32"
    both = said(capsys, text, "--layers", "3", "--directions", "2", "--steps", "35")[-1]
    assert both.startswith("inference, T 35, L 3, 2 directions, I 200: ")
    assert "at once: 3 layers in a wave" in said(capsys, text, "--layers", "3", "--steps", "35")[-1]
    chip, forward, *_ = said(capsys, text, "--chip", "A100")
    assert chip.endswith(": 108 multiprocessors (A100)")
    assert "clusters" not in forward


def test_why_no_form_runs_a_layer_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, forward, _, call = said(capsys, "GRU H 2816 B 200 tf32")
    assert forward.splitlines()[-2].startswith("> none: H 2816 at B 200 is faster by a GEMM a step: W_hh does not fit on chip")
    assert ": persistent_gpu runs it by no form, cuDNN " in call


@pytest.mark.usefixtures("a_gpu")
def test_the_best_few_are_timed_on_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(forms: list[form_times.Form], dtype: torch.dtype) -> list[form_times.Measured]:
        assert dtype == torch.bfloat16
        return [form_times.Measured(form, 1.0, 7.0 + number, 0.0) for number, form in enumerate(forms)]

    monkeypatch.setattr(form_times, "measure", measure)
    chip, *passes, _ = said(capsys, "RNN H 300 B 2 bfloat16", "--time")
    assert chip == "rnn_tanh, H 300, B 2, bfloat16: 108 multiprocessors (NVIDIA A100)"
    for lines in passes:
        title, *forms, _ = lines.splitlines()
        assert "estimated and timed" in title
        assert [re.search(r"^. +[\d.]+ +(7|8|9|10|11)\.00  ", line) is not None for line in forms] == [True] * 5 + [False] * 10


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["LSTM 768"], "such as 'LSTM H 768 B 32 float16', with 4 * H * B below 2^30, got 'LSTM 768'"),
        (["MINGRU", "H", "7", "B", "2", "float16"], "expected a cell (LSTM, GRU, RNN, RNN_TANH, RNN_RELU), H, B and"),
        (["LSTM H 7 B 2 float64"], "a precision (float16, bfloat16, tf32, float32)"),
        (["LSTM H 0 B 2 float16"], "got 'LSTM H 0 B 2 float16'"),
        (["LSTM H 70000 B 70000 float16"], "below 2^30"),
        (["LSTM H 7 B 2 float16", "--layers", "0"], "argument --layers: expected a number of at least 1, got '0'"),
        (["LSTM H 7 B 2 float16", "--time"], "--time takes this machine's GPU, and torch finds none"),
    ],
)
def test_what_was_expected_is_said(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["explain", *arguments])
    assert expected in capsys.readouterr().err


@pytest.mark.usefixtures("a_gpu")
def test_another_chip_is_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["explain", "LSTM H 7 B 2 float16", "--time", "--chip", "A100"])
    assert "--time takes this machine's GPU, not --chip" in capsys.readouterr().err
