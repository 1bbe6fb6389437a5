"""What is no candidate for a module: torch.nn where cuDNN is wrong, not deterministic, or has no backward pass."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pytest_ecornn.nn
from pytest_ecornn.autotune import Problem
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common import host_path as host_path_module
from pytest_ecornn.implementations._common.compile_threads import CompileThreads
from pytest_ecornn.implementations._cuda.compile import KernelCode
from pytest_ecornn.implementations._cuda.host.library import HostLibrary
from pytest_ecornn.implementations.auto import estimates
from pytest_ecornn.nn import module_candidates
from pytest_ecornn.nn.module_candidates import KernelCompilation, ModuleProblem, kind_of, module_problem, options_of

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


@pytest.mark.parametrize(
    ("options", "pruned", "reason"),
    [
        ({}, "", ""),
        ({"evaluation": True}, "", ""),  # without gradients
        ({"refusal": "too large"}, "persistent_gpu", "too large$"),
        ({"us": 1e5}, "persistent_gpu", ".*times the fastest"),
        ({"deterministic": True}, "torch", "cuDNN is not deterministic"),
        ({"autocast": torch.bfloat16}, "torch", "under autocast of bfloat16 cuDNN computes in float16"),
        ({"case": replace(CASE, mode="training"), "evaluation": True}, "torch", "cuDNN has no backward pass"),
        ({"case": replace(CASE, dtype="float16", hidden_size=48)}, "torch", r"cuDNN 9\.19 is wrong here"),
        ({"case": replace(CASE, hidden_size=48), "autocast": torch.float16}, "torch", r"cuDNN 9\.19 is wrong here"),
    ],
)
def test_both_are_candidates_but_where_one_cannot_run_or_win(
    options: dict[str, Any], pruned: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, reasons, heuristic = choices(monkeypatch, **options)
    assert names == [name for name in ("torch", "persistent_gpu") if name != pruned]
    assert heuristic == names[-1]
    assert [*reasons] == [pruned] * bool(pruned)
    assert re.match(reason, reasons.get(pruned, ""))


def test_nothing_is_timed_while_any_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call runs by its kernels once these are there; only to time it would be slowed by others' compilation."""
    threads = CompileThreads(1)
    monkeypatch.setattr(module_candidates, "compile_threads", lambda: threads)
    compilation = KernelCompilation([], torch.device("cuda"))
    assert not compilation.is_running()
    threads._unfinished.add(KernelCode(Path("other.cu"), (), (9, 0)))
    assert compilation.is_running()
    assert not compilation.is_running(others=False)


def test_with_the_compiled_host_path_decisions_are_its_own_and_wait_for_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, library = CompileThreads(1), HostLibrary("g++")
    monkeypatch.setattr(threads, "add", lambda codes: threads._unfinished.update(codes))
    monkeypatch.setattr(module_candidates, "compile_threads", lambda: threads)
    monkeypatch.setattr(host_path_module, "host_library", lambda: library)
    module = pytest_ecornn.nn.LSTM(4, 8)
    kind = kind_of(module, x := torch.zeros(5, 8, 4), x, None)._replace(device=torch.device("cuda", 0))
    keys, running = list[str](), list[bool]()
    for setting in ("python", "compiled"):
        monkeypatch.setenv("ECORNN_HOST", setting)
        keys.append(module_problem(options_of(module), kind, lambda: None, None).problem.key)
        running.append(KernelCompilation([], torch.device("cuda")).is_running(others=False))
    assert "compiled_host" in keys[1].split()[-1]
    assert "compiled_host" not in keys[0]
    assert running == [False, True]


def test_sequences_with_lengths_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "persistent_us", lambda case, device: 100.0)
    for ragged in (False, True):
        problem = Problem(case=replace(CASE, ragged=ragged), caller="module")
        assert ModuleProblem(problem, never, lambda: None, torch.device("cuda"), None, None).choices().captures != ragged
