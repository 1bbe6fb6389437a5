"""--ecornn-profile-call: one call of one implementation on one case, and nothing beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from pytest_ecornn.run import profile_call
from tests.helpers import samples
from tests.helpers.foreign import Foreign

CALL = "--ecornn-profile-call"
MINE = ("--ecornn-implementations", "mine.py", "--ecornn-only", "mine")
COUNTS = samples.RIGHT.replace("outputs = []", "print('called', x.requires_grad, file=open('calls', 'a')); outputs = []", 1)


@pytest.mark.parametrize(("token", "calls"), [("", 4), ("-training", 5)])
def test_an_implementation_is_warmed_up_and_called_once(foreign: Foreign, token: str, calls: int) -> None:
    """In training `Candidate.build` calls it too."""
    foreign.write("mine.py", COUNTS)
    foreign.write("pytest.ini", "[pytest]\naddopts = -n 2 --ecornn-budget 3\n")
    done = foreign.run(CALL, f"{samples.CASE}{token}", *MINE, check=0)
    assert re.search(rf"^mine-{samples.CASE}{token}: one call took [\d.,]+ [um]s$", done.stdout, re.M), done.stdout
    assert (foreign.path / "calls").read_text().splitlines() == [f"called {bool(token)}"] * calls
    assert not (foreign.path / "reports").exists()


def test_a_layer_that_raises_is_an_error_of_one_line(foreign: Foreign) -> None:
    foreign.write("mine.py", samples.RAISES)
    done = foreign.run(CALL, samples.CASE, *MINE, check=1)
    assert f"mine on {samples.CASE}: expected a result or Unsupported, got RuntimeError at mine.py" in done.stdout


def test_wrong_use_is_a_usage_error(foreign: Foreign) -> None:
    foreign.write("mine.py", samples.RIGHT)
    one = "--ecornn-profile-call expected one"
    for arguments, error in {
        (CALL, samples.CASE): f"{one} --ecornn-only NAME, got 0: none",
        (CALL, samples.CASE, *MINE, "--ecornn-only", "sequential"): f"{one} --ecornn-only NAME, got 2: mine, sequential",
        (CALL, samples.CASE, CALL, "lstm-T1-B1-H1", *MINE): f"{one} case, got 2: {samples.CASE}, lstm-T1-B1-H1-float32",
        (CALL, "lstm-T{1..8}-B1-H1", *MINE): f"{one} case, got 4: lstm-T1-B1-H1-float32, lstm-T2-B1-H1-float32, ",
        (
            CALL,
            "gru-T1-B1-H1",
            *MINE,
        ): "--ecornn-profile-call: mine-gru-T1-B1-H1-float32 does not run: runs a plain LSTM in float32",
        (CALL, samples.CASE, *MINE, "--ecornn-bench"): "--ecornn-profile-call makes one call alone: expected no --ecornn-bench",
        (
            CALL,
            samples.CASE,
            *MINE,
            "--ecornn-case",
            "x",
        ): "--ecornn-profile-call makes one call alone: expected no --ecornn-case",
    }.items():
        assert f"ERROR: {error}" in foreign.run_here(*arguments, check=4).stderr


def test_on_a_gpu_the_profiler_sees_that_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        seen.append(f"{name} begins")
        yield
        seen.append(f"{name} ends")

    fake = SimpleNamespace(
        synchronize=lambda device: seen.append(f"wait for {device}"),
        profiler=SimpleNamespace(profile=lambda: noted("profiler")),
        nvtx=SimpleNamespace(range=lambda name: noted(f"range {name}")),
    )
    monkeypatch.setattr(profile_call, "torch", SimpleNamespace(cuda=fake))
    with profile_call.profiled("cuda:1"):
        seen.append("call")
    begins = ["wait for cuda:1", "profiler begins", "range ecornn begins"]
    assert seen == [*begins, "call", "range ecornn ends", "profiler ends"]
    assert callable(torch.cuda.profiler.profile)
    assert callable(torch.cuda.nvtx.range)
