"""LSTM by the fused kernel of FlashRNN, flashrnn 1.0.8 (github.com/NX-AI/flashrnn): one cooperative launch for all steps.

The package takes pre-activations [B, T, G, heads, D] in bfloat16; the inputs' product is torch's here. Gates have the biases'
type: they are given in float32, as with biases of 16 bits each operation of a gate is rounded to 16 bits.

It is compiled by nvcc at first use for each B and H, several times over to find what fits into registers, which takes minutes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor

from pytest_ecornn.implementations.peers._peer import import_quietly

GATES = 4
_THREADS = 1024  # of a block at most, on every device


def fused_lstm(gates: Tensor, weight: Tensor, bias: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Pre-activations [B, T, 4H] -> outputs [B, T, H], views of the package's result, and the final h and c [B, H].

    weight: W_hh, [4H, H], bias: [4H] in float32, both in torch.nn's order of gates, which is the package's. first: the initial
    h and c [B, H], () for zeros. Differentiable; the backward pass waits for the device.
    """
    hidden = weight.shape[1]
    all_states = torch.stack(tuple(first))[:, :, None, None] if first else None  # [S, B, 1, heads, D]
    given = (
        gates.unflatten(-1, (GATES, 1, hidden)), weight.view(GATES, 1, hidden, hidden), bias.view(GATES, 1, hidden), all_states
    )  # fmt: skip
    found, final = import_quietly("flashrnn").flashrnn(*given, function="lstm", backend="cuda_fused")
    return found[0, :, :, 0], (final[0, :, 0, 0], final[1, :, 0, 0])


def load(batch: int, hidden: int, device: str) -> None:
    """Compiles the kernel of these sizes for `device`, which must be the current one. Raises RuntimeError or ValueError."""
    wide = GATES * hidden
    gates, weight = (torch.zeros(size, dtype=torch.bfloat16, device=device) for size in ((batch, 1, wide), (wide, hidden)))
    bias = torch.zeros(wide, dtype=torch.float32, device=device)
    before = random.getstate()  # the package waits a random time before it compiles
    try:
        # Its own extension that asks the device is not compiled by CUDA 13, and torch knows the same.
        with patch.object(import_quietly("flashrnn.flashrnn.flashrnn"), "get_gpu_info", _sizes), torch.no_grad():
            fused_lstm(gates, weight, bias, ())
    finally:
        random.setstate(before)


def _sizes(device_id: int) -> dict[str, int]:
    """Returns the device properties that the package queries."""
    found = torch.cuda.get_device_properties(device_id)
    return {
        "maxThreadsPerBlock": _THREADS,
        "regsPerMultiprocessor": found.regs_per_multiprocessor,  # type: ignore[attr-defined]
        "multiProcessorCount": found.multi_processor_count,
        "sharedMemPerBlockOptin": found.shared_memory_per_block_optin,  # type: ignore[attr-defined]
    }
