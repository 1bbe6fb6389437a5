"""Every planted layer is there, and each stands alone in the file that it is loaded from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ecornn.contract import Implementation
from pytest_ecornn.selfcheck import planting, trial
from pytest_ecornn.selfcheck.mutants import gates, order
from pytest_ecornn.selfcheck.trial import Planted

FROZEN = Path(__file__).parents[1] / "frozen" / "planted.txt"
PACKAGES = (planting.MUTANTS, planting.EXPLOITS, planting.CORRECT)


def test_no_planted_layer_is_lost_and_each_must_be_seen_as_before() -> None:
    planted = [f"{each.kind} {each}: {planting.expectation(each.layer).caught_by}" for each in trial.all_trials()]
    right = [f"right {planting.name_of(layer)}" for layer in planting.layers(planting.CORRECT)]
    assert [*planted, *right] == FROZEN.read_text().splitlines()


def test_there_are_as_many_layers_as_names() -> None:
    counts = {}
    for package in PACKAGES:
        names = list(map(planting.name_of, planting.layers(package)))
        assert len(set(names)) == len(names)
        counts[package.rpartition(".")[2]] = len(names)
    assert counts == {"mutants": 291, "exploits": 125, "correct": 30}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_layer_says_what_it_does_and_has_a_part_of_its_own(package: str) -> None:
    for layer in planting.layers(package):
        assert layer.__doc__
        text = planting.own_file(layer).read_text()
        assert f"class {layer.__name__}(" in text
        assert text.count("@mutant(") + text.count("@exploit(") == (package != planting.CORRECT)


def test_a_part_has_what_the_layer_uses_and_no_other_constant() -> None:
    source = planting.own_file(order.RaceOneInTwenty).read_text()
    assert "_CHANCE" in source
    assert "_SHIFTS" not in source
    whole = Path(order.__file__ or "").read_text().splitlines()
    assert all(line in ("", original) for line, original in zip(source.splitlines(), whole, strict=True))


def test_a_statement_that_belongs_to_no_layer_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2 belongs to no layer"):
        planting.part("from __future__ import annotations\nprint()\n", "Layer")


@pytest.mark.parametrize("layer", [order.RaceOneInTwenty, order.SumInAnyOrder, gates.Swapped])
def test_a_layer_is_loaded_alone_into_a_module_of_its_own(layer: type[Implementation]) -> None:
    found = Planted.load(layer).implementation
    module = sys.modules[found.cls.__module__]
    assert found.cls is not layer
    assert module is not sys.modules[layer.__module__]
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    assert own == [found.cls]
