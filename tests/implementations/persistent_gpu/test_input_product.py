"""persistent_gpu's input product as part of its kernels, of short calls: run on a CPU, when it is taken, and planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.persistent_gpu import backward, forward, plan
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.describe import describe
from pytest_ecornn.implementations.persistent_gpu.kernel import MOST_FUSED_ROWS, KernelSpec, Shape, is_fused
from pytest_ecornn.implementations.persistent_gpu.ops import run
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from tests.helpers import persistent, persistent_grid, persistent_ntiled
from tests.helpers.persistent import CELLS, expect_right, expect_seen, small, verdicts
from tests.helpers.persistent_grid import PRECISIONS, TF32
from tests.helpers.requirements import needs_compiler, needs_hopper
from tests.simulator import clusters_on_cpu

RELU = RNNOptions("rnn_relu", batch_first=False, bidirectional=False, projected=False, tf32=False)
GRID = {"units": 36, "tiles": 1, "groups": 2, "reg_fragments": 1, "buffers": 0, "load_threads": 0}
N_TILED = {"units": 12, "tiles": 1, "n_tiles": 2, "reg_fragments": 1, "at_once": 8, "sum_buffers": 2, "presplit": 0}
KERNELS = ("cluster", "grid", "load_threads", "abreast")


def form_of(kernel: str, shape: Shape, kind: KernelSpec) -> Form:
    problem = kind.problem(shape.cell, shape.hidden, shape.batch)
    if kernel == "cluster":
        return persistent.form_of(shape, kind)
    if kernel == "abreast":
        return persistent_ntiled.form_of(problem, **N_TILED)
    return persistent_grid.form_of(problem, **GRID | {"buffers": 2 * (kernel == "readers")})


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def launched(kernel: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Layers run on a CPU; of each launch the width of x whose product it makes, 0 for none."""
    found: list[int] = []
    launch_of = persistent_kernel.get_layer_kernel

    def seen(*given: Any) -> Any:
        found.append(given[5] if len(given) > 5 else 0)
        return launch_of(*given)

    for one in (forward, backward):
        monkeypatch.setattr(one, "get_layer_kernel", seen)
    with clusters_on_cpu.running_layers(lambda shape, kind: form_of(kernel, shape, kind)):
        yield found


