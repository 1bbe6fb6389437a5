"""scan_gpu: its cut is a function of the shape, and on a GPU its ops are torch's, right at every length, and repeatable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pytest_ecornn import cells
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations import _gate_product, _scan_gpu_op
from pytest_ecornn.implementations._precision import whole_sums
from pytest_ecornn.implementations._scan_gpu_form import Form, Need, choose
from pytest_ecornn.implementations._scan_gpu_op import CELLS, Shape
from pytest_ecornn.implementations.scan_gpu import ScanGpu

H200 = 132  # multiprocessors
OPS = torch.ops.pytest_ecornn
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
needs = st.builds(
    Need, st.sampled_from((2, 3)), st.sampled_from((torch.float32, torch.float64, torch.bfloat16)), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip


def form(steps: int, batch: int, hidden: int) -> Form:
    return choose(steps, batch, hidden, Need(2, torch.float32, False, False, True), H200)


# The form.


@settings(max_examples=200)
@given(st.integers(1, 10**6), st.integers(1, 100), st.integers(1, 3000), needs, st.integers(1, 200))
def test_tiles_cover_all_steps_and_channels_and_groups_all_tiles(
    steps: int, batch: int, hidden: int, need: Need, processors: int
) -> None:
    found = choose(steps, batch, hidden, need._replace(is_paired=need.is_paired and need.dtype.itemsize == 2), processors)
    assert found.tiles * found.cut.steps >= steps > (found.tiles - 1) * found.cut.steps
    assert found.channel_blocks * found.cut.channels >= batch * hidden
    assert found.group**2 >= found.tiles
    assert found.launch.block <= 1024
    assert found.is_split or found.launch.grid == found.channel_blocks
    assert bool(found.words) == found.is_split


def test_time_is_split_only_where_channels_are_few() -> None:
    assert form(65_536, 1, 64).is_split
    assert not form(65_536, 8, 1536).is_split
    assert not form(100, 1, 64).is_split  # one tile


def test_a_split_scan_has_no_more_blocks_than_run_at_once() -> None:
    found = form(65_536, 1, 256)
    assert found.launch.grid == found.cut.resident * H200 < found.tiles * found.channel_blocks


@pytest.mark.parametrize(
    ("case", "device", "reason"),
    [
        ("lstm-T2-B1-H1-float32-cuda", "cuda", "no lstm"),
        ("mingru-T2-B1-H1-float32", "cpu", "runs on a CUDA device"),
        ("mingru-T2-B1-H1-float64-tf32-cuda", "cuda", "TF32 is a precision of float32"),
        ("mingru-T2-B65536-H65536-float32-cuda", "cuda", "B * H must be below 2^31, got 4294967296"),
    ],
)
def test_what_it_will_not_run_has_a_reason(case: str, device: str, reason: str) -> None:
    found = ScanGpu().unsupported(Case.parse(case), torch.device(device))
    assert found is not None
    assert reason in found


def test_long_sums_are_whole_within_and_as_they_were_after() -> None:
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [getattr(torch.backends.cuda.matmul, name) for name in names]
    with whole_sums():
        assert not any(getattr(torch.backends.cuda.matmul, name) for name in names)
    assert [getattr(torch.backends.cuda.matmul, name) for name in names] == before


def test_shapes_are_known_without_running() -> None:
    x = torch.empty(5, 7, 6, device="meta")
    output, final = OPS.scan_forward(x, None, None, None, None, "mingru", True, False)
    assert output.shape == (5, 7, 3)
    assert final.shape == (5, 3)
    d_x, d_first = OPS.scan_backward(x, None, None, output, output, final, None, None, "mingru", True, False)
    assert d_x.shape == x.shape
    assert d_first.shape == final.shape
    assert OPS.gate_product(torch.empty(4, 3, device="meta"), torch.empty(6, 3, device="meta"), False).shape == (4, 6)


# On a GPU.


def given_x(cell: str, steps: int, batch: int, hidden: int, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(steps)
    return torch.randn(batch, steps, CELLS[cell][0] * hidden, dtype=dtype, device="cuda")


def by_loop(x: Tensor, bias: Tensor, first: Tensor, resets: Tensor, cell: str) -> tuple[Tensor, Tensor]:
    """[B, T, G*H] one step after the other, the state 0 before a step that is reset."""
    gates, state, outputs = CELLS[cell][0], (first,), []
    for x_t, reset in zip((x + bias).unbind(1), resets.unbind(1), strict=True):
        state = (torch.where(reset[:, None] > 0, 0.0, state[0]),)
        state = cells.get(cell).step(x_t.chunk(gates, -1), (), state, {})  # type: ignore[assignment]
        outputs.append(state[0])
    return torch.stack(outputs, 1), state[0]


@needs_gpu
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("steps", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1031])
def test_resets_bias_state_and_all_gradients_at_every_edge_of_a_tile(cell: str, steps: int) -> None:
    x, hidden = given_x(cell, steps, 3, 5), 5
    bias, first = torch.randn(x.shape[-1], device="cuda").double(), torch.randn(3, hidden, device="cuda").double()
    resets = (torch.rand(3, steps, device="cuda") < 0.1).to(torch.uint8)
    inputs = [one.requires_grad_() for one in (x, bias, first)]
    expected = by_loop(x, bias, first, resets, cell)
    got = _scan_gpu_op.scan(x, bias, first, None, resets, cell, True, False)
    weights = [torch.randn_like(one) for one in expected]
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    gradients = [
        torch.autograd.grad(sum((a * b).sum() for a, b in zip(found, weights, strict=True)), inputs)
        for found in (got, expected)
    ]  # type: ignore[arg-type]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@needs_gpu
def test_a_reset_forgets_what_is_not_finite() -> None:
    x = given_x("mingru", 300, 1, 2)
    x[0, 7, 2:] = float("inf")
    resets = torch.zeros(1, 300, dtype=torch.uint8, device="cuda")
    resets[0, 200] = 1
    output, _ = _scan_gpu_op.scan(x, None, None, None, resets, "mingru", True, False)
    assert output[0, 7:200].isinf().all()
    assert output[0, 200:].isfinite().all()


@needs_gpu
@pytest.mark.parametrize("hidden", [64, 4096], ids=["split", "whole"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeats_are_equal_bit_for_bit_and_so_are_both_layouts(hidden: int, dtype: torch.dtype) -> None:
    x = given_x("mingru", 4099, 2, hidden, dtype)

    def run(x: Tensor, batch_first: bool) -> Tensor:
        leaf = x.detach().requires_grad_()
        output, _ = _scan_gpu_op.scan(leaf, None, None, None, None, "mingru", batch_first, False)
        (gradient,) = torch.autograd.grad(output.float().square().sum(), leaf)
        return torch.cat([output.detach(), gradient], -1)

    first = run(x, True)
    assert all(torch.equal(run(x, True), first) for _ in range(5))
    assert torch.equal(run(x.transpose(0, 1).contiguous(), False).transpose(0, 1), first)
    assert torch.equal(run(x.transpose(0, 1), False).transpose(0, 1), first)  # strides alone


@needs_gpu
def test_offsets_beyond_32_bits() -> None:
    steps, hidden = 2**20 + 3, 1024
    x = torch.randn(1, steps, 2 * hidden, dtype=torch.bfloat16, device="cuda")
    output, final = _scan_gpu_op.scan(x, None, None, None, None, "mingru", True, False)
    _, late = _scan_gpu_op.scan(x[:, -1000:], None, None, None, None, "mingru", True, False)  # all before is forgotten
    torch.testing.assert_close(final, late)
    assert torch.equal(output[:, -1], final)


@needs_gpu
def test_the_ops_are_what_torch_asks_of_ops() -> None:
    x = torch.randn(4, 9, 12, device="cuda", requires_grad=True)
    bias, first = torch.randn(12, device="cuda", requires_grad=True), torch.randn(4, 6, device="cuda", requires_grad=True)
    lengths = torch.tensor([9, 1, 5, 2], device="cuda")
    arguments: tuple[Any, ...] = (x, bias, first, lengths, None, "mingru", True, False)
    product = (torch.randn(9, 12, device="cuda", requires_grad=True), torch.randn(6, 12, device="cuda"), False)
    for op, passed in ((OPS.scan_forward, arguments), (OPS.gate_product, product)):
        outcome = torch.library.opcheck(op.default, passed)
        assert set(outcome.values()) == {"SUCCESS"}, outcome


@needs_gpu
def test_a_compiled_function_is_one_graph() -> None:
    x, weight = torch.randn(4, 9, 5, device="cuda"), torch.randn(12, 5, device="cuda", requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        product = _gate_product.gate_products(x, weight, False)
        return _scan_gpu_op.scan(product, None, None, None, None, "mingru", True, False)[0]

    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    (expected,) = torch.autograd.grad(layer(x).sum(), weight)
    (got,) = torch.autograd.grad(compiled(x).sum(), weight)
    torch.testing.assert_close(got, expected)


def test_a_shape_is_read_from_x() -> None:
    x = torch.empty(5, 7, 6, device="meta")
    assert Shape.of(x, "minlstm", False, True) == Shape("minlstm", 5, 7, 2, False, True)
