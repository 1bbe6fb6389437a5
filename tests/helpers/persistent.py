"""persistent_gpu on clusters of a CPU: small cases, what fails of them, and faults that are planted in a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer
from pytest_ecornn.implementations import persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu
from pytest_ecornn.verification import calls, verification
from pytest_ecornn.verification.comparison import TensorCheck
from tests.helpers.kernel_forms import copied
from tests.helpers.planted_faults import Fault
from tests.helpers.simulated_kernels import KERNELS, Seen, failures, reference_of
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import ClustersOnCpu

A100 = Device(108, 166_912, 1)
ARITHMETICS = [MathMode.of(*of) for of in (("float16", "ieee"), ("float32", "tf32"), ("float32", "ieee"))]


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Layers run on a CPU, on clusters small enough that many threads take turns there."""
    with KERNELS["cluster"].running({}, Seen()):
        yield


def layer_of(case: Case, weights: Any) -> Layer:
    return persistent_gpu.make_layer(case, weights, torch.device("cpu"))


def verdicts(case: Case, order: int = 0) -> list[TensorCheck]:
    """What fails, the threads taking turns in that order."""
    clusters_on_cpu.start_from(1000 * order)
    problem, reference = reference_of(case)
    return failures(reference, calls.run(layer_of(case, problem.weights), problem), PersistentGpu().declared)


def small(cell: str, **options: Any) -> Case:
    return Case(**{"cell": cell, "steps": 5, "batch": 3, "hidden_size": 9, "input_size": 6, "dtype": "bfloat16", **options})


def plant_fault(name: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """name: of the kernel or the header."""

    def change(changed: str, text: str) -> str:
        assert changed != name or right in text
        return text.replace(right, wrong) if changed == name else text

    monkeypatch.setattr(ClustersOnCpu, "change", staticmethod(change))
    clusters_on_cpu.forget()


def expect_right(case: Case) -> PersistentGpu:
    """That what it builds for a GPU passes the rule, and gives every bit again."""
    problem, implementation = contents.problem(case), PersistentGpu()
    layer = implementation.build(case, problem.weights)
    first, again = calls.run(layer, problem), calls.run(layer, problem)
    assert failures(verification.ReferenceResult(problem), first, implementation.declared) == []
    for name, tensor in first.items():
        repeated = again[name]
        assert repeated is None if tensor is None else repeated is not None and torch.equal(tensor, repeated)
    return implementation


def with_fault(source: Path, folder: Path, fault: Fault) -> Path:
    """A copy of a kernel and its headers in the folder, of which the fault's file has the fault."""
    name, right, wrong = fault
    file = copied(source, folder).with_name(name if name.endswith(".cuh") else source.name)
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, wrong))
    return folder / source.name
