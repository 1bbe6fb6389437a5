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
