"""Two results of one implementation: what is said of the first that differ."""

from __future__ import annotations

import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification.agreement import ResultComparator, bitwise_equal
from pytest_ecornn.verification.calls import Tensors, copy_tensors, run
from pytest_ecornn.verification.comparison import zero_problem

TRAINING = Case.parse("gru-T4-B2-H5-float32-state-training")


def _results() -> tuple[ResultComparator, Tensors]:
    comparator = ResultComparator(contents.problem(TRAINING), Declared("float32"))
    return comparator, copy_tensors(run(ReferenceLoop().build(TRAINING, comparator.problem.weights), comparator.problem))


def test_of_differing_elements_the_one_that_differs_most_is_shown() -> None:
    _, wanted = _results()
    got = copy_tensors(wanted)
    output = got["output"]
    assert output is not None
    output.view(-1)[:3] += torch.tensor([1e-7, 0.5, 1e-6])
    message = bitwise_equal(wanted, got)
    assert message.startswith("output: at [0, 0, 1] expected ")
    assert message.endswith("(3 of 40 elements differ)")


def test_of_differing_tensors_a_result_is_shown_or_else_the_largest_gradient() -> None:
    """One of 7.7e-34 convinces nobody where another is wrong as well."""
    comparator, wanted = _results()
    small, large, final = "grad x", "grad weight_hh_l0", "final h"
    for name, scale in ((small, 1e-33), (large, 1.0)):
        wanted[name] = torch.full_like(wanted[name], scale)  # type: ignore[arg-type]
    got = copy_tensors(wanted)
    for name in (small, large):
        got[name] = got[name] * 0.5  # type: ignore[operator]
    assert bitwise_equal(wanted, got).startswith(f"{large}: ")
    assert comparator.allclose(wanted, got).startswith(large)
    got[final] = got[final] + 0.5  # type: ignore[operator]
    assert bitwise_equal(wanted, got).startswith(f"{final}: ")
    assert comparator.allclose(wanted, got).startswith(final)


def test_of_values_in_padding_the_largest_is_shown() -> None:
    actual, valid = (
        torch.tensor([[7.7e-34, 0.0], [-3.0, 1.0]], dtype=torch.float64),
        torch.tensor([[False, True], [False, True]]),
    )
    assert zero_problem(actual, valid) == "at [1, 0] expected exactly 0 (padding or a pruned weight), got -3 (2 such elements)"
    actual[0, 0] = float("nan")
    assert "at [0, 0] expected exactly 0 (padding or a pruned weight), got nan" in zero_problem(actual, valid)
