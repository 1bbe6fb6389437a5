"""Contents have what their kind says."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.verification.verification import ReferenceResult


@pytest.mark.parametrize(
    "cell", ["rnn_tanh", "rnn_relu", "lstm", "gru", "mingru", "mingru_positive", "minlstm", "minlstm_positive"]
)
@pytest.mark.parametrize(("dtype", "largest"), [("float64", 2.0**-25), ("bfloat16", 2.0**-25), ("float16", 4.0)])
def test_results_on_small_contents_are_small_and_not_vanished(cell: str, dtype: str, largest: float) -> None:
    tensors = ReferenceResult(contents.problem(Case.parse(f"{cell}-T5-B3-H17-{dtype}-state-training-small"))).tensors
    assert 0.01 * largest < tensors["output"].abs().max() < largest


@pytest.mark.parametrize("seed", range(3))
def test_a_pattern_of_zeros_has_an_empty_row_an_empty_column_and_zeros_inside(seed: int) -> None:
    problem = contents.problem(Case.parse(f"lstm-T3-B2-H18-float32-density0.7-training-zeros-seed{seed}"))
    weight, mask = problem.weights["weight_hh_l0"], problem.weights.masks["weight_hh_l0"]
    assert not mask.any(1).all()
    assert not mask.any(0).all()
    assert (mask & (weight == 0)).any()
    decoy = contents.make_weights(problem.case, "decoy")
    assert torch.equal(decoy.masks["weight_hh_l0"], mask)
    assert not torch.equal(decoy["weight_hh_l0"] == 0, weight == 0)
