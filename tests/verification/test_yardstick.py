"""The yardstick's loop: permuted and put back, its gates moved with or without a copy."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification import calls
from pytest_ecornn.verification.yardstick import Permutation, PerturbedActivations

CASES = [
    "lstm-T7-B5-I6-H9-L2-float32-bidirectional-ragged-state-training",
    "gru-T7-B5-I6-H9-bfloat16-resets-training-saturated",
    "mingru_positive-T7-B5-I6-H9-float32-state-training",
    "minlstm-T7-B5-H9-float32-projected-training",
    "rnn_tanh-T7-B5-I6-H9-float16-batchfirst",
]


@pytest.mark.parametrize("case", CASES)
def test_gates_moved_where_they_lie_give_what_moved_copies_do(case: str) -> None:
    problem = contents.problem(Case.parse(case))
    layer, found = ReferenceLoop().build(problem.case, problem.weights), []
    for saves_values in (False, True):
        with PerturbedActivations(problem.case, 3, 2.0**-12, saves_values=saves_values):
            found.append(calls.run(layer, problem))
    copied, in_place = found
    unmoved = calls.run(layer, problem)
    assert not torch.equal(*(tensors["output"] for tensors in (in_place, unmoved)))  # type: ignore[arg-type]
    eps = torch.finfo(contents.torch_dtype(problem.case)).eps
    for name, tensor in copied.items():
        is_gradient = name.startswith("grad")  # whose products autograd makes in another order
        torch.testing.assert_close(in_place[name], tensor, rtol=0, atol=64 * eps if is_gradient else 0)


def test_a_run_that_searches_moves_pre_activations_by_their_own_units() -> None:
    """A sigmoid of -40 errs by 40 units where its argument errs by one."""
    case, x, eps = Case.parse(CASES[0]), torch.full((1024,), -40.0), torch.finfo(torch.float32).eps
    for is_searching, least, most in ((False, 0.5, 1.5), (True, 60.0, 84.0)):
        with PerturbedActivations(case, 3, is_searching=is_searching):
            moved = torch.sigmoid(x)
        assert least * eps <= (moved / torch.sigmoid(x) - 1).abs().max() <= most * eps


@pytest.mark.parametrize("case", CASES)
def test_a_permutation_is_undone(case: str) -> None:
    problem = contents.problem(Case.parse(case))
    permutation = Permutation.sample(problem.case, 0)
    for name, tensor in calls.run(ReferenceLoop().build(problem.case, problem.weights), problem).items():
        assert tensor is not None
        if not name.startswith(("final", "grad initial")):
            permuted = permutation.apply(name, tensor)
            assert torch.equal(permutation.undo(name, permuted), tensor)
