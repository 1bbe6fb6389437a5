"""A simulated launch is computed once; again where anything that it is made of has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_ecornn.implementations._cuda.launch import INT32, INT64, POINTER
from tests.simulator import launch_memo
from tests.simulator.file_cache import FileCache
from tests.simulator.launch_memo import DiffersFromMemo, remembering_addresses

TYPES = POINTER + INT64 + INT32


@pytest.fixture(autouse=True)
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launch_memo, "LAUNCHES", FileCache(tmp_path / "launches", most_bytes=2**20))
    monkeypatch.setattr(launch_memo, "IS_IGNORED", False)
    monkeypatch.setattr(launch_memo, "counts", Counter())
    with remembering_addresses():
        yield


class Doubling:
    """Writes 2 x to y, an element further on with every launch that is simulated where `drifts`."""

    def __init__(self, drifts: bool = False) -> None:
        self.simulated, self._drifts = 0, drifts

    def __call__(self, x: torch.Tensor, y: torch.Tensor, count: int = 3, settings: str = "library", outcome: int = 0) -> int:
        def simulate() -> int:
            self.simulated += 1
            y.copy_(2 * x + self.simulated * self._drifts)
            return outcome

        return launch_memo.launch((settings,), TYPES, [x.data_ptr(), y.data_ptr(), count], simulate)


def zeros_at(start: int) -> torch.Tensor:
    """[4], whose memory starts at that place of 64 bytes."""
    buffer = bytearray(128)
    offset = (start - torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()) % 64
    return torch.frombuffer(buffer, dtype=torch.float32, count=4, offset=offset)


def test_the_same_again_writes_the_same_without_simulation() -> None:
    launch = Doubling()
    for start in (0, 16, 48):  # of 64 bytes: a CPU's memory begins at some multiple of 16
        x, y = zeros_at(start).copy_(torch.arange(4.0)), zeros_at(start)
        assert launch(x, y, outcome=2) == 2
        assert y.tolist() == [0, 2, 4, 6]
    assert launch.simulated == 1


def test_what_has_changed_is_simulated() -> None:
    launch, x, y = Doubling(), torch.arange(4.0), torch.zeros(4)
    launch(x, y)
    launch(x + 1, torch.zeros(4))
    launch(x, torch.ones(4))  # what it overwrites
    launch(x, torch.zeros(4), count=4)
    launch(x, torch.zeros(4), settings="another library")
    launch(torch.arange(-1.0, 4.0)[1:], torch.zeros(4))  # in a larger memory
    launch(x, torch.zeros(6)[2:])
    assert launch.simulated == 7


def test_views_of_one_memory_are_not_two_memories() -> None:
    launch, memory = Doubling(), torch.arange(8.0)
    launch(memory[:4], memory[4:])
    launch(torch.arange(4.0), torch.arange(4.0, 8.0))
    assert launch.simulated == 2


def test_memory_that_nobody_named_is_not_remembered() -> None:
    launch, x = Doubling(), torch.arange(4.0)
    for _ in range(2):
        launch_memo._storages.clear()
        assert launch_memo.launch((), POINTER, [2**40], lambda: launch(x, torch.zeros(4))) == 0
    assert launch.simulated == 1  # the inner launch, whose memory is known


def test_where_it_is_ignored_a_launch_is_simulated_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, drifting, x = Doubling(), Doubling(drifts=True), torch.arange(4.0)
    for launch in (steady, drifting):
        launch(x, torch.zeros(4), settings=str(launch))
    monkeypatch.setattr(launch_memo, "IS_IGNORED", True)
    steady(x, torch.zeros(4), settings=str(steady))
    assert steady.simulated == 2
    with pytest.raises(DiffersFromMemo, match="depends on what is not in its key"):
        drifting(x, torch.zeros(4), settings=str(drifting))