@contextmanager
def many_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it kernels make products of more rows than they do otherwise."""
    with monkeypatch.context() as patch:
        patch.setattr(persistent_kernel, "MOST_FUSED_ROWS", 1000)
        plan.get_plan.cache_clear()
        try:
            yield
        finally:
            patch.undo()
            plan.get_plan.cache_clear()


def short(cell: str, **options: Any) -> Case:
    return small(cell, **{"mode": "inference", "dtype": "float16", **options})


@pytest.mark.parametrize(
    ("steps", "batch", "is_taken"), [(2, 1, True), (16, 1, True), (2, 8, True), (1, 16, True), (17, 1, False), (3, 6, False)]
)
def test_few_rows_of_x_are_multiplied_by_the_kernel_itself(steps: int, batch: int, is_taken: bool) -> None:
    assert MOST_FUSED_ROWS == 16
    assert is_fused(steps, batch, 40, 40) == is_taken


@pytest.mark.parametrize(
    ("inputs", "hidden", "is_taken"),
    [(0, 64, False), (1024, 64, True), (1025, 64, False), (3000, 1500, True), (3001, 1500, False), (None, 1500, True)],
)
def test_wide_rows_are_not_multiplied_by_few_blocks(inputs: int | None, hidden: int, is_taken: bool) -> None:
    assert is_fused(2, 8, inputs, hidden) == is_taken


@pytest.mark.parametrize(("inputs", "hidden", "width"), [(0, 512, 16), (512, 512, 16), (70, 512, 4), (33, 512, 2), (512, 9, 2)])
def test_as_much_is_read_at_once_as_divides_all_rows(inputs: int, hidden: int, width: int) -> None:
    kind = KernelSpec(torch.float16, torch.device("cpu"), inputs=inputs)
    form = Form(kind.problem("lstm", hidden, 1), 16, -(-hidden // 16), 1, 1)
    assert persistent_kernel.width_of(kind, form) == width


@needs_compiler
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options",
    [
        {"hidden_size": 40, "input_size": 70, "steps": 3, "batch": 5, "has_state": True, "ragged": True},
        {"hidden_size": 33, "input_size": 33, "steps": 7, "batch": 1, "dtype": "bfloat16", "bias": False},
        {
            "layers": 2,
            "bidirectional": True,
            "batch_first": True,
            "dtype": "float32",
            "hidden_size": 30,
            "batch": 6,
            "steps": 2,
        },
        {"hidden_size": 20, "input_size": 136, "steps": 2, "batch": 8, "ragged": True, "has_state": True, **TF32},
        {"hidden_size": 18, "input_size": 24, "layout": "strided", "steps": 16, "batch": 1, "bidirectional": True},
        {"hidden_size": 18, "input_size": 24, "layout": "offset", "steps": 2, "batch": 4, "has_state": True},
    ],
    ids=["ragged", "no bias", "all at once", "tf32", "strided", "offset"],
)
@pytest.mark.test_all(keep=2)
def test_the_kernels_pass_the_rule(cell: str, options: dict[str, Any], launched: list[int]) -> None:
    case = short(cell, **options)
    assert verdicts(case) == []
    assert launched == [
        case.directions * case.hidden_size if layer else case.input_size
        for layer in range(case.layers)
        for _ in range(case.directions)
    ]


@needs_compiler
@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_rows_than_are_multiplied_at_once_are_multiplied_one_after_the_other(
    precision: dict[str, str], launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with many_rows(monkeypatch):
        assert verdicts(short("lstm", **{"steps": 11, "batch": 13, "hidden_size": 40, "input_size": 40, **precision})) == []
    assert launched == [40]


@needs_compiler
@pytest.mark.parametrize("kernel", ["cluster"], indirect=True)
@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"steps": 11}, [0]),
        ({"projected": True, "input_size": 0, "layers": 2}, [0, 9]),
        ({"mode": "training", "batch": 1}, [0, 0]),
        ({"steps": 1}, []),
        ({"steps": 1, "batch": 129}, [0]),
    ],
)
def test_else_it_is_not(options: dict[str, Any], inputs: list[int], launched: list[int]) -> None:
    assert verdicts(short("gru", **options)) == []
    assert launched == inputs


@needs_compiler
@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("kernel", ["cluster"], indirect=True)
def test_x_and_weights_at_odd_addresses_are_read_all_the_same() -> None:
    torch.manual_seed(0)

    def odd(*sizes: int) -> torch.Tensor:
        return torch.randn(torch.Size(sizes).numel() + 1).half()[1:].view(sizes)

    given = odd(4, 2, 16), odd(64, 16), odd(64, 16)
    how = RNNOptions("lstm", False, False, False, False)

    def found(x: torch.Tensor, *weights: torch.Tensor) -> Any:
        return run(x, (), [*weights, None, None], None, how)

    assert all(
        torch.equal(one, other) for one, other in zip(found(*given), found(*(one.clone() for one in given)), strict=True)
    )


@needs_compiler
@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("kernel", ["cluster"], indirect=True)
@pytest.mark.parametrize(
    ("options", "is_taken"), [({"layers": 2}, True), ({"steps": 11}, False), ({"projected": True, "input_size": 0}, False)]
)
def test_it_is_told_of_a_case(options: dict[str, Any], is_taken: bool) -> None:
    found = describe(short("lstm", **options), torch.device("cpu"))
    assert found.endswith("; the input product in the same launch") == is_taken


@needs_compiler
@pytest.mark.parametrize("kernel", ["cluster"], indirect=True)
def test_of_inputs_without_width_there_is_no_product_to_make(launched: list[int]) -> None:
    x, weight_hh = torch.zeros(3, 2, 0).half(), torch.eye(8).half()
    output, _ = run(x, (torch.ones(1, 2, 8).half(),), [x.new_empty(8, 0), weight_hh, None, None], None, RELU)
    assert torch.equal(output, torch.ones(3, 2, 8).half())
    assert launched == [0]


PRODUCT, COLUMNS = "input_gemm.cuh", "skinny_gemm.cuh"
FAULTS = {
    "sums are not waited for": (PRODUCT, "        __syncthreads();\n        for (int i", "        for (int i"),
    "sums are written before they are read": (PRODUCT, "        }\n        __syncthreads();\n", "        }\n"),
    "another gate's row": (PRODUCT, "r % GATES * HIDDEN + unit] = ", "(r + 1) % GATES * HIDDEN + unit] = "),
    "another step": (PRODUCT, "params.x + row / sequences", "params.x + row % sequences"),
    "the first sequences alone": (PRODUCT, "(thread.first_sequence + row % sequences)", "(row % sequences)"),
    "the first rows of weights alone": (PRODUCT, "(tile + team * ROWS) * 16 + r", "team * ROWS * 16 + r"),
    "one warp's sums are left out": (COLUMNS, "warp < WARPS; warp++", "warp < WARPS - 1; warp++"),
    "one warp's partition alone": (COLUMNS, "first = warp * K_TILE", "first = 0"),
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("kernel", ["load_threads", "grid"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = short("lstm", steps=2, batch=16, hidden_size=100, input_size=300, has_state=True, ragged=True)
    with many_rows(monkeypatch):
        expect_seen(case, monkeypatch, *FAULTS[fault])


@needs_hopper
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "tf32"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("hidden", "inputs"), [(33, 70), (512, 512), (650, 33), (1024, 1024)])
@pytest.mark.parametrize(("steps", "batch"), [(2, 1), (16, 1), (2, 8), (3, 4)])
def test_on_a_gpu_the_kernels_pass_the_rule(
    cell: str, dtype: str, hidden: int, inputs: int, steps: int, batch: int
) -> None:  # fmt: skip
    precise = {"dtype": "float32", "precision": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    sizes = {"steps": steps, "batch": batch, "hidden_size": hidden, "input_size": inputs, "bidirectional": True}
    case = short(cell, **sizes, **precise, has_state=True, ragged=True, device="cuda")
    assert expect_right(case).notes().endswith("; the input product in the same launch")
