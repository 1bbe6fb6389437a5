"""sparse_persistent_gpu: its form is a function of sizes and pattern; its kernels run with all blocks at once on a CPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Unsupported
from pytest_ecornn.implementations import sparse_persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu, cost_model, heuristics, packed_weight
from pytest_ecornn.implementations.sparse_persistent_gpu.config import ALL, SparseConfig, Techniques
from pytest_ecornn.implementations.sparse_persistent_gpu.heuristics import capacity, expected_counts, select_config
from pytest_ecornn.implementations.sparse_persistent_gpu.layer import Layer
from pytest_ecornn.verification import calls, verification
from tests.helpers.persistent import plant_fault
from tests.helpers.requirements import needs_compiler
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import FEW, H200, Broken

CELLS = tuple(GATES)


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with clusters_on_cpu.running_sparse(FEW):
        yield


@pytest.fixture
def on_clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if sending took no time, so that clusters of two are chosen where they can be."""
    monkeypatch.setattr(heuristics, "_CLUSTERS", (2,))
    monkeypatch.setattr(cost_model, "H200", replace(cost_model.H200, send_clocks=-1e9))
    with clusters_on_cpu.running_sparse(Device(6, 232_448, 16)):
        yield


def small(cell: str, **options: Any) -> Case:
    sizes = {"steps": 4, "batch": 3, "hidden_size": 9, "input_size": 6, "dtype": "float32", "density": 0.4}
    return Case(**{"cell": cell, **sizes, **options})


def of_any_sizes(most_sequences: int) -> st.SearchStrategy[Case]:
    return st.builds(
        small, st.sampled_from(CELLS), steps=st.integers(1, 8), batch=st.integers(1, most_sequences),
        hidden_size=st.integers(1, 60), ragged=st.booleans(), seed=st.integers(0, 2**20),
        dtype=st.sampled_from(["float16", "float32"]), density=st.sampled_from([0.02, 0.3, 0.8]), has_state=st.just(True),
        mode=st.just("training"),
    )  # fmt: skip


def failed(
    case: Case, problem: contents.Problem, techniques: Techniques = ALL, order: int = 0
) -> list[verification.TensorCheck]:
    """What fails, the threads taking turns in that order."""
    clusters_on_cpu.start_from(1000 * order)
    layer, _ = sparse_persistent_gpu.make_layer(case, problem.weights, torch.device("cpu"), techniques)
    compared = verification.ReferenceResult(problem).compare(calls.run(layer, problem), SparsePersistentGpu().declared)
    return [one for one in compared if one.status == "failed"]


def verdicts(case: Case, techniques: Techniques = ALL, order: int = 0) -> list[verification.TensorCheck]:
    return failed(case, contents.problem(case), techniques, order)


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


def test_five_times_the_parameters_of_a_large_layer_stay_on_chip() -> None:
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


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("mingru-T3-B2-H4-bfloat16-cuda", "no mingru: rnn_tanh, rnn_relu, lstm, gru only"),
        ("lstm-T3-B2-H4-float16-cuda", "runs pruned recurrent weights, of a density below 1"),
        ("lstm-T3-B2-H4-float64-cuda-density0.1", "runs bfloat16, float16 and float32, not float64"),
        ("lstm-T3-B2-H4-float16-density0.1", "runs on a CUDA device"),
        ("lstm-T1073741824-B1-H1-float16-cuda-density0.1", "T and G * B * H must be below 2^30, got 1073741824"),
    ],
)
def test_what_it_will_not_run_has_a_reason(case: str, reason: str) -> None:
    found = Case.parse(case)
    assert SparsePersistentGpu().unsupported(found, torch.device(found.device)) == reason


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
    kind = KernelSpec(torch.float32, torch.device("cpu"), saves_for_backward=True)
    return Layer(cell, mask, 1, kind, False, False, techniques)


# The kernels, on a CPU.


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_kernels_pass_the_rule(cell: str, mode: str) -> None:
    assert verdicts(small(cell, mode=mode)) == []


