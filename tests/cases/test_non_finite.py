"""Contents with one value that is not finite, data of float64, and lengths of which none is T."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents, non_finite
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.cases.non_finite import leaves_undefined
from pytest_ecornn.contract import CONTENTS, Case
from pytest_ecornn.verification.comparison import non_finite_problem


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
    judged = {
        kind: non_finite_problem(Case.parse(f"minlstm-T1-B1-H1-float32-{kind}"), got.double(), wanted.double(), 0.0)
        for kind in ("nan", "infinite_x")
    }
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
