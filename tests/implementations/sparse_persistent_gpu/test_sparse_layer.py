"""sparse_persistent_gpu: its form is a function of sizes and pattern; patterns of all kinds run on a CPU, and techniques."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.implementations import sparse_persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu
from pytest_ecornn.implementations.sparse_persistent_gpu.config import ALL, SparseConfig, Techniques
from pytest_ecornn.implementations.sparse_persistent_gpu.heuristics import capacity, expected_counts, select_config
from pytest_ecornn.implementations.sparse_persistent_gpu.layer import Layer
from pytest_ecornn.verification import calls, verification
from tests.helpers.requirements import needs_compiler
from tests.helpers.simulated_kernels import CELLS, failures, runs
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import FEW, H200


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with clusters_on_cpu.running_sparse(FEW):
        yield


# Forms.


@settings(max_examples=30, deadline=None)  # some take long to choose for
@given(
    st.sampled_from(CELLS), st.integers(1, 3000), st.integers(1, 64), st.sampled_from([0.01, 0.1, 0.3, 0.9]),
    st.sampled_from(["float32", "bfloat16"]), st.booleans(), st.sampled_from([H200, Device(108, 166_912, 1)]),
    st.sampled_from([ALL, replace(ALL, wide_reads=False), replace(ALL, bank_order=False), replace(ALL, clusters=False)]),
)  # fmt: skip
def test_a_form_covers_all_units_and_sequences_and_fits(
    cell: str, hidden: int, batch: int, density: float, dtype: str, is_backward: bool, device: Device, techniques: Techniques
) -> None:
    problem = ProblemSize(cell, hidden, batch, MathMode.of(dtype, "ieee"), is_backward)
    form = select_config(problem, expected_counts(problem, density), device, techniques)
    if isinstance(form, str):
        assert density * hidden * hidden * GATES[cell] > 2_000_000, form
        return
    assert form.blocks * form.groups <= device.num_sms
    assert form.units * form.blocks >= hidden > form.units * (form.blocks - 1)
    assert form.sequences * form.tiles * form.groups >= batch > form.sequences * form.tiles * (form.groups - 1)
    assert form.shared_bytes <= device.shared_bytes
    assert form.rounds == 2 * (form.reg_pairs + form.smem_pairs)
    assert form.launch.grid == form.blocks * form.groups
    assert techniques.wide_reads or form.sequences == 1
    assert form.cluster == 1 or (techniques.clusters and form.tiles == 1 and form.blocks % form.cluster == 0)


def test_capacity_is_the_largest_that_fits() -> None:
    problem = ProblemSize("lstm", 1, 4, MathMode.of("float32", "ieee"))
    found = capacity(problem, 0.1, H200)
    assert found > 3500
    for hidden, fits in ((found, True), (found + 1, False)):
        own = problem._replace(hidden=hidden)
        assert isinstance(select_config(own, expected_counts(own, 0.1), H200), SparseConfig) == fits
    assert capacity(problem, 0.05, H200) > found > capacity(problem, 0.2, H200)
    assert capacity(problem, 0.1, Device(132, 1000, 1)) == 0
    # Five times the parameters of a large layer.
    assert capacity(ProblemSize("rnn_tanh", 1, 4, MathMode.of("float16", "ieee")), 0.1, H200) >= 5120


def test_most_of_the_published_grid_is_supported() -> None:
    grid = itertools.product((1152, 1792, 2304, 3072, 4608, 5760), (1, 2, 4, 8, 16, 32), (0.01, 0.05, 0.1, 0.2, 0.3))
    cases = [f"rnn_tanh-T256-B{batch}-H{hidden}-float32-cuda-density{density}" for hidden, batch, density in grid]
    with on_a_gpu(H200):
        refused = [name for name in cases if SparsePersistentGpu().unsupported(Case.parse(name), torch.device("cuda"))]
    assert len(refused) <= 0.2 * len(cases), refused


@contextmanager
def on_a_gpu(device: Device) -> Iterator[None]:
    """Within it there seems to be one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_persistent_gpu, "skip_reason", lambda _: None)
        patch.setattr(Device, "of", lambda _: device)
        yield


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    case = Case.parse("lstm-T3-B2-H8192-float16-cuda-density0.3-training")
    with on_a_gpu(H200):
        reason = SparsePersistentGpu().unsupported(case, torch.device("cuda"))
    assert re.fullmatch(
        r"H 8192 with 80,5\d\d,\d\d\d non-zeros does not fit: they, 4 bytes each, and the states of a sequence must lie in 72 "
        r"registers of each of 512 threads and the 232448 bytes of shared memory of each of 132 multiprocessors",
        str(reason),
    )


