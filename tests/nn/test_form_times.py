"""persistent_gpu's forms that are timed: which, and that passes run by the one that is forced."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.nn.form_times import Recurrence, best_candidates, force_config
from pytest_ecornn.verification import calls, verification
from tests.helpers.persistent import A100, on_cpu, small, verdicts
from tests.helpers.requirements import needs_compiler, needs_hopper
from tests.simulator.clusters_on_cpu import H200

__all__ = ["on_cpu"]  # a fixture


@pytest.mark.parametrize(("bytes", "is_backward"), [(2, False), (4, False), (2, True), (4, True)])
def test_the_best_of_each_kind_is_measured_and_with_them_the_one_that_is_chosen(bytes: int, is_backward: bool) -> None:
    problem = ProblemSize("lstm", 650, 32, MathMode(bytes, False), is_backward)
    found = best_candidates(problem, H200, 2)
    kinds = [form.kind for form in found]
    readers = set() if is_backward else {f"grid, {threads} readers" for threads in ((128, 256) if bytes == 2 else (256,))}
    abreast = set() if is_backward else {f"grid, {wide} sequences at once" for wide in (8, 16, 24, 32)}
    assert set(kinds) == {"clusters", "grid", "grid, wgmma"} | readers | abreast
    assert max(map(kinds.count, kinds)) == 2
    assert select_config(problem, H200) in found


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_a_form_is_forced_within_only() -> None:
    case = small("lstm", dtype="float16", mode="training", hidden_size=24)
    problem = ProblemSize("lstm", 24, 3, MathMode(2, False))
    form = Form(problem, 8, 3, 1, 1, reg_fragments=1)
    usual, made = kernel.compile_layer, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "compile_layer", lambda shape, kind: made.append(kind.is_backward) or usual(shape, kind))
        with force_config(form):
            assert verdicts(case) == []
        assert set(made) == {True}  # the backward pass is of another problem
        assert verdicts(case) == []
        assert set(made) == {True, False}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_the_recurrence_alone_is_one_launch(cell: str, is_backward: bool) -> None:
    problem = ProblemSize(cell, 9, 3, MathMode(2, False), is_backward)
    results = Recurrence(problem, torch.float16, steps=2, device="cpu")()
    width = GATES[cell] * 9 if is_backward else 9
    assert results[0].shape == (2, 3, width)
    assert results[0].isfinite().all()
    assert len(results) == (1 if is_backward else 3 if cell == "lstm" else 2)


@needs_hopper
@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "tf32"])
@pytest.mark.parametrize(("hidden", "batch"), [(64, 3), (512, 64), (650, 32), (1024, 128), (1500, 20)])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("has_clusters", [True, False])
def test_on_a_gpu_promising_forms_pass_the_rule(
    has_clusters: bool, cell: str, hidden: int, batch: int, dtype: str, is_backward: bool
) -> None:
    """Those of the device, and those that a device of compute capability 8.0 has, which has no clusters."""
    precise = {"dtype": "float32", "precision": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    options = {"steps": 3, "ragged": True, "device": "cuda", "mode": "training"}
    case = small(cell, hidden_size=hidden, batch=batch, **options, **precise)
    problem = ProblemSize(cell, hidden, batch, MathMode.of(case.dtype, case.precision), is_backward)
    drawn = contents.problem(case)
    expected, layer = verification.ReferenceResult(drawn), PersistentGpu().build(case, drawn.weights)
    for form in best_candidates(problem, Device.of(torch.device("cuda", 0)) if has_clusters else A100, 2):
        with force_config(form):
            found = expected.compare(calls.run(layer, drawn), PersistentGpu().declared)
        assert [one for one in found if one.status == "failed"] == [], str(form)
