"""Every planted cheat is caught, by the check that its file names, and leaves nothing behind; an honest layer is timed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.selfcheck import _correct_layers, trial
from pytest_ecornn.selfcheck.trial import Planted, Trial
from pytest_ecornn.verification.guards import ambient
from pytest_ecornn.verification.guards.background import ThreadGuard
from pytest_ecornn.verification.guards.tampering import MonkeypatchGuard

FILES = trial.files("cheat")
FAMILIES = {
    "baseline", "builtin", "cell", "clock", "coarser", "code", "constants", "copying", "cost", "declared", "defaults",
    "deferred", "direction", "expected", "function", "gradient", "judge", "kernel", "last", "memo", "mended", "near",
    "no", "numpy", "one", "reference", "secret", "settings", "several", "side", "thread", "told", "tuning", "undone",
    "warm", "weight", "weights", "work",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _poisoned_and_seeded() -> None:
    """In place of that of all tests: rows poison what they verify themselves, and must not poison what they time."""


@pytest.mark.parametrize("cheat", trial.all_trials("cheat"), ids=str)
@pytest.mark.thinned(4)
def test_a_planted_cheat_is_caught_for_the_reason_that_it_states(cheat: Trial) -> None:
    if reason := cheat.missing():
        pytest.skip(reason)
    threads, before = ThreadGuard(), _quickest_ns()
    with ambient.GlobalStateGuard() as kept, MonkeypatchGuard() as tools:
        message = cheat.survived()
    assert not message
    assert kept.changes + tools.changes == []
    threads.check()
    assert not is_in_torch_dispatch_mode(), "torch takes later code for code within a mode, and compiles some of it twice"
    assert _quickest_ns() < 5 * before, "torch's operators take longer from now on"


def _quickest_ns() -> int:
    """Of 500 small operators."""
    one, times = torch.zeros(1), []
    for _ in range(500):
        start = time.perf_counter_ns()
        one.add_(one)
        times.append(time.perf_counter_ns() - start)
    return min(times)


def test_every_family_is_there_and_sixty_cheats() -> None:
    assert {path.stem.partition("_")[0] for path in FILES} == FAMILIES
    assert len(FILES) >= 60


@pytest.mark.parametrize(("cell", "mode"), [("lstm", "inference"), ("gru", "training"), ("mingru", "inference")])
def test_an_honest_layer_is_timed(cell: str, mode: str) -> None:
    found = ImplementationInfo("loop", _correct_layers.Loop, Path(_correct_layers.__file__))
    row = trial.timed(Planted(found, "", cell, mode=mode))
    assert row.status == "passed", row.reason
    assert row.timing is not None
