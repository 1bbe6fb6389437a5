"""Kernels that are no recurrent layers, with their references and inputs; and how each may be wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Function = Callable[..., Any]
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Kernel:
    """A kernel, its reference, and what draws its inputs."""

    candidate: Function
    reference: Function
    make_inputs: Callable[[int], tuple[Any, ...]]
    skip: dict[str, str]


def random(seed: int, *shape: int, dtype: torch.dtype = FLOAT32, device: str = "cpu", grad: bool = False) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
    return values.requires_grad_() if grad else values


# softmax


def softmax_reference(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def softmax_inputs(dtype: torch.dtype, device: str = "cpu", grad: bool = True) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda seed: (random(seed, 17, 97, dtype=dtype, device=device, grad=grad),)


# layer norm


def layer_norm_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return ((x - mean) * torch.rsqrt(variance + 1e-5) * weight + bias).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias).to(x.dtype)


def layer_norm_inputs(dtype: torch.dtype, device: str = "cpu") -> Callable[[int], tuple[Tensor, ...]]:
    def make(seed: int) -> tuple[Tensor, ...]:
        # On a CPU torch adds up the weights' gradients in 16 bits, 100 times less precise than the sum of a plain loop.
        is_plain = dtype == FLOAT32 or device != "cpu"
        weights = (random(seed + 1000 * k, 64, dtype=dtype, device=device, grad=is_plain) for k in (1, 2))
        return random(seed, 9, 5, 64, dtype=dtype, device=device, grad=True), *weights

    return make


# attention


def attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return softmax_reference(scores.masked_fill(~mask, -math.inf)) @ v


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_inputs(dtype: torch.dtype, device: str = "cpu") -> Callable[[int], tuple[Tensor, ...]]:
    return lambda seed: tuple(random(3 * seed + k, 2, 3, 33, 16, dtype=dtype, device=device, grad=True) for k in range(3))


# products


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def matmul_inputs(dtype: torch.dtype, device: str = "cpu") -> Callable[[int], tuple[Tensor, ...]]:
    def make(seed: int) -> tuple[Tensor, ...]:
        return random(seed, 33, 70, dtype=dtype, device=device), random(seed + 1000, 70, 40, dtype=dtype, device=device)

    return make


# others' languages, on a CPU


@numba.njit(cache=False)  # type: ignore[untyped-decorator]
def _rms_norm_loop(x: Any, weight: Any, y: Any) -> None:
    for row in range(x.shape[0]):
        total = np.float32(0)
        for column in range(x.shape[1]):
            total += x[row, column] * x[row, column]
        scale = np.float32(1) / np.sqrt(total / np.float32(x.shape[1]) + np.float32(1e-6))
        for column in range(x.shape[1]):
            y[row, column] = x[row, column] * scale * weight[column]


def numba_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.empty(x.shape)
    _rms_norm_loop(x.numpy(), weight.numpy(), y.numpy())
    return y


def rms_norm_reference(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def rms_norm_inputs(seed: int) -> tuple[Tensor, ...]:
    return random(seed, 11, 80), random(seed + 1000, 80)


def numpy_logsumexp(x: Tensor) -> Any:
    values = x.numpy()
    largest = values.max(-1, keepdims=True)
    return np.log(np.exp(values - largest).sum(-1)) + largest[..., 0]


def logsumexp_reference(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


# scans and losses


def linear_scan_reference(forget: Tensor, x: Tensor) -> Tensor:
    h, steps = torch.zeros_like(x[0]), []
    for f, value in zip(forget.unbind(), x.unbind(), strict=True):
        h = f * h + value
        steps.append(h)
    return torch.stack(steps)


def linear_scan(forget: Tensor, x: Tensor) -> Tensor:
    """By halves: two parts, then the first's last state through the second."""
    steps = len(x)
    if steps == 1:
        return x.clone()
    half = steps // 2
    first, second = linear_scan(forget[:half], x[:half]), linear_scan(forget[half:], x[half:])
    return torch.cat([first, second + forget[half:].cumprod(0) * first[-1]])


def linear_scan_inputs(seed: int) -> tuple[Tensor, ...]:
    return random(seed, 29, 3, 7).sigmoid().requires_grad_(), random(seed + 1000, 29, 3, 7, grad=True)


def cross_entropy_reference(logits: Tensor, target: Tensor) -> Tensor:
    return (torch.logsumexp(logits, -1) - logits.gather(-1, target[:, None])[:, 0]).mean()


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def cross_entropy_inputs(seed: int) -> tuple[Tensor, ...]:
    target = torch.randint(50, (21,), generator=torch.Generator().manual_seed(seed))
    return random(seed, 21, 50, grad=True), target