KINDS = [
    ("rnn_tanh", "bfloat16"), ("rnn_relu", "float32"), ("lstm", "float32"), ("gru", "float16"),
]  # fmt: skip
OPTIONS = {
    "one of each": {"steps": 1, "batch": 1, "hidden_size": 1, "input_size": 1},
    "all at once": {"layers": 2, "bidirectional": True, "ragged": True, "has_state": True, "batch_first": True, "steps": 7},
    "projected": {"projected": True, "bidirectional": True, "input_size": 0, "batch": 9, "bias": False},
    "tiles": {"batch": 19, "has_state": True, "ragged": True, "hidden_size": 20},
    "saturated": {"contents": "saturated", "hidden_size": 40},
    "strided": {"layout": "strided", "hidden_size": 18},
    "dense nearly": {"density": 0.97, "hidden_size": 33},
    "hardly any": {"density": 0.01, "hidden_size": 50, "bidirectional": True},
}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("cell", "dtype"), KINDS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.test_all(keep=2)
def test_whatever_a_layer_has(cell: str, dtype: str, options: dict[str, Any]) -> None:
    assert verdicts(small(cell, dtype=dtype, mode="training", **options)) == []


OF_CLUSTERS = {
    "one at a time": {"batch": 1, "hidden_size": 70},
    "three": {"batch": 3, "hidden_size": 61, "ragged": True, "has_state": True, "steps": 7},
    "two directions": {"batch": 2, "hidden_size": 19, "bidirectional": True, "density": 0.3},
    "wide": {"batch": 8, "hidden_size": 50, "steps": 9, "has_state": True, "density": 0.2},
}


@needs_compiler
@pytest.mark.usefixtures("on_clusters")
@pytest.mark.parametrize(
    ("cell", "dtype", "cluster"), [*((*kind, 2) for kind in KINDS), ("lstm", "float32", 4), ("gru", "float16", 4)]
)
@pytest.mark.parametrize("options", OF_CLUSTERS.values(), ids=OF_CLUSTERS)
@pytest.mark.test_all(keep=2)
def test_blocks_of_a_cluster_divide_the_columns(
    cell: str, dtype: str, cluster: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heuristics, "_CLUSTERS", (cluster,))
    batch = min(options["batch"], heuristics._MOST_SEQUENCES[getattr(torch, dtype).itemsize])
    case = small(cell, dtype=dtype, mode="training", **{"density": 0.5, **options, "batch": batch})
    with seen_forms() as forms:
        assert verdicts(case) == []
    assert cluster in {form.cluster for form in forms}  # forward or backward, if not both


@contextmanager
def seen_forms() -> Iterator[list[SparseConfig]]:
    """Those that are chosen meanwhile."""
    found: list[SparseConfig] = []

    def choose_and_keep(*given: Any) -> SparseConfig | str:
        form = select_config(*given)
        assert isinstance(form, SparseConfig)
        found.append(form)
        return form

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_weight, "select_config", choose_and_keep)
        yield found


@needs_compiler
@pytest.mark.usefixtures("on_clusters")
@settings(max_examples=8, deadline=None)
@given(of_any_sizes(most_sequences=4))
def test_clusters_of_any_sizes_in_any_order_of_threads(case: Case) -> None:
    assert verdicts(case) == []


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


@needs_compiler
@pytest.mark.usefixtures("on_clusters")
@pytest.mark.parametrize("name", PATTERNS)
def test_clusters_are_chosen_where_all_their_blocks_depend_on_each_other(name: str) -> None:
    case = small("lstm", hidden_size=23, batch=2, has_state=True, ragged=True, mode="training")
    with seen_forms() as forms:
        assert failed(case, masked(case, PATTERNS[name])) == []
    assert {form.cluster for form in forms} == {2 if name in ("full", "uneven") else 1}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_every_pattern_passes_the_rule(cell: str, pattern: Callable[[int, int], Tensor]) -> None:
    case = small(cell, hidden_size=23, bidirectional=True, has_state=True, ragged=True, mode="training")
    problem = masked(case, pattern)
    assert failed(case, problem) == []


@pytest.mark.usefixtures("on_cpu")
def test_uneven_units_change_places() -> None:
    mask = uneven(23, 23)
    assert [one.places.hidden > 23 for one in layer_of(mask).passes] == [True, True]
    assert [one.places.hidden for one in layer_of(mask, replace(ALL, balance=False)).passes] == [23, 23]


