"""Gradients of a layer's parameters in one launch: sums over all rows or steps, on clusters of a CPU and on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda import bias_gradients, parameter_gradients
from pytest_ecornn.implementations._cuda.bias_gradients import BiasGradients
from pytest_ecornn.implementations._cuda.parameter_gradients import LayerTensors, ParameterGradients
from tests.helpers.gradients import sums_over_steps
from tests.helpers.requirements import needs_hopper, on_simulator
from tests.simulator.clusters_on_cpu import is_fault_seen

CPU = torch.device("cpu")
of_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


# Of biases alone.

ROWS = [(1, 1, 0), (700, 72, 0), (35, 128, 0), (300, 27, 9), (513, 192, 64), (40, 24, 8)]  # rows, columns, H of GRU


def expect_bias_sums(
    rows: int, columns: int, hidden: int, dtype: torch.dtype, device: torch.device, directions: int = 1
) -> None:
    """Both gradients are the sums in float64, rounded once; of GRU the last H of bias_hh are d_recurrent's."""
    torch.manual_seed(0)
    leading = (rows,) if directions == 1 else (directions, rows)
    d_gates = torch.randn(*leading, columns, device=device).to(dtype)
    d_recurrent = torch.randn(*leading, hidden, device=device).to(dtype) if hidden else None
    found = BiasGradients(rows, columns, hidden, dtype, device, directions)(d_gates, d_recurrent)
    of_ih = d_gates.double().sum(-2)
    of_hh = of_ih if d_recurrent is None else torch.cat((of_ih[..., : columns - hidden], d_recurrent.double().sum(-2)), -1)
    for one, wanted in zip(found, (of_ih, of_hh), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-5 * rows**0.5)
    assert found[0].data_ptr() != found[1].data_ptr()


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("sizes", ROWS)
@pytest.mark.parametrize(
    ("dtype", "directions"), [(torch.float32, 1), (torch.bfloat16, 1), (torch.float16, 1), (torch.float16, 2)]
)
def test_they_are_the_sums_of_all_rows(sizes: tuple[int, int, int], dtype: torch.dtype, directions: int) -> None:
    expect_bias_sums(*sizes, dtype, CPU, directions)


@pytest.mark.parametrize("hidden", [0, 9])
@pytest.mark.parametrize("directions", [1, 2])
def test_without_the_kernel_torch_sums(directions: int, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias_gradients, "_kernel_for", lambda *given: None)
    leading = (4, 3) if directions == 1 else (2, 4, 3)
    d_gates, d_recurrent = torch.randn(*leading, 27), torch.randn(*leading, hidden) if hidden else None
    of_ih, of_hh = bias_gradients.bias_gradients(d_gates, d_recurrent, directions)
    summed = d_gates.flatten(-3, -2).sum(-2)
    torch.testing.assert_close(of_ih, summed)
    wanted = summed if d_recurrent is None else torch.cat((summed[..., : 27 - hidden], d_recurrent.sum((-3, -2))), -1)
    torch.testing.assert_close(of_hh, wanted)
    assert of_ih.data_ptr() != of_hh.data_ptr()


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("shared.block_sums[own] = sum;\n    }\n    cluster_sync();", "shared.block_sums[own] = sum;\n    }"),
        ("[i];\n    __syncthreads();", "[i];"),
        ("int row = first; row < rows", "int row = first; row < rows - 1"),
    ],
)
def test_a_fault_of_bias_sums_is_seen(right: str, wrong: str) -> None:
    assert is_fault_seen(right, wrong, lambda: expect_bias_sums(700, 72, 0, torch.float32, CPU))