KERNELS = {
    "softmax bfloat16": Kernel(softmax, softmax_reference, softmax_inputs(BFLOAT16), {}),
    "softmax float16": Kernel(softmax, softmax_reference, softmax_inputs(torch.float16), {}),
    "softmax float32": Kernel(softmax, softmax_reference, softmax_inputs(FLOAT32), {}),
    "softmax float64": Kernel(softmax, softmax_reference, softmax_inputs(torch.float64), {}),
    "layer_norm bfloat16": Kernel(layer_norm, layer_norm_reference, layer_norm_inputs(BFLOAT16), {}),
    "layer_norm float32": Kernel(layer_norm, layer_norm_reference, layer_norm_inputs(FLOAT32), {}),
    "attention bfloat16": Kernel(attention, attention_reference, attention_inputs(BFLOAT16), {}),
    "attention float16": Kernel(attention, attention_reference, attention_inputs(torch.float16), {}),
    "attention float32": Kernel(attention, attention_reference, attention_inputs(FLOAT32), {}),
    "matmul bfloat16": Kernel(matmul, matmul, matmul_inputs(BFLOAT16), {}),
    "linear scan": Kernel(linear_scan, linear_scan_reference, linear_scan_inputs, {}),
    "cross entropy": Kernel(cross_entropy, cross_entropy_reference, cross_entropy_inputs, {}),
    "numba rms_norm": Kernel(numba_rms_norm, rms_norm_reference, rms_norm_inputs, {}),
    "numpy logsumexp": Kernel(numpy_logsumexp, logsumexp_reference, softmax_inputs(FLOAT32, grad=False), {}),
}


# Faults


def _clone_with(change: Callable[[Tensor, Tensor], None], function: Function) -> Function:
    def wrong(*arguments: Tensor) -> Tensor:
        y = function(*arguments).clone()
        with torch.no_grad():
            change(y, arguments[0])
        return y

    return wrong


def _short_tail(y: Tensor, x: Tensor) -> None:
    y[..., -1] = 0


def _skipped_rows(y: Tensor, x: Tensor) -> None:
    y[len(y) // 16 * 16 :] = 0


def _no_maximum(x: Tensor) -> Tensor:
    e = torch.exp(30 * x)
    return e / e.sum(-1, keepdim=True)


def _mask_off_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _no_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / math.sqrt(q.shape[-1] + 1))


def _sum_in_16_bits(a: Tensor, b: Tensor) -> Tensor:
    y = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        y += a[:, k, None] * b[k]
    return y


def _rounded_twice(a: Tensor, b: Tensor) -> Tensor:
    half = a.shape[1] // 2
    return a[:, :half] @ b[:half] + a[:, half:] @ b[half:]


def _truncated(a: Tensor, b: Tensor) -> Tensor:
    return ((a.float() @ b.float()).view(torch.int32) & ~0xFFFF).view(FLOAT32).to(a.dtype)


_buffer: dict[tuple[int, ...], Tensor] = {}


def _same_buffer(x: Tensor, weight: Tensor) -> Tensor:
    y = _buffer.setdefault(tuple(x.shape), torch.empty(x.shape))
    return y.copy_(rms_norm_reference(x, weight))


_last: dict[int, Tensor] = {}


def _stale_output(x: Tensor, weight: Tensor) -> Tensor:
    """Remembers results by the address of the argument."""
    return _last.setdefault(x.data_ptr(), rms_norm_reference(x, weight)).clone()


def _race(x: Tensor, weight: Tensor) -> Tensor:
    """Adds in an order of chance: the last bits of a sum differ."""
    order = np.random.default_rng().permutation(x.shape[1])
    total = (x * x)[:, order].numpy().cumsum(-1)[:, -1]
    return x * torch.rsqrt(torch.from_numpy(total)[:, None] / x.shape[1] + 1e-6) * weight


def _alias(x: Tensor, weight: Tensor) -> Tensor:
    return x.mul_(torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)).mul_(weight)


def _restored_alias(x: Tensor, weight: Tensor) -> Tensor:
    """Works in place where the argument lies, and returns it once more."""
    y = rms_norm_reference(x, weight)
    x.data = y
    return x