WITHOUT = {name: replace(ALL, **{name: False}) for name in (field.name for field in fields(ALL) if getattr(ALL, field.name))}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("techniques", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("cell", ["rnn_relu", "lstm", "gru"])
@pytest.mark.parametrize("has_state", [False, True])
def test_each_technique_may_be_left_out(cell: str, techniques: Techniques, has_state: bool) -> None:
    case = small(cell, hidden_size=23, batch=5, has_state=has_state, mode="training", dtype="float16")
    for order in range(2):
        assert failed(case, masked(case, uneven), techniques, order) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("reg_pairs", [0, 1, 100])
@pytest.mark.test_all(keep=2)
def test_elements_lie_in_registers_and_in_shared_memory(
    dtype: str, batch: int, reg_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heuristics, "_REGISTER_WORDS", 3 * reg_pairs)
    case = small("lstm", batch=batch, hidden_size=64, density=0.6, dtype=dtype, mode="training", ragged=True)
    assert verdicts(case) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@settings(max_examples=8, deadline=None)
@given(of_any_sizes(most_sequences=20))
def test_any_sizes_in_any_order_of_threads(case: Case) -> None:
    assert verdicts(case) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_weights_may_change_between_calls_of_training() -> None:
    case = small("gru", mode="training", hidden_size=20)
    problem = contents.problem(case)
    layer, _ = sparse_persistent_gpu.make_layer(case, problem.weights, torch.device("cpu"))
    calls.run(layer, problem)
    with torch.no_grad():
        problem.weights["weight_hh_l0"].mul_(-0.5)
    compared = verification.ReferenceResult(problem).compare(calls.run(layer, problem), SparsePersistentGpu().declared)
    assert [one for one in compared if one.status == "failed"] == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_gradients_of_gradients_are_refused() -> None:
    case = small("lstm", mode="training")
    problem = contents.problem(case)
    layer, _ = sparse_persistent_gpu.make_layer(case, problem.weights, torch.device("cpu"))
    output, _ = layer(problem.x.requires_grad_(), problem.state, None)
    (found,) = torch.autograd.grad(output.sum(), problem.x, create_graph=True)
    with pytest.raises(NotImplementedError, match="sparse_persistent_gpu is differentiable once"):
        found.sum().backward()


# Planted faults.

SPACES = 12 * " "
PUBLISHED_AFTER = "named_barrier_sync(NamedBarrier::StatesReady, POINTWISE_THREADS)"
FAULTS = {
    "sparse_persistent_forward": {
        "another number": ("first_tile + tile, t + 1, t +", "first_tile + tile, t, t +"),
        "no barrier before the product": (f"__syncthreads();\n{SPACES}const bool timed_out", "const bool timed_out"),
        "no barrier before the sums": (f"__syncthreads();\n{SPACES}if (timed_out) return", "if (timed_out) return"),
        "no barrier before publishing": (f"{PUBLISHED_AFTER};\n            jitter(t, 4);", ""),
        "another tile's": ("(shared.outgoing[tile], mailbox, first", "(shared.outgoing[0], mailbox, first"),
    },
    "sparse_persistent_backward": {
        "another number": ("/ SEQUENCES + tile, i, i,", "/ SEQUENCES + tile, i - 1, i,"),
        "no barrier before the product": (f"__syncthreads();\n{SPACES}    timed_out =", "timed_out ="),
        "no barrier before the sums": (f"__syncthreads();\n{SPACES}if (timed_out) return", "if (timed_out) return"),
        "no barrier before publishing": (f"{PUBLISHED_AFTER};\n    jitter(i, 4);", ""),
    },
    "state_exchange.cuh": {
        "one buffer for all steps": ("tile * 2u + epoch % 2)", "tile * 2u)"),
        "a packet is not published": ("i < PACKETS; i += POINTWISE_THREADS", "i < PACKETS - 1; i += POINTWISE_THREADS"),
        "another unit's": ("block * WORDS + first_word + i]", "block * WORDS + (first_word + i + 1) % WORDS]"),
    },
    "partial_sums.cuh": {
        "another row's sums": ("partial_sums.sum(unit, gate,", "partial_sums.sum((unit + 1) % UNITS, gate,"),
        "a partial sum is left out": ("tree_sum<PARTS_A_ROW / LANES>", "tree_sum<PARTS_A_ROW / LANES - 2>"),
    },
    "spmm_rows.cuh": {
        "a non-zero is left out": ("pair < REG_PAIRS; pair++) {", "pair + 1 < REG_PAIRS; pair++) {"),
    },
}  # fmt: skip
FAULTS_OF_BARRIERS = {
    "nobody is waited for": ("ld_acquire(counter) >= times * BLOCKS", "true"),
    "too few are": ("times * BLOCKS", "times * BLOCKS - 1"),
    "who arrives has not published all": ("named_barrier_sync(NamedBarrier::AllPublished, POINTWISE_THREADS);", ""),
}
FAULTS_OF_CLUSTERS = {
    "partial sums are not waited for": ("cluster_reduce.cuh", "return spin_until_warp([", "return true || spin_until_warp(["),
    "one buffer": ("cluster_reduce.cuh", "iteration % BUFFERS * (smem_addr_t)sizeof(to.slots[0])", "0"),
    "another buffer's partial sums": ("partial_sums.cuh", "iteration % BUFFERS][slot", "(iteration + 1) % BUFFERS][slot"),
    "the other phase": ("cluster_reduce.cuh", "iteration / BUFFERS % 2)", "(iteration / BUFFERS + 1) % 2)"),
    "another block's": ("cluster_reduce.cuh", "rank = slot / to.SLOTS", "rank = 0"),
    "more than is sent": ("cluster_reduce.cuh", "partials * SEQUENCES * 4)", "partials * SEQUENCES * 4 + 4)"),
}
PLANTED = [(name, fault, ALL) for name, faults in FAULTS.items() for fault in faults.values()]
PLANTED += [("state_exchange.cuh", fault, WITHOUT["timestamps"]) for fault in FAULTS_OF_BARRIERS.values()]
IDS = [*(f"{name} {label}" for name, faults in FAULTS.items() for label in faults), *FAULTS_OF_BARRIERS]


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("name", "fault", "techniques"), PLANTED, ids=IDS)
def test_faults_are_seen(name: str, fault: tuple[str, str], techniques: Techniques, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        small("lstm", steps=10, batch=batch, has_state=True, hidden_size=70, mode="training", density=0.1) for batch in (14, 4)
    ]
    monkeypatch.setattr(heuristics, "_REGISTER_WORDS", 6)
    assert not any(fails(case, 0, techniques) for case in cases)
    plant_fault(name, *fault, monkeypatch)
    assert any(fails(case, order, techniques) for case in cases for order in range(8))


