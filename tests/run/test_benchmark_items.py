"""A timed row and the machine's lock: what times something when it is built has the machine alone for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.reference.precision import current
from pytest_ecornn.run.discovery import ImplementationInfo, discover
from pytest_ecornn.run.items.benchmark_items import BenchmarkItem
from pytest_ecornn.selfcheck.trial_session import NoLock, TrialSession
from tests.helpers.studies import SMALL


class RecordingLock(NoLock):
    """Notes how it is held."""

    def __init__(self) -> None:
        self.held: list[str] = []

    @contextmanager
    def shared(self) -> Iterator[None]:
        self.held.append("shared")
        yield
        self.held.pop()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self.held.append("alone")
        yield
        self.held.pop()


@pytest.mark.parametrize(("times_in_build", "held"), [(False, "shared"), (True, "alone")])
def test_what_times_in_build_is_built_alone(times_in_build: bool, held: str, tmp_path: Path) -> None:
    lock, seen = RecordingLock(), []

    class Loop(ReferenceLoop):
        def build(self, case: Any, weights: Any) -> Any:
            seen.append(list(lock.held))
            return super().build(case, weights)

    Loop.times_in_build = times_in_build
    found: ImplementationInfo = replace(discover([])["sequential"], cls=Loop)
    row = BenchmarkItem(TrialSession(lock=lock), found, SMALL).finished()
    assert row.status == "passed"
    assert seen[0] == [held]


def test_a_timed_row_passes_though_random_numbers_are_drawn_before_its_calls() -> None:
    class Module(ReferenceLoop):
        def unsupported(self, case: Any, device: Any) -> str | None:
            np.random.rand()
            return super().unsupported(case, device)

        def build(self, case: Any, weights: Any) -> Any:
            torch.nn.LSTM(case.input_size, case.hidden_size)
            return super().build(case, weights)

    row = BenchmarkItem(TrialSession(), replace(discover([])["sequential"], cls=Module), SMALL).finished()
    assert (row.status, row.reason) == ("passed", "")


@pytest.mark.parametrize(("name", "precision"), [("lstm-T2-B2-H2-float32-cuda", "ieee"), ("lstm-T2-B2-H2-tf32-cuda", "tf32")])
def test_while_a_layer_runs_cudnns_precision_is_the_cases(name: str, precision: str) -> None:
    """Two threads that each set it for a call leave each other's, and a backward pass that raises puts nothing back."""
    item, before = BenchmarkItem(TrialSession(), discover([])["cudnn"], SMALL), current("rnn")
    with item.attributed_to(Case.parse(name)):
        assert current("rnn") == precision
    assert current("rnn") == before
