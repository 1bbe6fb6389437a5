"""persistent_gpu on clusters of a CPU: small forms and cases, what fails of them, and faults that are planted in a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer
from pytest_ecornn.implementations import persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.verification import calls, verification
from tests.helpers.kernel_forms import copied
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import Broken, ClustersOnCpu

CELLS = tuple(GATES)
ARITHMETICS = [MathMode.of(*of) for of in (("float16", "ieee"), ("float32", "tf32"), ("float32", "ieee"))]


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Layers run on a CPU, on clusters small enough that many threads take turns there."""
    with clusters_on_cpu.running_layers(lambda shape, kind: form_of(shape, kind)):
        yield


def form_of(shape: persistent_kernel.Shape, kind: KernelSpec) -> Form:
    """A cluster of three blocks at most, of weights in registers and in shared memory both."""
    form = select_config(kind.problem(shape.cell, shape.hidden, shape.batch), Device(132, 232_448, 3), computes_inputs=True)
    assert isinstance(form, Form)
    return with_weights(form, 1, 0, 0)


def layer_of(case: Case, weights: Any) -> Layer:
    return persistent_gpu.make_layer(case, weights, torch.device("cpu"))


def verdicts(case: Case, order: int = 0) -> list[verification.TensorCheck]:
    """What fails, the threads taking turns in that order."""
    clusters_on_cpu.start_from(1000 * order)
    problem = contents.problem(case)
    found = calls.run(layer_of(case, problem.weights), problem)
    return [
        one for one in verification.ReferenceResult(problem).compare(found, PersistentGpu().declared) if one.status == "failed"
    ]


def small(cell: str, **options: Any) -> Case:
    return Case(**{"cell": cell, "steps": 5, "batch": 3, "hidden_size": 9, "input_size": 6, "dtype": "bfloat16", **options})


def with_weights(form: Form, reg_fragments: int, smem_fragments: int, ring: int) -> Form:
    """So many fragments there, or as many as there are. The others are in shared memory where a ring has nothing to bring."""
    near = -(-(reg_fragments + smem_fragments) // form.m_tiles_per_pass) * form.m_tiles_per_pass
    if not ring or form.fragments_per_warp - near < ring * form.stage_fragments:
        reg_fragments = min(reg_fragments, form.fragments_per_warp)
        return replace(form, reg_fragments=reg_fragments, smem_fragments=form.fragments_per_warp - reg_fragments)
    return replace(form, reg_fragments=reg_fragments, smem_fragments=near - reg_fragments, stream_stages=ring)


SENDS = "if (p * POINTWISE_WARPS + warp < BLOCKS - 1)"
A_BLOCK_IS_SENT_NOTHING = (SENDS, SENDS.replace("BLOCKS - 1", "BLOCKS - 2"))
GATES_OF_CLUSTER = "cluster_pointwise_warps.cuh"


def plant_fault(name: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """name: of the kernel or the header."""

    def change(changed: str, text: str) -> str:
        assert changed != name or right in text
        return text.replace(right, wrong) if changed == name else text

    monkeypatch.setattr(ClustersOnCpu, "change", staticmethod(change))
    clusters_on_cpu.forget()


def fails(case: Case, order: int) -> bool:
    try:
        return bool(verdicts(case, order))
    except Broken:
        return True


def expect_seen(case: Case, monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    """That the case passes, and in some order of the threads no longer with the fault in the kernel or header of that name."""
    assert not fails(case, 0)
    plant_fault(name, right, wrong, monkeypatch)
    assert any(fails(case, order) for order in range(8)), right


def expect_right(case: Case) -> PersistentGpu:
    """That what it builds for a GPU passes the rule, and gives every bit again."""
    problem, implementation = contents.problem(case), PersistentGpu()
    layer = implementation.build(case, problem.weights)
    first, again = calls.run(layer, problem), calls.run(layer, problem)
    compared = verification.ReferenceResult(problem).compare(first, implementation.declared)
    assert [one for one in compared if one.status == "failed"] == []
    for name, one in first.items():
        other = again[name]
        assert other is None if one is None else other is not None and torch.equal(one, other)
    return implementation


def assert_a_lost_message_raises(
    case: Case, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Of kernels as `plant` has them, which soon give up a wait: the next call raises. Those made afterwards are right."""
    problem = contents.problem(case)
    with monkeypatch.context() as patch:
        plant(patch)
        patch.setattr(persistent_kernel, "WATCHDOG_NS", 20_000_000)
        clusters_on_cpu.forget()
        calls.run(PersistentGpu().build(case, problem.weights), problem)
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cuda:0 is wrong"):
            calls.run(PersistentGpu().build(case, problem.weights), problem)
    clusters_on_cpu.forget()
    calls.run(PersistentGpu().build(case, problem.weights), problem)


def with_fault(source: Path, folder: Path, name: str, fault: tuple[str, str]) -> Path:
    """A copy of a kernel and its headers in the folder, of which the file of that name has the fault."""
    file = copied(source, folder).with_name(name)
    assert fault[0] in file.read_text()
    file.write_text(file.read_text().replace(*fault))
    return folder / source.name