@needs_hopper
@pytest.mark.parametrize("sizes", [*ROWS, (22_400, 2048, 0), (5_120, 1536, 512)])
@of_dtypes
def test_bias_sums_on_a_gpu(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    for directions in (1, 2):
        expect_bias_sums(*sizes, dtype, torch.device("cuda", 0), directions)


# Of all parameters.


class Sizes(NamedTuple):
    steps: int
    batch: int
    gates: int
    hidden: int
    width: int
    directions: int = 1


SIZES = [
    Sizes(1, 1, 1, 1, 1), Sizes(5, 3, 4, 8, 16), Sizes(7, 5, 3, 27, 9), Sizes(9, 16, 3, 24, 72), Sizes(3, 2, 1, 70, 65),
    Sizes(5, 3, 4, 8, 16, 2), Sizes(7, 5, 3, 27, 9, 2), Sizes(4, 40, 3, 24, 8, 2),
]  # fmt: skip
SPLIT = [Sizes(41, 15, 3, 24, 8), Sizes(3, 2, 1, 70, 65, 2)]  # several chunks for each block; fewer chunks than blocks
LARGE = [
    Sizes(35, 16, 3, 128, 128), Sizes(20, 5, 3, 96, 96, 2), Sizes(35, 64, 4, 256, 100), Sizes(300, 7, 4, 40, 200, 2),
    Sizes(128, 100, 3, 48, 48), Sizes(1000, 51, 1, 16, 9), Sizes(400, 64, 4, 32, 40, 2),
]  # fmt: skip


def drawn(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of the gates and of GRU's product, inputs and output."""
    torch.manual_seed(0)
    steps, batch, hidden = sizes.steps, sizes.batch, sizes.hidden

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    of_gates = draw(sizes.directions, steps, batch, sizes.gates * hidden)
    of_product = draw(sizes.directions, steps, batch, hidden) if sizes.gates == 3 else None
    return of_gates, of_product, draw(steps, batch, sizes.width), draw(steps, batch, sizes.directions * hidden)


def expect_sums(sizes: Sizes, dtype: torch.dtype, device: torch.device, splits: int | None = None) -> list[Tensor]:
    """Each gradient is the one in float64, rounded once, but for rounding of the sum in float32. Returns all gradients."""
    steps, batch, gates, hidden, width, directions = sizes
    found = []
    for has_initial in (False, True):
        initial = torch.randn(directions, batch, hidden, device=device).to(dtype) if has_initial else None
        given = *drawn(sizes, dtype, device), initial
        run = ParameterGradients(steps * batch, batch, gates * hidden, hidden, (width,), dtype, device, directions, splits)
        (gradients,) = run([LayerTensors(*given)])
        results = [one.view(directions, *one.shape[-1 - (i < 2) :]) for i, one in enumerate(gradients)]
        for one, wanted in zip(results, sums_over_steps(*given), strict=True):
            torch.testing.assert_close(one.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-5 * (steps * batch) ** 0.5)
        found += results
    return found


def expect_equal_repeats(
    sizes: Sizes, dtype: torch.dtype, device: torch.device, splits: int | None = None, repeats: int = 1
) -> None:
    first, *others = (expect_sums(sizes, dtype, device, splits) for _ in range(1 + repeats))
    for repeat in others:
        assert all(map(torch.equal, first, repeat))


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@of_dtypes
def test_they_are_the_sums_over_all_steps(sizes: Sizes, dtype: torch.dtype) -> None:
    expect_sums(sizes, dtype, CPU)


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("sizes", SPLIT, ids=str)
@pytest.mark.parametrize("splits", [2, 3])
def test_rows_split_among_clusters_give_equal_sums_in_any_order_of_arrival(sizes: Sizes, splits: int) -> None:
    expect_equal_repeats(sizes, torch.float32, CPU, splits)


def test_rows_are_split_where_tiles_do_not_fill_the_chip() -> None:
    splits = {tiles: parameter_gradients._fastest(51_200, tiles, 1.0)[1] for tiles in (1, 2, 6, 16, 33, 10**6)}
    assert all(100 <= 8 * tiles * splits[tiles] <= 264 for tiles in (1, 2, 6, 16))  # blocks, on 132 multiprocessors
    assert splits[33] == splits[10**6] == parameter_gradients._fastest(128, 1, 1.0)[1] == 1


@on_simulator("kernels_on_cpu")
def test_inputs_may_lie_at_any_element() -> None:
    sizes = Sizes(5, 3, 4, 8, 16)
    d_gates, _, inputs, output = drawn(sizes, torch.float32, CPU)
    shifted = torch.cat((torch.zeros(1), inputs.flatten()))[1:].view(inputs.shape)
    assert shifted.data_ptr() % 16
    run = ParameterGradients(15, 3, 32, 8, (16,), torch.float32, CPU)
    (from_shifted,), (expected,) = (run([LayerTensors(d_gates, None, one, output)]) for one in (shifted, inputs))
    assert all(map(torch.equal, from_shifted, expected))


def expect_layers_as_apart(dtype: torch.dtype, device: torch.device, splits: int) -> None:
    """Layers of other widths, in one launch, have the bits of each in its own."""
    sizes = [Sizes(9, 6, 3, 24, width, 2) for width in (72, 8, 48)]
    layers = [LayerTensors(*drawn(one, dtype, device), torch.randn(2, 6, 24, device=device).to(dtype)) for one in sizes]

    def run(some: list[int]) -> list[list[Tensor]]:
        widths = tuple(sizes[i].width for i in some)
        return ParameterGradients(54, 6, 72, 24, widths, dtype, device, 2, splits)([layers[i] for i in some])

    for together, apart in zip(run([0, 1, 2]), (run([i])[0] for i in range(3)), strict=True):
        assert all(map(torch.equal, together, apart))


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("splits", [1, 2])
def test_several_layers_are_one_launch(splits: int) -> None:
    expect_layers_as_apart(torch.float32, CPU, splits)


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("layers[++layer].width", "layers[layer++].width"),
        ("shared.layer = params.layers[layer]", "shared.layer = params.layers[0]"),
    ],
)
def test_a_fault_of_layers_is_seen(right: str, wrong: str) -> None:
    assert is_fault_seen(right, wrong, lambda: expect_layers_as_apart(torch.float32, CPU, 1))


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("cluster_sync();\n    OwnSums", "OwnSums"),
        ("store_chunk(shared, buffer, fetched);\n        __syncthreads();", "store_chunk(shared, buffer, fetched);"),
        ("buffer ^= 1;", ""),
        ("__syncthreads();\n        if (threadIdx.x / GROUP", "if (threadIdx.x / GROUP"),
        ("row + params.batch : row - params.batch", "row - params.batch : row - params.batch"),
        ("before < params.rows", "before <= params.rows"),
        ("if (row >= params.rows || column", "if (column"),
        ("? before - params.rows : row", "? row : row"),
    ],
)
def test_a_fault_is_seen(right: str, wrong: str) -> None:
    assert is_fault_seen(right, wrong, lambda: expect_sums(Sizes(41, 15, 3, 24, 8, 2), torch.float32, CPU))


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("own);\n    __syncthreads();", "own);"),  # a thread arrives before others have stored
        ("wait_for_stores();\n    const unsigned before", "const unsigned before"),  # without release
        ("== params.splits - 1", "== 0"),
        ("arrivals + tile * BLOCKS + rank", "arrivals + tile * BLOCKS"),
        ("chunk = blockIdx.x % stride", "chunk = blockIdx.x % BLOCKS"),
        ("chunk += stride", "chunk += BLOCKS"),
        ("split * BLOCKS * THREADS);", "(split + blockIdx.x / BLOCKS) % params.splits * BLOCKS * THREADS);"),  # from its own on
    ],
)
def test_a_fault_of_splits_is_seen(right: str, wrong: str) -> None:
    assert is_fault_seen(right, wrong, lambda: expect_equal_repeats(SPLIT[0], torch.float32, CPU, splits=3))


@needs_hopper
@pytest.mark.parametrize("sizes", [*SIZES, *SPLIT, *LARGE], ids=str)
@of_dtypes
def test_on_a_gpu(sizes: Sizes, dtype: torch.dtype) -> None:
    for splits in (None, 2, 5):
        expect_equal_repeats(sizes, dtype, torch.device("cuda", 0), splits, repeats=4)


@needs_hopper
@of_dtypes
def test_several_layers_on_a_gpu(dtype: torch.dtype) -> None:
    for splits in (1, 2):
        expect_layers_as_apart(dtype, torch.device("cuda", 0), splits)
