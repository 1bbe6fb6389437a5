"""Both scans: what a loop computes in any layout, at every edge of a tile and beyond 32 bits; repeatable; ops as torch asks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._common import input_projection
from pytest_ecornn.implementations._common.min_cells import POSITIVE_CELLS
from pytest_ecornn.implementations.scan_gpu.ops import CELLS, scan
from tests.helpers.requirements import needs_gpu, on_simulator
from tests.helpers.scans import OPS, Scan, draw, expect_loops, given_x, scan_in_log_space

EACH = [(scan, cell) for cell in CELLS] + [(scan_in_log_space, cell) for cell in POSITIVE_CELLS]
of_each = pytest.mark.parametrize(("run", "cell"), EACH)
of_directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
of_scans = pytest.mark.parametrize(("run", "cell"), [(scan, "mingru"), (scan_in_log_space, "mingru_positive")])


def in_one_number(*arguments: Any) -> tuple[Tensor, Tensor]:
    return scan_in_log_space(*arguments, is_compensated=False)


def outputs(run: Scan, x: Tensor, cell: str, batch_first: bool = True) -> tuple[Tensor, Tensor]:
    return run(x, None, None, None, None, cell, batch_first, False)


# On a CPU: of one stretch a tile, so that no thread reads another's.


@on_simulator("ops_on_cpu")
@of_directions
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 9, 23, 43])
@pytest.mark.parametrize(("run", "cell"), [*EACH, *((in_one_number, cell) for cell in POSITIVE_CELLS)])
def test_the_kernels_compute_what_a_loop_does(run: Scan, cell: str, steps: int, reverse: bool) -> None:
    expect_loops(run, cell, *draw(cell, steps, "cpu", has_resets=run is scan), reverse)


@on_simulator("ops_on_cpu")
@of_each
def test_repeated_calls_read_and_write_their_own_arrays_however_these_are_laid_out(run: Scan, cell: str) -> None:
    (x, *others), masks = draw(cell, 9, "cpu", has_resets=run is scan)
    x = x.detach()
    every_other = torch.cat([x * 2, x], -1).view(3, 18, -1)[:, ::2]
    of_half_the_time, of_half_the_width = torch.cat([x + 2, x], 1)[:, :9], torch.cat([x, x * 2], -1)[..., : x.shape[-1]]
    by_time = x.transpose(0, 1).contiguous().transpose(0, 1)
    for values in (x, x + 1, of_half_the_time, every_other, of_half_the_width, by_time, x - 1):
        for reverse in (False, True):
            expect_loops(run, cell, (values.detach().requires_grad_(), *others), masks, reverse)


@pytest.mark.parametrize("run", [scan, scan_in_log_space])
def test_shapes_are_known_without_running(run: Scan) -> None:
    x = torch.empty(5, 7, 6, device="meta")
    assert [one.shape for one in outputs(run, x, "mingru_positive")] == [(5, 7, 3), (5, 3)]
    assert [one.shape for one in outputs(run, x, "minlstm_positive", False)] == [(5, 7, 2), (7, 2)]


def test_shapes_of_gradients_and_products_are_known_without_running() -> None:
    x, output, final = (torch.empty(shape, device="meta") for shape in ((5, 7, 6), (5, 7, 3), (5, 3)))
    arguments = x, None, None, output, output, final, None, None, "mingru", True, False
    assert [one.shape for one in OPS.scan_backward(*arguments)] == [x.shape, final.shape]
    assert OPS.scan_backward_over(*arguments).shape == final.shape
    assert OPS.gate_product(torch.empty(4, 3, device="meta"), torch.empty(6, 3, device="meta"), False).shape == (4, 6)


def expect_ops(device: str) -> None:
    """They are what torch asks of ops."""
    inputs, (lengths, resets) = draw("mingru_positive", 9, device)
    named = "mingru_positive", True, False
    output, final = (one.detach() for one in OPS.scan_forward(*inputs, lengths, resets, *named, False))
    gradients = *(one.detach().clone() for one in inputs), output, torch.randn_like(output), torch.randn_like(final)
    product = torch.randn(9, 12, device=device, requires_grad=True), torch.randn(6, 12, device=device), False
    for op, passed in (
        (OPS.scan_forward, (*inputs, lengths, resets, *named, False)),
        (OPS.scan_log_forward, (*inputs, lengths, *named, True, False)),
        (OPS.gate_product, product),
        (OPS.scan_backward, (*gradients, lengths, resets, *named)),
        (OPS.scan_backward_over, (*gradients, lengths, resets, *named)),
    ):
        outcome = torch.library.opcheck(op.default, passed)
        assert set(outcome.values()) == {"SUCCESS"}, outcome


@on_simulator("ops_on_cpu")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it traces
def test_the_ops_are_what_torch_asks_of_ops() -> None:
    expect_ops("cpu")


@on_simulator("ops_on_cpu")
@of_each
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_vmap_is_one_scan_of_all_sequences(run: Scan, cell: str, batch_first: bool, has_bias: bool) -> None:
    (x, bias, _), _ = draw(cell, 5, "cpu")
    batch = x.shape[0 if batch_first else 1]
    mapped = [x.detach(), bias.detach(), torch.randn(batch, x.shape[2] // CELLS[cell][0]).double()]
    mapped = [torch.stack([one, one.flip(-1), one * 2], 1) for one in mapped]
    lengths = torch.arange(batch) % (x.shape[1 if batch_first else 0] + 1)

    def results(x: Tensor, bias: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        return run(x, bias if has_bias else None, first, lengths, None, cell, batch_first, True)

    def loss(*given: Tensor) -> Tensor:
        return torch.stack([one.square().sum() for one in given]).sum()

    leaves = [one.requires_grad_() for one in mapped]
    found = torch.func.vmap(results, 1)(*leaves)
    by_each = [results(*(one.select(1, number).contiguous() for one in leaves)) for number in range(3)]
    expected = [torch.stack(each) for each in zip(*by_each, strict=True)]
    torch.testing.assert_close(list(found), expected)
    used = leaves if has_bias else [leaves[0], leaves[2]]
    torch.testing.assert_close(*(torch.autograd.grad(loss(*of), used) for of in (found, expected)))


@pytest.mark.parametrize("dims", [(1, None), (None, 0), (0, 1)])
def test_vmap_of_a_product(dims: tuple[int | None, int | None]) -> None:
    sizes = [[4, 6], [5, 6]]
    mapped = [shape if dim is None else [*shape[:dim], 3, *shape[dim:]] for shape, dim in zip(sizes, dims, strict=True)]
    a, b = map(torch.randn, mapped)
    found = torch.func.vmap(lambda a, b: OPS.gate_product(a, b, False), dims)(a, b)
    torch.testing.assert_close(found, torch.func.vmap(lambda a, b: a @ b.T, dims)(a, b))


@on_simulator("ops_on_cpu")
@of_scans
def test_no_sequences_give_empty_results_and_gradients(run: Scan, cell: str) -> None:
    x, first = torch.ones(5, 0, 2 * 3, requires_grad=True), torch.ones(0, 3, requires_grad=True)
    output, final = run(x, None, first, None, None, cell, False, False)
    assert (output.shape, final.shape) == ((5, 0, 3), (0, 3))
    assert [one.shape for one in torch.autograd.grad(output.sum() + final.sum(), (x, first))] == [x.shape, first.shape]


# On a GPU.


@needs_gpu
def test_on_a_gpu_the_ops_are_what_torch_asks_of_ops() -> None:
    expect_ops("cuda")


@needs_gpu
@of_directions
@pytest.mark.parametrize(
    ("run", "cell", "batch"),
    [*((*scan_of, 3) for scan_of in EACH), *((scan_in_log_space, cell, 200) for cell in POSITIVE_CELLS)],
)
@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1031])
def test_masks_bias_state_and_all_gradients_at_every_edge_of_a_tile(
    run: Scan, cell: str, steps: int, reverse: bool, batch: int
) -> None:
    expect_loops(run, cell, *draw(cell, steps, "cuda", batch, has_resets=run is scan), reverse, tolerance=1e-11)


@needs_gpu
@of_scans
@pytest.mark.parametrize("hidden", [64, 4096], ids=["narrow", "wide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeats_are_equal_bit_for_bit_and_so_are_both_layouts(hidden: int, dtype: torch.dtype, run: Scan, cell: str) -> None:
    x = given_x(cell, 4099, 2, hidden, dtype)

    def both(x: Tensor, batch_first: bool) -> Tensor:
        leaf = x.detach().requires_grad_()
        output, _ = outputs(run, leaf, cell, batch_first)
        (gradient,) = torch.autograd.grad(output.float().square().sum(), leaf)
        return torch.cat([output.detach(), gradient], -1)

    first = both(x, True)
    assert all(torch.equal(both(x, True), first) for _ in range(5))
    assert torch.equal(both(x.transpose(0, 1).contiguous(), False).transpose(0, 1), first)
    assert torch.equal(both(x.transpose(0, 1), False).transpose(0, 1), first)  # strides alone
    if run is scan_in_log_space:
        assert torch.equal(both(x.repeat_interleave(2, -1)[..., ::2], True), first)


@needs_gpu
@of_scans
def test_offsets_beyond_32_bits(run: Scan, cell: str) -> None:
    x = torch.randn(1, 2**20 + 3, 2 * 1024, dtype=torch.bfloat16, device="cuda")
    output, final = outputs(run, x, cell)
    _, late = outputs(run, x[:, -1000:], cell)  # all before is forgotten
    torch.testing.assert_close(final, late)
    assert torch.equal(output[:, -1], final)


@needs_gpu
@of_scans
def test_a_compiled_function_is_one_graph(run: Scan, cell: str) -> None:
    x, weight = torch.randn(4, 9, 5, device="cuda"), torch.randn(12, 5, device="cuda", requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return outputs(run, input_projection.gate_products(x, weight, False), cell)[0]

    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    (expected,) = torch.autograd.grad(layer(x).sum(), weight)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), weight)
    torch.testing.assert_close(gradient, expected)
