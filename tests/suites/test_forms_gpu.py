"""The command that measures persistent_gpu's forms: what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.nn.form_times import Measured
from pytest_ecornn.suites import forms_gpu
from tests.simulator.clusters_on_cpu import H200


def test_what_was_measured_outlives_a_shape_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(forms: list[Form], dtype: torch.dtype) -> list[Measured]:
        if forms[0].problem.arithmetic == MathMode.of("float32", "tf32"):
            raise RuntimeError("a block waited 4 s for the others")
        return [Measured(forms[0], 2.0, 3.0, 1e-3), Measured(forms[1], 3.0, 2.5, 0.0)]

    monkeypatch.setattr(forms_gpu, "measure", measure)
    monkeypatch.setattr(forms_gpu, "with_index", torch.device)
    monkeypatch.setattr(Device, "of", lambda device: H200)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    file = tmp_path / "forms.jsonl"
    assert forms_gpu.main(["--output", str(file), "--hidden", "650", "--passes", "backward"]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["shape"] for line in lines] == ["backward, H 650, B 32, float16", "backward, H 650, B 32, float32"]
    assert lines[0]["forms"][0]["model_us"] == 2.0
    said = capsys.readouterr().out
    assert "backward, H 650, B 32, tf32: a block waited 4 s" in said
    assert said.index("2.50 us, model 3.00") < said.index("3.00 us, model 2.00")
    assert forms_gpu.main(["--output", str(file), "--seconds", "-1", "--hidden", "650"]) == 0
    assert "not reached: forward, H 650, B 32, float16" in capsys.readouterr().out
