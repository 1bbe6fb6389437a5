"""A layer of MinGRU or MinLSTM that torch.compile or torch.export traces: by the scans' ops, as nothing is timed or built."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.implementations._common.input_projection import gate_products
from pytest_ecornn.implementations._cuda.compile import skip_reason
from pytest_ecornn.implementations.scan_cpu.ops import scan as scan_on_cpu
from pytest_ecornn.implementations.scan_gpu.ops import scan as scan_on_gpu
from pytest_ecornn.nn.calls import missing_transform
from pytest_ecornn.reference.precision import current

_MAX_INDEX = 2**30  # of the kernels on a GPU


def traced_backend(module: Any, x: Tensor) -> str | None:
    """The scan that runs a traced layer, or None where its layers are left out of the graph. x: [T, B, I] or [B, T, I]."""
    if x.device.type not in ("cpu", "cuda") or missing_transform():
        return None
    steps, batch = (x.shape[1], x.shape[0]) if module.batch_first else x.shape[:2]
    if x.is_cuda and (steps >= _MAX_INDEX or batch * module.weight_ih_l0.shape[0] >= _MAX_INDEX):
        return None
    backend: str | None = _usable(module._backend, x.device)
    return backend


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _usable(backend: str, device: torch.device) -> str | None:
    own = "scan_gpu" if device.type == "cuda" else "scan_cpu"
    forced = os.environ.get("ECORNN_AUTO") or "measure"
    if backend not in ("auto", "heuristic", own) or (backend == "auto" and forced not in ("measure", "heuristic", own)):
        return None
    return own if device.type == "cpu" or skip_reason(device) is None else None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _multiplies_in_tf32() -> bool:
    return current("matmul") == "tf32"


def run_traced_layer(
    module: Any, layer: int, x: Tensor, state: Tensor | None, lengths: Tensor | None, resets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output [.., D*H] and final states [D, B, H] of one layer in D directions. lengths: on the CPU."""
    outputs, finals = [], []
    for direction in range(1 + module.bidirectional):
        suffix = f"_l{layer}" + "_reverse" * direction
        weight = getattr(module, "weight_ih" + suffix)
        bias = getattr(module, "bias_ih" + suffix) if module.bias else None
        first = None if state is None else state[direction]
        one = _one_on_gpu if x.is_cuda else _one_on_cpu
        output, final = one(module, x, weight, bias, first, lengths, resets, bool(direction))
        outputs.append(output)
        finals.append(final)
    return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0], torch.stack(finals)


def _one_on_gpu(
    module: Any, x: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None,
    resets: Tensor | None, reverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tf32 = x.dtype == torch.float32 and _multiplies_in_tf32()
    gates = gate_products(x, weight.to(x.dtype), tf32)
    lengths = None if lengths is None else lengths.to(x.device)
    marks = None if resets is None else resets.contiguous().view(torch.uint8)
    bias = None if bias is None else bias.to(x.dtype)
    return scan_on_gpu(gates, bias, first, lengths, marks, module.cell, module.batch_first, reverse)


def _one_on_cpu(
    module: Any, x: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor | None, lengths: Tensor | None,
    resets: Tensor | None, reverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    compute = torch.promote_types(x.dtype, torch.float32)
    gates = linear(x.to(compute), weight.to(x.dtype).to(compute), None if bias is None else bias.to(x.dtype).to(compute))
    marks = None if resets is None else resets.contiguous()
    return scan_on_cpu(gates, first, lengths, marks, module.cell, x.dtype, module.batch_first, reverse)
