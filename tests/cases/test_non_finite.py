"""Contents with one value that is not finite, states of either sign, data of float64, and lengths of which none is T."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents, non_finite
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.cases.non_finite import leaves_undefined
from pytest_ecornn.cases.strategies import edge_cases, nearest_supported
from pytest_ecornn.contract import CONTENTS, Case, Declared, SupportedCases
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification.agreement import ResultComparator
from pytest_ecornn.verification.calls import run, tree_map_tensors
from pytest_ecornn.verification.comparison import non_finite_problem
from pytest_ecornn.verification.layer_rules import layer_rule
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.changed_loop import of_calls, planted


def odd(problem: Problem) -> dict[str, int]:
    """How many values are not finite, by place."""
    places: dict[str, tuple[Tensor, ...]] = {
        "x": (problem.x,), "state": problem.state, "weight": tuple(problem.weights.values())
    }  # fmt: skip
    counts = {name: sum(int((~one.isfinite()).sum()) for one in tensors) for name, tensors in places.items()}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("kind", non_finite.kinds())
def test_one_place_is_not_finite(kind: str) -> None:
    case = Case.parse(f"lstm-T3-B2-H5-float32-state-{kind}-seed3")
    assert Case.parse(str(case)) == case
    place = next((place for place in ("x", "weight") if kind.endswith(place)), "x" if kind == "nan" else "state")
    whole_row = 5 if kind in ("infinite", "negative_infinite") else 1
    assert odd(contents.problem(case)) == {place: whole_row}


def test_every_kind_is_one_of_the_contents() -> None:
    assert set(non_finite.kinds()) <= set(CONTENTS)
    assert non_finite.kinds(has_state=False, is_split=True) == ["nan", "nan_weight"]


@pytest.mark.parametrize("text", ["gru-T3-B2-H5-float32", "gru-T3-B2-H5-float32-state-resets"])
def test_recurrent_weights_stay_finite_where_zeros_may_be_skipped(text: str) -> None:
    for seed in range(4):
        weights = contents.problem(Case.parse(f"{text}-nan_weight-seed{seed}")).weights
        assert all(bool(weight.isfinite().all()) for name, weight in weights.items() if name.startswith("weight_hh"))


def test_what_infinities_leave_undefined_may_be_any_value() -> None:
    wanted, got = torch.tensor([float("nan"), float("inf")]), torch.tensor([0.5, float("inf")])
    cases = {kind: Case.parse(f"minlstm-T2-B1-H1-float32-{kind}") for kind in ("nan", "infinite_x")}
    rules = {kind: layer_rule(case, "output", (2, 1, 1)) for kind, case in cases.items()}
    judged = {kind: non_finite_problem(rule, got.double(), wanted.double(), 0.0) for kind, rule in rules.items()}
    assert judged == {"nan": "at [0] expected nan, got 0.5 (1 such elements)", "infinite_x": ""}


def test_float64_data_have_bits_that_float32_lacks() -> None:
    problem = contents.problem(Case.parse("lstm-T3-B2-H5-float64-state-training"))
    for tensor in (problem.x, *problem.state, *problem.output_gradients, *problem.weights.values()):
        assert bool((tensor != tensor.float().double()).any())


def test_of_half_the_seeds_no_sequence_has_all_steps() -> None:
    longest = [int(contents.problem(Case.parse(f"gru-T5-B3-H2-float32-ragged-seed{seed}")).lengths.max()) for seed in range(8)]  # type: ignore[union-attr]
    assert longest == [5, 5, 4, 4, 5, 5, 4, 4]
    assert contents.sequence_lengths(Case.parse("gru-T1-B3-H2-float32-ragged-seed2")).tolist() == [1, 1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "is_undefined"),
    [
        ("infinite_x", True),
        ("state-negative_infinite_weight", True),
        ("state-infinite", False),
        ("L2-state-infinite", True),  # the first layer's output is infinite, and the next layer's x
        ("L2-state-nan_state", False),
        ("L2-nan", False),
    ],
)
def test_where_infinities_may_meet(options: str, is_undefined: bool) -> None:
    layers = "-L2" * options.startswith("L2-")
    case = Case.parse(f"minlstm-T2-B2-H4{layers}-float32-{options.removeprefix('L2-')}")
    assert leaves_undefined(case) == is_undefined


@pytest.mark.parametrize("kind", ["infinite", "negative_infinite", "nan_state"])
@pytest.mark.parametrize(
    ("cell", "is_multiplied"), [("gru", True), ("rnn_tanh", True), ("rnn_relu", True), ("lstm", False), ("mingru", False)]
)
def test_an_infinite_state_leaves_undefined_what_recurrent_weights_make_of_it(
    cell: str, is_multiplied: bool, kind: str
) -> None:
    """As of the sum of +inf and -inf. An LSTM's is c, which no weight multiplies."""
    case = Case.parse(f"{cell}-T3-B2-H8-float32-state-{kind}-seed1")
    cleared = of_calls(
        lambda layer, *given: tree_map_tensors(lambda one: one.nan_to_num(0.5, math.inf, -math.inf), layer(*given))
    )
    found = [one.status for one in Candidate.build("cleared", planted(cleared), case).verify()]
    is_undefined = is_multiplied and kind != "nan_state"
    assert leaves_undefined(case) == is_undefined
    assert ("failed" in found) == (kind == "nan_state")


