"""Which tests `make test` leaves out, and what `make test-all` draws anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import whole_suite
from tests.helpers.whole_suite import left_out, seed_of


@dataclass(frozen=True)
class Item:
    """A test. keeps: those of its markers, 0 for a marker without."""

    name: str
    keeps: tuple[int, ...] = ()

    @property
    def nodeid(self) -> str:
        return f"tests/test_x.py::{self.name}"

    def iter_markers(self, name: str) -> Iterator[Any]:
        return (SimpleNamespace(kwargs={"keep": keep} if keep else {}) for keep in self.keeps)


@pytest.mark.parametrize(("parameters", "kept"), [(1, 1), (2, 1), (3, 1), (4, 2), (300, 100)])
def test_make_test_keeps_one_in_n_parameters_and_always_one(parameters: int, kept: int) -> None:
    items: list[Any] = [Item(f"test_it[{number}]", (3,)) for number in range(parameters)]
    assert len(items) - len(left_out(items)) == kept
    assert left_out(items[::-1]) == left_out(items)


def test_without_keep_all_are_left_out_and_without_a_marker_none() -> None:
    marked: list[Any] = [Item("test_a", (0,)), Item("test_b[1]", (3, 0))]
    assert left_out([*marked, Item("test_c"), Item("test_b[2]")]) == set(marked)  # type: ignore[list-item]


def test_a_seed_gives_other_orders_but_to_some_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/test_x.py::test_{number}" for number in range(1000)]
    monkeypatch.setattr(whole_suite, "SEED", "0")
    assert [seed_of(name) for name in names] == names
    monkeypatch.setattr(whole_suite, "SEED", "7")
    assert 20 <= sum(seed_of(name) == name for name in names) <= 90
