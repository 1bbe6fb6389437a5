"""Cases of equal sizes: each relation holds, options are the domain's, and a refusal leads to multiples of a larger number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_ecornn.cases.equal_sizes import MANY_SEQUENCES, equal_sizes
from pytest_ecornn.cases.strategies import nearest_supported
from pytest_ecornn.contract import MODES, Case, SupportedCases, cells

Holds = Callable[[Case, int], bool]
RELATIONS: dict[str, Holds] = {
    "I is G*H": lambda case, gates: case.input_size == gates * case.hidden_size,
    "I is H, the next layer's": lambda case, gates: case.input_size == case.hidden_size and case.layers == 2,
    "I is 2H, the next layer's": lambda case, gates: (
        case.input_size == 2 * case.hidden_size and case.layers == 2 and case.bidirectional
    ),
    "I + H is G*H": lambda case, gates: case.input_size + case.hidden_size == gates * case.hidden_size,
    "T is B": lambda case, gates: case.steps == case.batch and not case.batch_first and case.has_state,
    "T is B, batch first": lambda case, gates: case.steps == case.batch and case.batch_first,
    "T is B, resets": lambda case, gates: case.steps == case.batch and case.resets,
    "B is H, lengths": lambda case, gates: case.batch == case.hidden_size and case.ragged,
    "T is I": lambda case, gates: case.steps == case.input_size != case.batch,
    "T is H": lambda case, gates: case.steps == case.hidden_size != case.batch,
    "I is B": lambda case, gates: case.batch == case.input_size != case.hidden_size,
    "B is G*H": lambda case, gates: case.batch == gates * case.hidden_size,
    "T is G*H": lambda case, gates: case.steps == gates * case.hidden_size,
    "T*B is G*H": lambda case, gates: case.steps * case.batch == gates * case.hidden_size,
    "L*D is B": lambda case, gates: case.batch == case.layers * case.directions == 4 and case.has_state,
    "L*D is H": lambda case, gates: case.hidden_size == case.layers * case.directions == 4 and case.has_state,
    "many sequences": lambda case, gates: case.batch == MANY_SEQUENCES,
}


def planned(cell: str = "lstm", seed: int = 0, refusal: Any = None, **domain: Any) -> list[Case]:
    supported = (lambda case: nearest_supported(case, refusal)) if refusal else lambda case: case
    base = Case(cell=cell, steps=4, batch=2, hidden_size=8)
    return list(equal_sizes(SupportedCases((cell,), **{"resets": True, **domain}), base, MODES[-1:], seed, supported))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("cell", ["gru", "lstm", "mingru"])
def test_each_relation_is_planned(cell: str, relation: str) -> None:
    gates = len(cells.get(cell).gates)
    for seed in range(3):
        assert any(RELATIONS[relation](case, gates) for case in planned(cell, seed))


def test_cases_are_inside_the_domain() -> None:
    narrow = {"projected": False, "ragged": False, "resets": False, "max_layers": 1, "bidirectional": False}
    domain = SupportedCases(("gru",), **narrow)  # type: ignore[arg-type]
    assert [refusal for case in planned("gru", **narrow) if (refusal := domain.refusal(case))] == []


def test_a_relation_is_kept_in_multiples_of_what_runs() -> None:
    cases = planned(refusal=lambda case: "needs multiples of 16" if case.hidden_size % 16 or case.batch % 8 else None)
    kept = {name for name, holds in RELATIONS.items() if any(holds(case, 4) for case in cases)}
    assert {"I is G*H", "T is B", "B is H, lengths", "B is G*H", "T*B is G*H"} <= kept
    assert "many sequences" not in kept


def test_pre_activations_alone_have_the_relations_without_inputs() -> None:
    cases = planned("mingru", refusal=lambda case: None if case.projected else "takes pre-activations")
    assert cases
    assert all(case.projected for case in cases)
    assert any(case.steps == case.batch for case in cases)