@pytest.mark.usefixtures("on_cpu")
def test_a_pattern_that_does_not_fit_is_refused_when_it_is_built() -> None:
    mask = torch.ones(900, 900, dtype=torch.bool)
    with pytest.raises(Unsupported, match="H 900 with 810,000 non-zeros does not fit: they, 6 bytes each"):
        layer_of(mask)


def layer_of(mask: Tensor, techniques: Techniques = ALL, cell: str = "rnn_tanh") -> Layer:
    spec = KernelSpec(torch.float32, torch.device("cpu"), saves_for_backward=True)
    return Layer(cell, mask, 1, spec, False, False, techniques)


# Patterns and techniques.


def uneven(rows: int, columns: int) -> Tensor:
    """Some rows and columns full, some empty, the last units' alone."""
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    mask[-3 * rows // columns :], mask[:, -2:] = True, True
    mask[::5] = False
    return mask


PATTERNS = {
    "empty": lambda rows, columns: torch.zeros(rows, columns, dtype=torch.bool),
    "full": lambda rows, columns: torch.ones(rows, columns, dtype=torch.bool),
    "one": lambda rows, columns: torch.arange(rows * columns).reshape(rows, columns) == rows * columns - 1,
    "one a row": lambda rows, columns: torch.arange(columns)[None, :] == (torch.arange(rows) % columns)[:, None],
    "one row": lambda rows, columns: (torch.arange(rows) == rows // 2)[:, None].expand(rows, columns),
    "one column": lambda rows, columns: (torch.arange(columns) == 3)[None, :].expand(rows, columns),
    "uneven": uneven,
}


def masked(case: Case, pattern: Callable[[int, int], Tensor]) -> contents.Problem:
    """The case with all of its recurrent weights pruned so."""
    problem = contents.problem(case)
    random = torch.Generator().manual_seed(0)
    for name, mask in problem.weights.masks.items():
        problem.weights.masks[name] = pattern(*mask.shape).contiguous()
        with torch.no_grad():
            problem.weights[name].copy_(torch.randn(mask.shape, generator=random) * 0.2)
    return problem


def expect_right(line: str, pattern: Callable[[int, int], Tensor], orders: int = 1) -> set[int]:
    """That the case passes with weights of that pattern. Returns how many blocks the clusters of its forms have."""
    run = runs(line)[0]
    problem = masked(run.case, pattern)
    with run.running() as seen:
        assert all(run.failed(order, problem) == [] for order in range(orders))
    return {form.cluster for form in seen.forms}


@needs_compiler
@pytest.mark.parametrize("name", PATTERNS)
def test_clusters_are_chosen_where_all_their_blocks_depend_on_each_other(name: str) -> None:
    line = "sparse cluster=2 lstm-T4-B2-I6-H23-float32-ragged-state-density0.4-training"
    assert expect_right(line, PATTERNS[name]) == {2 if name in ("full", "uneven") else 1}


@needs_compiler
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_passes_the_rule(cell: str, name: str) -> None:
    line = f"sparse {cell}-T4-B3-I6-H23-float32-bidirectional-ragged-state-density0.4-training"
    expect_right(line, PATTERNS[name])


@needs_compiler
@pytest.mark.parametrize("technique", [field.name for field in fields(ALL)])
@pytest.mark.parametrize("cell", ["rnn_relu", "lstm", "gru"])
@pytest.mark.parametrize("state", ["", "-state"])
def test_each_technique_may_be_left_out(cell: str, technique: str, state: str) -> None:
    expect_right(f"sparse without={technique} {cell}-T4-B5-I6-H23-float16{state}-density0.4-training", uneven, orders=2)


@pytest.mark.usefixtures("on_cpu")
def test_uneven_units_change_places() -> None:
    mask = uneven(23, 23)
    assert [part.places.hidden > 23 for part in layer_of(mask).passes] == [True, True]
    assert [part.places.hidden for part in layer_of(mask, replace(ALL, balance=False)).passes] == [23, 23]


@needs_compiler
def test_weights_may_change_between_calls_of_training() -> None:
    run = runs("sparse gru-T4-B3-I6-H20-float32-density0.4-training")[0]
    problem = contents.problem(run.case)
    with run.running():
        layer = run.layer(problem)
        calls.run(layer, problem)
        with torch.no_grad():
            problem.weights["weight_hh_l0"].mul_(-0.5)
        assert failures(verification.ReferenceResult(problem), calls.run(layer, problem), run.kernel.declared) == []


@needs_compiler
def test_gradients_of_gradients_are_refused() -> None:
    run = runs("sparse lstm-T4-B3-I6-H9-float32-density0.4-training")[0]
    problem = contents.problem(run.case)
    with run.running():
        output, _ = run.layer(problem)(problem.x.requires_grad_(), problem.state, None)
        (gradient,) = torch.autograd.grad(output.sum(), problem.x, create_graph=True)
        with pytest.raises(NotImplementedError, match="sparse_persistent_gpu is differentiable once"):
            gradient.sum().backward()
