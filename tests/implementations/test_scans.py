"""Both scans on a GPU: repeatable in all layouts, right beyond 32 bits, and one graph when compiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._common import input_projection
from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu_log.ops import log_scan
from tests.helpers.requirements import needs_gpu
from tests.helpers.scans import given_x

SCANS = {
    "mingru": lambda x, batch_first: scan_gpu_ops.scan(x, None, None, None, None, "mingru", batch_first, False),
    "mingru_positive": lambda x, batch_first: log_scan(x, None, None, "mingru_positive", batch_first, False),
}
of_scans = pytest.mark.parametrize("cell", SCANS)


@needs_gpu
@of_scans
@pytest.mark.parametrize("hidden", [64, 4096], ids=["narrow", "wide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeats_are_equal_bit_for_bit_and_so_are_both_layouts(hidden: int, dtype: torch.dtype, cell: str) -> None:
    x = given_x(cell, 4099, 2, hidden, dtype)

    def run(x: Tensor, batch_first: bool) -> Tensor:
        leaf = x.detach().requires_grad_()
        output, _ = SCANS[cell](leaf, batch_first)
        (gradient,) = torch.autograd.grad(output.float().square().sum(), leaf)
        return torch.cat([output.detach(), gradient], -1)

    first = run(x, True)
    assert all(torch.equal(run(x, True), first) for _ in range(5))
    assert torch.equal(run(x.transpose(0, 1).contiguous(), False).transpose(0, 1), first)
    assert torch.equal(run(x.transpose(0, 1), False).transpose(0, 1), first)  # strides alone
    if cell == "mingru_positive":
        assert torch.equal(run(x.repeat_interleave(2, -1)[..., ::2], True), first)


@needs_gpu
@of_scans
def test_offsets_beyond_32_bits(cell: str) -> None:
    x = torch.randn(1, 2**20 + 3, 2 * 1024, dtype=torch.bfloat16, device="cuda")
    output, final = SCANS[cell](x, True)
    _, late = SCANS[cell](x[:, -1000:], True)  # all before is forgotten
    torch.testing.assert_close(final, late)
    assert torch.equal(output[:, -1], final)


@needs_gpu
@of_scans
def test_a_compiled_function_is_one_graph(cell: str) -> None:
    x, weight = torch.randn(4, 9, 5, device="cuda"), torch.randn(12, 5, device="cuda", requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return SCANS[cell](input_projection.gate_products(x, weight, False), True)[0]

    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    (expected,) = torch.autograd.grad(layer(x).sum(), weight)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), weight)
    torch.testing.assert_close(gradient, expected)
