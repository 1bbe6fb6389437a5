"""Rounded weights: how they are rounded, and that a kernel which declares it is judged by them, and by nothing looser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Declared, Weights
from pytest_ecornn.contract.weight_rounding import quantize, round_matrix, round_weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification import calls, spot_check
from pytest_ecornn.verification.agreement import ResultComparator
from pytest_ecornn.verification.verification import ReferenceResult

CASE = Case.parse("lstm-T7-B3-I6-H9-L2-float32-bidirectional-ragged-state")
INT8 = Declared("float32", weight_rounding="int8")


def test_a_row_is_its_int8_values_times_its_scale() -> None:
    matrix = torch.tensor([[1.0, -127.0, 63.5, 0.4], [0.0, 0.0, 0.0, 0.0], [0.0, 1e-45, -1e-45, 0.0], [2.0, 1.0, -2.0, 0.0]])
    values, scales = quantize(matrix)
    assert values.tolist() == [[1, -127, 64, 0], [0, 0, 0, 0], [0, 0, 0, 0], [127, 64, -127, 0]]
    assert scales.tolist() == [1.0, 1.0, 1.0, torch.tensor(2.0).div(127).item()]
    assert torch.equal(round_matrix(matrix, "int8"), values * scales[:, None])


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_int8_refuses_what_is_not_finite(odd: float) -> None:
    with pytest.raises(ValueError, match="expected finite weights to round to int8, got NaN or an infinity"):
        quantize(torch.tensor([[1.0, odd]]))


def test_matrices_are_rounded_within_their_pattern_and_biases_are_not() -> None:
    weights = contents.make_weights(Case.parse("gru-T3-B2-H8-float16-density0.3"))
    rounded = round_weights(weights, "int8")
    assert torch.equal(rounded["bias_hh_l0"], weights["bias_hh_l0"])
    assert torch.equal(rounded["weight_hh_l0"], round_matrix(weights.masked("weight_hh_l0"), "int8"))
    assert round_weights(weights, "none") is weights


def by_matrix(matrix: Tensor) -> Tensor:
    """Rounded to int8 by a scale of the whole matrix."""
    return round_matrix(matrix.reshape(1, -1), "int8").view(matrix.shape)


def loop_on(weights: Weights, declared: Declared) -> list[str]:
    """The tensors that fail where a plain loop on these weights declares that rounding of the case's own."""
    expected = ReferenceResult(contents.problem(CASE))
    tensors = calls.run(ReferenceLoop().build(CASE, weights), expected.problem)
    return [one.tensor for one in expected.compare(tensors, declared) if one.status == "failed"]


def changed(weights: Weights, change: Any) -> Weights:
    return Weights({name: change(one.detach()) if one.dim() == 2 else one for name, one in weights.items()})


def test_what_rounds_as_it_declares_passes_and_all_else_fails() -> None:
    own = contents.make_weights(CASE)
    assert loop_on(round_weights(own, "int8"), INT8) == []
    assert loop_on(round_weights(own, "bfloat16"), Declared("float32", weight_rounding="bfloat16")) == []
    for other in (own, round_weights(own, "bfloat16"), changed(own, by_matrix)):
        assert "output" in loop_on(other, INT8)
    assert "output" in loop_on(round_weights(own, "int8"), Declared("float32"))


def test_timed_calls_are_checked_by_rounded_weights() -> None:
    problem = contents.problem(CASE)
    rounded = replace(problem, weights=round_weights(problem.weights, "int8"))
    made = [(lambda: problem, calls.run(ReferenceLoop().build(CASE, rounded.weights), rounded))]
    assert spot_check.shares(made, INT8)[0] < 1 < spot_check.shares(made, Declared("float32"))[0]


def test_results_are_compared_within_the_limits_of_rounded_weights() -> None:
    problem = contents.problem(Case.parse("rnn_relu-T4-B2-H8-float32-infinite_x"))
    tensors = calls.run(ReferenceLoop().build(problem.case, round_weights(problem.weights, "int8")), problem)
    other = {name: None if one is None else one * (1 + 2**-23) for name, one in tensors.items()}
    assert not ResultComparator(problem, INT8).allclose(tensors, other)


def test_the_cost_of_rounding_is_small_and_not_zero() -> None:
    expected = ReferenceResult(contents.problem(CASE))
    assert 0 < expected.rounding_error("bfloat16") < expected.rounding_error("int8") < 0.02
    assert expected.rounding_error("none") == 0
