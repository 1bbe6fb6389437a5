"""What is no candidate for a module: torch.nn where cuDNN is wrong, not deterministic, or has no backward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ecornn.autotune import Problem
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.auto import estimates
from pytest_ecornn.nn.module_candidates import ModuleProblem

CASE = Case.parse("gru-T35-B8-H64-float32-cuda")


def never(backend: str) -> nn.RNNBase:
    raise AssertionError(f"{backend} is not to be made")


def choices(
    monkeypatch: pytest.MonkeyPatch,
    case: Case = CASE,
    refusal: str = "",
    autocast: torch.dtype | None = None,
    us: float = 100.0,
    **options: Any,
) -> tuple[list[str], dict[str, str], str]:
    """Names of the candidates, why others are none, and the heuristic's choice."""
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    monkeypatch.setattr(estimates, "persistent_us", lambda case, device: us)
    name = "" if autocast is None else f"{str(autocast).removeprefix('torch.')}_of_float32"
    problem = Problem(case=case, caller="module", autocast=name, **options)
    found = ModuleProblem(problem, never, lambda: refusal or None, torch.device("cuda"), autocast, None).choices()
    return found.names, dict(found.pruned), found.heuristic


def test_both_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choices(monkeypatch) == (["torch", "persistent_gpu"], {}, "persistent_gpu")


def test_kernels_that_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choices(monkeypatch, refusal="too large") == (["torch"], {"persistent_gpu": "too large"}, "torch")


def test_kernels_that_cannot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    names, pruned, heuristic = choices(monkeypatch, us=1e5)
    assert (names, heuristic) == (["torch"], "torch")
    assert "times the fastest" in pruned["persistent_gpu"]


@pytest.mark.parametrize(
    ("case", "options", "reason"),
    [
        (CASE, {"deterministic": True}, "cuDNN is not deterministic"),
        (CASE, {"autocast": torch.bfloat16}, "under autocast of bfloat16 cuDNN computes in float16"),
        (replace(CASE, mode="training"), {"evaluation": True}, "cuDNN has no backward pass"),
        (replace(CASE, dtype="float16", hidden_size=48), {}, "cuDNN 9.19 is wrong here"),
        (replace(CASE, hidden_size=48), {"autocast": torch.float16}, "cuDNN 9.19 is wrong here"),
    ],
)
def test_torch_nn_is_none(case: Case, options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names, pruned, heuristic = choices(monkeypatch, case, **options)
    assert (names, heuristic) == (["persistent_gpu"], "persistent_gpu")
    assert pruned["torch"].startswith(reason)


def test_a_module_in_evaluation_without_gradients_may_be_torch_nns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choices(monkeypatch, evaluation=True)[0] == ["torch", "persistent_gpu"]


def test_sequences_with_lengths_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "persistent_us", lambda case, device: 100.0)
    for ragged in (False, True):
        problem = Problem(case=replace(CASE, ragged=ragged), caller="module")
        assert ModuleProblem(problem, never, lambda: None, torch.device("cuda"), None, None).choices().captures != ragged