@pytest.mark.parametrize("swap", [False, True])
def test_results_agree_where_they_are_undefined(swap: bool) -> None:
    comparator = ResultComparator(
        contents.problem(Case.parse("gru-T3-B2-H8-float32-state-infinite-seed1")), Declared("float32")
    )
    wanted = run(ReferenceLoop().build(comparator.problem.case, comparator.problem.weights), comparator.problem)
    other = {name: value if value is None else value.nan_to_num(0.5) for name, value in wanted.items()}
    assert comparator.allclose(*((other, wanted) if swap else (wanted, other))) == ""
    other = {name: value if value is None else value * 1.01 for name, value in wanted.items()}
    assert "is over its limit" in comparator.allclose(*((other, wanted) if swap else (wanted, other)))


@pytest.mark.parametrize("cell", ["mingru_positive", "minlstm_positive", "mingru", "lstm"])
@pytest.mark.parametrize("contents_kind", ["normal", "large", "negative_state", "negative_infinite"])
def test_states_of_positive_cells_are_positive_but_for_contents_of_another_sign(cell: str, contents_kind: str) -> None:
    case = Case(cell=cell, steps=3, batch=4, hidden_size=9, has_state=True, contents=contents_kind)
    timed = contents.state_rows(replace(case, contents="normal"), 8, contents.generator(0, "x"))
    drawn = [*contents.problem(case).state, *timed]
    is_negative = [bool((state < 0).any()) for state in drawn]
    odd = not cell.endswith("positive") or contents_kind.startswith("negative")
    half = len(drawn) // 2
    assert is_negative == [odd] * half + [not cell.endswith("positive")] * half
    assert (SupportedCases(negative_state=False).refusal(case) is None) != (
        cell.endswith("positive") and contents_kind.startswith("negative")
    )


@pytest.mark.parametrize(("cell", "has_corner"), [("mingru_positive", True), ("minlstm_positive", True), ("mingru", False)])
def test_negative_states_of_positive_cells_are_a_case_of_their_own(cell: str, has_corner: bool) -> None:
    corners = edge_cases(SupportedCases((cell,)), cell, "float32")
    assert [one.mode for one in corners if one.contents == "negative_state"] == ["inference", "training"] * has_corner
    declared = SupportedCases(negative_state=False)
    runs = [nearest_supported(one, declared.refusal, declared) for one in corners]
    assert not any(one.has_negative_state for one in runs if one)
