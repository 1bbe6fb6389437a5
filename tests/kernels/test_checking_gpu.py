"""`check` and `compare` on other people's kernels for a GPU: torch, Triton, accelerated-scan, fla and Liger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pytest_ecornn import WrongKernel, check, compare
from tests.helpers import foreign_kernels as foreign
from tests.helpers.foreign_kernels import random

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # autograd's thread makes its context by it
]
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
Made = tuple[Callable[..., Any], Callable[..., Any], Callable[[int], tuple[Any, ...]], dict[str, str]]
# Of torch 2.11, whose kernels take any pointer for one that is aligned to 16 bytes.
ALIGNED = {"offset": "q, k and v must be aligned", "incoming_layouts": "so must their incoming gradients"}


def _triton_matmul() -> Made:
    kernels = pytest.importorskip("tests.helpers.triton_kernels", reason="needs Triton")
    return kernels.matmul, foreign.matmul, _of_two(BFLOAT16, (200, 130), (130, 96)), {}


def _triton_softmax() -> Made:
    kernels = pytest.importorskip("tests.helpers.triton_kernels", reason="needs Triton")
    return kernels.softmax, foreign.softmax_reference, foreign.softmax_inputs(FLOAT16, "cuda", grad=False), {}


def _of_two(dtype: torch.dtype, *shapes: tuple[int, ...], grad: bool = False) -> Callable[[int], tuple[Tensor, ...]]:
    def make(seed: int) -> tuple[Tensor, ...]:
        return tuple(random(seed + 1000 * k, *s, dtype=dtype, device="cuda", grad=grad) for k, s in enumerate(shapes))

    return make


def _accelerated_scan() -> Made:
    module = pytest.importorskip("accelerated_scan.scalar")

    def make(seed: int) -> tuple[Tensor, ...]:
        return random(seed, 3, 5, 2048, device="cuda").sigmoid().requires_grad_(), random(
            seed + 1, 3, 5, 2048, device="cuda", grad=True
        )

    def scan(gates: Tensor, tokens: Tensor) -> Tensor:
        result: Tensor = module.scan(gates, tokens)
        return result

    def reference(gates: Tensor, tokens: Tensor) -> Tensor:
        return foreign.linear_scan_reference(gates.movedim(-1, 0), tokens.movedim(-1, 0)).movedim(0, -1)

    strided = "its kernel takes arguments for contiguous"
    return scan, reference, make, {"strided": strided, "transposed": strided, "incoming_layouts": strided}


def _hgrn() -> Made:
    hgrn = pytest.importorskip("fla.ops.hgrn")

    def make(seed: int) -> tuple[Tensor, ...]:
        x, gates = (random(seed + k, 2, 150, 64, device="cuda") for k in (0, 1))
        return x.requires_grad_(), F.logsigmoid(gates).requires_grad_()

    def reference(x: Tensor, g: Tensor) -> Tensor:
        return foreign.linear_scan_reference(g.exp().movedim(1, 0), x.movedim(1, 0)).movedim(0, 1)

    return lambda x, g: hgrn.fused_recurrent_hgrn(x, g)[0], reference, make, {}


def _liger() -> Made:
    rms_norm = pytest.importorskip("liger_kernel.ops.rms_norm").LigerRMSNormFunction

    def call(x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = rms_norm.apply(x, weight, 1e-6, 0.0, "llama", False)
        return y

    return call, foreign.rms_norm_reference, _of_two(BFLOAT16, (64, 256), (256,), grad=True), {}


def _torch(dtype: torch.dtype) -> dict[str, Callable[[], Made]]:
    name = str(dtype).removeprefix("torch.")
    return {
        f"torch softmax {name}": lambda: (
            foreign.softmax, foreign.softmax_reference, foreign.softmax_inputs(dtype, "cuda"), {},
        ),
        f"torch layer_norm {name}": lambda: (
            foreign.layer_norm, foreign.layer_norm_reference, foreign.layer_norm_inputs(dtype, "cuda"), {},
        ),
        f"torch attention {name}": lambda: (
            foreign.attention, foreign.attention_reference, foreign.attention_inputs(dtype, "cuda"), ALIGNED,
        ),
    }  # fmt: skip


KERNELS: dict[str, Callable[[], Made]] = {
    **_torch(BFLOAT16),
    **_torch(FLOAT16),
    "Triton matmul": _triton_matmul,
    "Triton softmax": _triton_softmax,
    "accelerated-scan": _accelerated_scan,
    "fla HGRN": _hgrn,
    "Liger rms_norm": _liger,
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes(name: str) -> None:
    candidate, reference, make_inputs, skip = KERNELS[name]()
    row = check(candidate, reference, make_inputs, draws=6, skip=skip).row
    assert row.informative["capture"] == 2


def _last_of_k(a: Tensor, b: Tensor) -> Tensor:
    """The last tile of k, which is shorter, is skipped."""
    result: Tensor = pytest.importorskip("tests.helpers.triton_kernels").matmul(a, b, last=2)
    return result


def _short_row(x: Tensor) -> Tensor:
    result: Tensor = pytest.importorskip("tests.helpers.triton_kernels").softmax(x, short=1)
    return result


_side: list[Any] = []


def _other_stream(x: Tensor) -> Tensor:
    """Computes on a stream of its own, and waits for nothing."""
    if not _side:
        _side.append(torch.cuda.Stream())
    with torch.cuda.stream(_side[0]):
        return foreign.softmax(x)


def _host_value(x: Tensor) -> Tensor:
    """Reads the largest element on the host."""
    e = torch.exp(x.float() - float(x.detach().max()))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def _atomic(x: Tensor) -> Tensor:
    """Sums float32 terms of very different sizes by atomic additions, in an order of chance."""
    rows = torch.arange(x.shape[0], device=x.device).repeat_interleave(x.shape[1])
    e = torch.exp(x - x.amax(-1, keepdim=True))
    total = torch.zeros(x.shape[0], device=x.device).index_add_(0, rows, e.flatten())
    return e / total[:, None]


FAULTS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a skipped last tile": ("Triton matmul", _last_of_k, "output"),
    "a column that is not read": ("Triton softmax", _short_row, "output"),
    "another stream": ("torch softmax float16", _other_stream, "current_stream"),
    "a value on the host": ("torch softmax float16", _host_value, "capture"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_for_its_reason(fault: str) -> None:
    name, wrong, message = FAULTS[fault]
    _, reference, make_inputs, skip = KERNELS[name]()
    with pytest.raises(WrongKernel, match=message):
        check(wrong, reference, make_inputs, draws=3, skip=skip)


def test_an_order_of_chance_is_found() -> None:
    def make_inputs(seed: int) -> tuple[Tensor, ...]:
        return (random(seed, 4, 100_000, device="cuda"),)

    with pytest.raises(WrongKernel, match="repeats"):
        check(_atomic, foreign.softmax_reference, make_inputs, draws=2, terms=100_000)


def test_functions_are_timed_by_both_clocks() -> None:
    report = compare(
        {"fused": foreign.softmax, "plain": foreign.softmax_reference}, foreign.softmax_inputs(FLOAT16, "cuda"), budget=0.5
    )
    assert report.ratio("fused", than="plain", column="timing").verdict == "faster"
    assert report.ratio("fused", than="plain", column="replay").verdict == "faster"
