"""What `prepare` compiles and decides, so that no later call does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.autotune import Decision, selection
from pytest_ecornn.autotune.decision import Timing
from pytest_ecornn.implementations.auto import estimates
from pytest_ecornn.nn import GRU, LSTM, __main__, preparation, prepare
from tests.helpers import nn_kernels, persistent
from tests.helpers import undecided as fixtures
from tests.helpers.requirements import needs_compiler, needs_gpu

undecided = fixtures.undecided
on_cpu, by_kernels = persistent.on_cpu, nn_kernels.by_kernels  # fixtures


@pytest.mark.parametrize("sizes", [{"batch": (3, 2), "steps": 5}, {"batch": 2, "steps": 0}])
def test_a_range_without_sizes_is_refused(sizes: Any) -> None:
    with pytest.raises(ValueError, match="as a number from 1 on, or as the least and the greatest, got"):
        prepare(GRU(4, 9), **sizes)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("LSTM I 4 H 8|--batch=1-4|--steps=5", "expected a CUDA device and a layer such as 'LSTM I 256 H 512 float16'"),
        ("LSTM I 4 H 8 float16|--batch=4-1|--steps=5", "expected a number from 1 on, or two such as 1-64, got '4-1'"),
    ],
)
def test_a_command_that_cannot_be_run(arguments: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["prepare", *arguments.split("|")])
    assert error in capsys.readouterr().err


@needs_gpu
def test_the_command_prints_what_was_decided(undecided: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["prepare", "GRU I 64 H 64 tf32", "--batch", "1-9", "--steps", "1-40", "--training"]) == 0
    assert capsys.readouterr().out.startswith("B 1, T 1: ")


@needs_compiler
@pytest.mark.parametrize("training", [False, True])
def test_no_call_of_those_ranges_is_timed_later(
    training: bool, undecided: Path, by_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def measured(problem: Any, device: torch.device, choices: Any) -> Decision:
        timed.append(problem.key)
        lengths = tuple(choices.lengths)
        samples = {"torch": [Timing(300.0, 30.0)] * len(lengths), "persistent_gpu": [Timing(200.0, 20.0)] * len(lengths)}
        return Decision("", "", "measured", lengths=lengths, samples=samples).at(problem.case.steps)

    monkeypatch.delenv("ECORNN_AUTO")
    monkeypatch.setattr(selection, "_measured", measured)
    monkeypatch.setattr(estimates, "persistent_us", lambda case, device: 1.5 * estimates.cudnn_us(case))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # which torch for CPUs lacks
    layer = LSTM(4, 9)
    with torch.set_grad_enabled(training):
        lines = preparation._prepare(layer, layer.weight_ih_l0, range(3, 18), range(3, 8), False, True)
        assert len(lines) == 7 * 4  # B 3, 4, 6, 8, 12, 16, 17 and T 3, 4, 6, 7
        assert lines[0].startswith("B 3, T 3: persistent_gpu; measured; ")
        assert len(timed) == 3 * 3  # T 3, 4 and all others; B 3, 12 and 17, between which there is nothing to find out
        before = len(timed)
        for batch, steps in ((3, 3), (5, 7), (17, 4), (10, 5), (13, 6)):
            state = torch.zeros(1, batch, 9)
            layer(torch.zeros(steps, batch, 4), (state, state))
    assert len(timed) == before


@needs_gpu
def test_on_a_gpu_kernels_lie_on_disk_and_calls_run_by_them(undecided: Path) -> None:
    layer = GRU(64, 64, 2, device="cuda")
    lines = prepare(layer, (1, 9), (1, 40), training=True)
    files = {path: path.stat().st_mtime_ns for path in undecided.parent.rglob("*.cubin")}
    decided = len(selection.decisions())
    assert lines
    for steps, batch in ((40, 9), (1, 1), (7, 5), (33, 2)):
        layer(torch.randn(steps, batch, 64, device="cuda"))[0].sum().backward()
        assert "until the kernels are compiled" not in layer.notes()
    assert len(selection.decisions()) == decided
    assert {path: path.stat().st_mtime_ns for path in undecided.parent.rglob("*.cubin")} == files