def fails(case: Case, order: int, techniques: Techniques = ALL) -> bool:
    try:
        return bool(verdicts(case, techniques, order))
    except Broken:
        return True


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_clusters")
@pytest.mark.parametrize("fault", FAULTS_OF_CLUSTERS.values(), ids=FAULTS_OF_CLUSTERS)
def test_faults_of_clusters_are_seen(fault: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    case = small("lstm", steps=10, has_state=True, hidden_size=70, mode="training", density=0.2)
    assert not fails(case, 0)
    plant_fault(*fault, monkeypatch)
    assert any(fails(case, order) for order in range(8))


_PACKET = ("state_exchange.cuh", *FAULTS["state_exchange.cuh"]["a packet is not published"])
LOST = {
    "a packet is not published": ("on_cpu", *_PACKET, ALL),
    "a block does not arrive": (
        "on_cpu", "state_exchange.cuh", "if (thread == 0) red_add", "if (thread == 1000) red_add", WITHOUT["timestamps"]
    ),
    "a cluster's packet is not published": ("on_clusters", *_PACKET, ALL),
    "partial sums are lost": (
        "on_clusters", "cluster_reduce.cuh", "if (!destination.address) return", "if (threadIdx.x == 5) return", ALL
    ),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_what_is_lost_ends_the_launch_with_nan_and_a_later_call_raises(
    lost: tuple[str, str, str, str, Techniques], mode: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    case, (device, *planted, techniques) = small("gru", hidden_size=40, has_state=True, mode=mode), lost
    request.getfixturevalue(device)
    problem, status = contents.problem(case), kernel.status_of(torch.device("cpu"))
    layer, _ = sparse_persistent_gpu.make_layer(case, problem.weights, torch.device("cpu"), techniques)
    monkeypatch.setattr(kernel, "WATCHDOG_NS", 2000)  # rounds of all threads, here
    with monkeypatch.context() as patch, suppress(RuntimeError):
        plant_fault(*planted, patch)
        found = calls.run(layer, problem)  # whose backward pass raises
        assert all(torch.as_tensor(one).isnan().any() for one in found.values())
    if mode == "inference":
        with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cpu is wrong"):
            calls.run(layer, problem)
    status.reset()
    clusters_on_cpu.forget()
    assert failed(case, problem, techniques) == []
