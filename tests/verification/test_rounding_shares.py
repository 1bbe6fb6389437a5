"""How 16-bit elements were rounded: what shares tell right from wrong, and the contents that make them tell."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, cut, through
from pytest_ecornn.selfcheck.correct.arithmetic import LogSpace
from pytest_ecornn.verification import calls, rounding_shares, verification
from pytest_ecornn.verification.rounding_shares import ANY, EXACT, Independent, Shares

VALUES = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


MANY = Independent(4000, 4000)


def shares(actual: Tensor, dtype: torch.dtype = torch.bfloat16) -> Shares:
    marks = rounding_shares.marks(actual.double(), VALUES.abs(), dtype)
    return rounding_shares.of_counts(*(mark.sum().item() for mark in marks))


def test_what_is_rounded_once_to_nearest_differs_nowhere_and_has_no_bias() -> None:
    found = shares(VALUES.bfloat16())
    assert found.differing == 0
    assert found.bias == 0
    assert 0.9 * len(VALUES) < found.counted < len(VALUES)  # not the smallest


def test_truncated_values_lie_nearer_to_zero() -> None:
    found = shares(cut(VALUES.float()))
    assert found.bias == found.differing
    assert 0.4 < found.differing < 0.6


def test_wider_types_have_no_shares() -> None:
    assert rounding_shares.marks(VALUES, VALUES.abs(), torch.float32) == []
    assert rounding_shares.of_counts() == EXACT._replace(counted=0)


def test_a_few_elements_prove_nothing() -> None:
    assert min(rounding_shares.limits(EXACT, 8, MANY, 0.0)) > 1
    assert max(rounding_shares.limits(EXACT, 4000, MANY, 0.0)) < 0.5
    assert min(rounding_shares.limits(ANY, 4000, MANY, 0.0)) > 1


class RoundedProduct(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        return through(super().h_gates(h, parameters), self.dtype)


class Truncated(Loop):
    def narrowed(self, state: Tensor) -> Tensor:
        return cut(state).to(self.dtype)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Loop, ""), (RoundedProduct, "share of elements that differ"), (Truncated, "share of elements")],
)
def test_roundings_that_are_not_declared_are_told_apart(kind: type[Loop], message: str) -> None:
    case = Case.parse("rnn_tanh-T1-B9-I33-H65-bfloat16-state-cancelling")
    expected = verification.ReferenceResult(contents.problem(case))
    tensors = calls.run(kind().build(case, expected.problem.weights), expected.problem)
    found = [one.message for one in expected.compare(tensors, Declared("float32")) if one.status == "failed"]
    assert bool(found) == bool(message)
    assert any(message in one for one in found) == bool(message)


@pytest.mark.parametrize("kind", ["drifting", "cancelling", "small"])
@pytest.mark.parametrize("cell", ["lstm", "minlstm"])
def test_new_contents_are_read_back_and_alike_for_the_same_seed(kind: str, cell: str) -> None:
    case = Case.parse(f"{cell}-T5-B3-I6-H4-float64-state-training-{kind}-seed3")
    assert Case.parse(str(case)) == case
    first, second = contents.problem(case), contents.problem(case)
    assert torch.equal(first.x, second.x)
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_large_terms_cancel_to_what_was_there() -> None:
    weight, values = torch.randn(3, 9, dtype=torch.float64), torch.randn(2, 9, dtype=torch.float64)
    contents.cancel_columns(5, "weight_ih_l0", weight)
    before = values @ weight.T
    contents.cancel_elements(5, values, torch.Generator().manual_seed(0))
    terms = values[:, None] * weight
    assert terms.abs().max() > 5 * before.abs().max()
    assert terms.sum(-1).abs().max() < 5 * before.abs().max()


def test_a_drifting_state_changes_by_little_in_a_step_and_by_more_in_all() -> None:
    problem = contents.problem(Case.parse("lstm-T33-B2-H4-float32-state-training-drifting"))
    tensors = verification.ReferenceResult(problem).tensors
    steps = tensors["output"].diff(dim=0)
    assert steps.abs().max() < 0.3
    assert (steps.sum(0).abs() > 16 * steps.abs().mean(0)).any()
    assert all(weight.min() >= 0 for weight in problem.output_gradients)


def test_shares_are_not_judged_where_a_gradient_jumps() -> None:
    """At zero the derivative of minGRU's positive candidate jumps; relu's, which published layers use there, is 0."""
    text = "mingru_positive-T3-B11-H9-float16-bidirectional-batchfirst-state-projected-training-zeros-transposed-seed9513"
    candidate = verification.Candidate.build("log_space", LogSpace, Case.parse(text))
    assert [one.message for one in candidate.verify() if one.status == "failed"] == []
