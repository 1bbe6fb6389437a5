"""cusparse_gpu: what it will not run, and its loop, which torch's CSR product on a CPU runs as well."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.cusparse_gpu import CusparseGpu
from pytest_ecornn.verification import calls, verification

OPTIONS = {
    "plain": {},
    "one of each": {"steps": 1, "batch": 1, "hidden_size": 1, "input_size": 1},
    "all at once": {"layers": 2, "bidirectional": True, "ragged": True, "has_state": True, "batch_first": True},
    "projected": {"projected": True, "bidirectional": True, "input_size": 0},
    "without bias": {"bias": False, "has_state": True},
}


@pytest.mark.parametrize("cell", ["rnn_tanh", "rnn_relu", "lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_loop_passes_the_rule(cell: str, dtype: str, options: dict[str, Any]) -> None:
    sizes = {"steps": 5, "batch": 3, "hidden_size": 17, "input_size": 6, "density": 0.3, **options}
    case = Case(cell=cell, dtype=dtype, **sizes)
    problem, found = contents.problem(case), CusparseGpu()
    with torch.no_grad():
        results = calls.run(found.build(case, problem.weights), problem)
    compared = verification.ReferenceResult(problem).compare(results, found.declared)
    assert [one for one in compared if one.status == "failed"] == []
    assert found.cost(case).operations > 0


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("lstm-T3-B2-H4-float32-density0.1", "cuSPARSE runs on a CUDA device"),
        ("mingru-T3-B2-H4-float32-cuda", "no mingru: rnn_tanh, rnn_relu, lstm, gru only"),
        ("lstm-T3-B2-H4-float32-cuda", "runs pruned recurrent weights, of a density below 1"),
        (
            "lstm-T3-B2-H4-float32-cuda-density0.1-training",
            "runs inference alone: torch has no gradient of the non-zeros alone",
        ),
        ("lstm-T3-B2-H4-float16-cuda-density0.1-tf32", "TF32 is a precision of float32 products"),
    ],
)
def test_what_it_will_not_run_has_a_reason(case: str, reason: str) -> None:
    found = Case.parse(case)
    assert CusparseGpu().unsupported(found, torch.device(found.device)) == reason