def _unwritten_row(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    y[:-1] = rms_norm_reference(x, weight)[:-1]
    return y


def _one_element_too_many(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    y.copy_(rms_norm_reference(x, weight))
    np.lib.stride_tricks.as_strided(y.view(-1).numpy(), (y.numel() + 1,))[-1] = 0
    return y


def _by_address(x: Tensor, weight: Tensor) -> Tensor:
    """Takes its argument for contiguous."""
    return rms_norm_reference(x.as_strided(x.shape, (x.shape[1], 1)), weight)


def _from_the_start(x: Tensor, weight: Tensor) -> Tensor:
    """Takes its argument for the beginning of its memory."""
    whole = torch.empty(0).set_(x.untyped_storage())  # type: ignore[call-overload]
    return rms_norm_reference(whole.as_strided(x.shape, x.stride()), weight)


def _seeds(x: Tensor, weight: Tensor) -> Tensor:
    torch.manual_seed(1234)
    return rms_norm_reference(x, weight)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = F.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return y * gradient  # lacks - y * (y * gradient).sum()


class _Scan(torch.autograd.Function):
    """Right, but for the gradient that it returns where the incoming one is not contiguous."""

    @staticmethod
    def forward(ctx: Any, forget: Tensor, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaves = forget.detach().requires_grad_(), x.detach().requires_grad_()
            ctx.graph = leaves, linear_scan_reference(*leaves)
        return ctx.graph[1].detach().clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        leaves, y = ctx.graph
        flat = gradient.as_strided(gradient.shape, torch.empty(gradient.shape).stride())
        return torch.autograd.grad(y, leaves, flat, retain_graph=True)


def _detached_forget(forget: Tensor, x: Tensor) -> Tensor:
    return linear_scan_reference(forget.detach(), x)


def _shifted_scan(forget: Tensor, x: Tensor) -> Tensor:
    return linear_scan_reference(torch.cat([forget[1:], forget[:1]]), x)


def _no_mean(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="sum") / (len(target) + 1)


def _smoothed(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, label_smoothing=0.01)


class _Counting:
    """A kernel that two threads use at once."""

    def __init__(self) -> None:
        self._x: Tensor | None = None

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        self._x = x
        y = torch.empty(x.shape)
        for row in range(x.shape[0]):
            time.sleep(2e-4)
            torch.mul(self._x[row], torch.rsqrt((self._x[row] ** 2).mean() + 1e-6), out=y[row])
        return y * weight


# name -> the right kernel, the wrong one, and what the message says.
FAULTS: dict[str, tuple[str, Function, str]] = {
    "a skipped tail of columns": ("softmax float32", _clone_with(_short_tail, softmax), "output ([:, 96])"),
    "rows beyond a multiple of 16": ("softmax bfloat16", _clone_with(_skipped_rows, softmax), "output ([16])"),
    "softmax of other logits": ("softmax float32", _no_maximum, "output"),
    "a gradient that lacks a term": ("softmax float32", _Softmax.apply, "grad x"),
    "a gradient that lacks a term, in 16 bits": ("softmax bfloat16", _Softmax.apply, "grad x"),
    "a mask off by one": ("attention bfloat16", _mask_off_by_one, "output"),
    "a scale that is wrong by 3 %": ("attention bfloat16", _no_scale, "output"),
    "a sum in 16 bits": ("matmul bfloat16", _sum_in_16_bits, "share of elements that differ"),
    "partial sums that are rounded": ("matmul bfloat16", _rounded_twice, "share of elements that differ"),
    "truncation for rounding": ("matmul bfloat16", _truncated, "share of elements"),
    "one buffer for all results": ("numba rms_norm", _same_buffer, "fresh_results"),
    "a stale output": ("numba rms_norm", _stale_output, "stateless"),
    "a race": ("numba rms_norm", _race, "repeats"),
    "an alias of the argument": ("numba rms_norm", _alias, "expected x unchanged"),
    "an argument with other memory": ("numba rms_norm", _restored_alias, "x"),
    "an unwritten row": ("numba rms_norm", _unwritten_row, "output: at [10, 0] expected"),
    "a write behind the end": ("numba rms_norm", _one_element_too_many, "guard_bands"),
    "strides that are not read": ("numba rms_norm", _by_address, "strided"),
    "an offset that is not read": ("numba rms_norm", _from_the_start, "offset"),
    "a seed that is set": ("numba rms_norm", _seeds, "globals_unchanged"),
    "state that threads share": ("numba rms_norm", _Counting(), "calls_at_once"),
    "a gradient that is not propagated": ("linear scan", _detached_forget, "grad forget"),
    "strides of an incoming gradient": ("linear scan", _Scan.apply, "incoming_layouts"),
    "a step too early": ("linear scan", _shifted_scan, "output"),
    "a mean of one more": ("cross entropy", _no_mean, "output"),
    "labels that are smoothed": ("cross entropy", _smoothed, "output"),
}
