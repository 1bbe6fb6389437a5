"""What tests of published studies share: a clock without a GPU, events of a trace, small layers, cells of a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case, Implementation, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.run.discovery import ImplementationInfo

SMALL = Case(cell="lstm", steps=3, batch=2, hidden_size=5, mode="training")


def event(category: str, name: str, start: float, duration: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": thread}


class FakeEvent:
    """Each record is a millisecond after the one before."""

    now_ms = 0.0

    def __init__(self, enable_timing: bool):
        self.at_ms = 0.0

    def record(self) -> None:
        FakeEvent.now_ms += 1
        self.at_ms = FakeEvent.now_ms

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What times a block says as many ms as events were recorded."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


class Off(ReferenceLoop):
    """The loop, its output a little off."""

    def build(self, case: Case, weights: Weights) -> Layer:
        layer = super().build(case, weights)
        return lambda *given: (layer(*given)[0] * 1.00001, layer(*given)[1])


def implementations(**kinds: type[Implementation]) -> dict[str, ImplementationInfo]:
    """What discovery would list of these classes."""
    return {name: ImplementationInfo(name, kind, Path(name)) for name, kind in kinds.items()}


def cells_of(text: str, first: str) -> list[list[str]]:
    """The rows of tables whose first cell is so."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [row for row in rows if row[0] == first]


@dataclass(frozen=True)
class Inner:
    ratio: Ratio
    sizes: list[int]


@dataclass(frozen=True)
class Outer:
    label: str
    time_us: tuple[float, float, float] | None = None
    inner: dict[str, Inner] | None = None
    case: Case = SMALL
