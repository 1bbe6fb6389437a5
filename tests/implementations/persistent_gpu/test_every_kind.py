"""Every kind of form that persistent_gpu may take on a device, with clusters and without, passes the rule on a CPU."""

from __future__ import annotations

import pytest

from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.suites.sanitized import _best
from tests.helpers.persistent import A100, small, verdicts
from tests.helpers.requirements import needs_compiler
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200

HIDDEN, BATCH = 26, 19  # which no tile divides
DEVICES = {"compute capability 9.0": H200, "8.0": A100}
CASES = [
    (device, dtype, is_backward, name)
    for device, limits in DEVICES.items()
    for dtype in ("float16", "float32")
    for is_backward in (False, True)
    for name in _best(ProblemSize("gru", HIDDEN, BATCH, MathMode.of(dtype, "ieee"), is_backward), limits)
]


def test_the_kinds_are_all_that_a_device_has() -> None:
    kinds = {device: {name for of, _, _, name in CASES if of == device} for device in DEVICES}
    assert kinds["compute capability 9.0"] - kinds["8.0"] == {"clusters"}
    assert kinds["8.0"] >= {"blocks", "grid", "grid, 128 readers", "grid, 256 readers", "grid, 8 sequences at once"}
    assert "grid, 8 sequences at once, weights split once" in kinds["8.0"]


@needs_compiler
@pytest.mark.parametrize(("device", "dtype", "is_backward", "name"), CASES)
@pytest.mark.test_all(keep=3)
def test_each_passes_the_rule(device: str, dtype: str, is_backward: bool, name: str) -> None:
    def form_of(shape: kernel.Shape, kind: KernelSpec) -> Form:
        problem = kind.problem(shape.cell, shape.hidden, shape.batch)
        form = _best(problem, limits)[name] if kind.is_backward == is_backward else select_config(problem, limits)
        assert isinstance(form, Form)
        taken.append(form)
        return form

    limits: Device = DEVICES[device]
    taken: list[Form] = []
    with clusters_on_cpu.running_layers(form_of):
        case = small("gru", hidden_size=HIDDEN, batch=BATCH, steps=3, ragged=True, mode="training", dtype=dtype)
        assert verdicts(case) == []
    assert {form.problem.is_backward for form in taken} == {False, True}
