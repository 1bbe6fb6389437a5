"""LSTM in bfloat16 by FlashRNN's fused kernel, whose recurrent weights stay on the chip as persistent_gpu's do.

flashrnn 1.0.8 (github.com/NX-AI/flashrnn): one cooperative launch for all steps. The package takes pre-activations
[B, T, G, heads, D] in bfloat16; the inputs' product is torch's here. Gates have the biases' type: they are given in float32, as
with biases of 16 bits each operation of a gate is rounded to 16 bits.

It is compiled by nvcc at first use for each B and H, several times over to find what fits into registers, which takes minutes.
Source: Poeppel, Beck, Hochreiter, FlashRNN, arXiv 2412.07752.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.metadata import version
from unittest.mock import patch

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, Unsupported, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.autograd_ops import refuse_second_gradients
from pytest_ecornn.implementations.peers._peer import can_compile, device_skip_reason, import_quietly
from pytest_ecornn.reference.precision import tf32_refusal
from pytest_ecornn.system.error_line import first_line

_BATCH, _HIDDEN = 8, 128  # B and H must be multiples of them
GATES = 4
_THREADS = 1024  # of a block at most, on every device


class FlashRnn(Implementation):
    carry = "storage"
    gate_gradients = "storage"
    saved_gates = "storage"
    products = "storage"
    activation_error = 2.0**-16  # compiled with fast division and exponentials
    deterministic = False  # gradients of biases are summed by atomic additions

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell != "lstm":
            return f"no {case.cell}: the fused kernel here is LSTM's"
        if case.dtype != "bfloat16":
            return f"runs bfloat16, not {case.dtype}"
        if case.ragged:
            return "runs sequences of one length"
        if case.batch % _BATCH or case.hidden_size % _HIDDEN:
            return f"is compiled, for minutes, for each B and H: here for multiples of {_BATCH} and {_HIDDEN} only"
        if reason := tf32_refusal(case) or device_skip_reason(device, ("flashrnn", "triton")):
            return reason
        return None if can_compile() else "needs nvcc and ninja, by which torch compiles extensions"

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations._common.scan_layer import on_device

        try:
            with on_device(case):
                load(case.batch, case.hidden_size, case.device)
        except (RuntimeError, ValueError, ImportError) as error:
            raise Unsupported(f"does not build: {first_line(error)[:200]}") from error
        return make_layer(case, weights)

    def cost(self, case: Case) -> Cost:
        """The inputs' products, a copy of pre-activations into the kernel's layout, the states; in training what is kept."""
        from pytest_ecornn.implementations._common.input_projection import product_cost

        product, tracks, rows = product_cost(case), case.layers * case.directions, case.steps * case.batch
        values, passes = (7 * GATES + 12, 3) if case.training else (3 * GATES + 2, 1)
        squares = passes * GATES * case.hidden_size**2
        moved = tracks * (squares + rows * values * case.hidden_size) * 2
        return Cost(product.bytes + moved, product.operations + 2 * tracks * rows * squares)

    def notes(self) -> str:
        return f"flashrnn {version('flashrnn')}, cuda_fused, biases and gates in float32"


def make_layer(case: Case, weights: Weights) -> Layer:
    """All layers and directions of the case, one after the other."""
    from pytest_ecornn.implementations._common.input_projection import gate_products
    from pytest_ecornn.implementations._common.scan_layer import on_device

    def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
        ) -> tuple[Tensor, cells.GateTensors]:
            gates = x if is_projected else gate_products(x, weights.masked("weight_ih" + suffix), False)
            gates = gates if case.batch_first else gates.transpose(0, 1)
            gates = gates.flip(1) if reverse else gates
            output, final = fused_lstm(gates, weights.masked("weight_hh" + suffix), _bias(suffix), state)
            output = output.flip(1) if reverse else output
            return (output if case.batch_first else output.transpose(0, 1)), final

        with on_device(case):
            return run_layers(case, x, state, run_layer)

    def _bias(suffix: str) -> Tensor:
        own = [weights[name + suffix].float() for name in ("bias_ih", "bias_hh") if name + suffix in weights]
        return torch.stack(own).sum(0) if own else torch.zeros(GATES * case.hidden_size, device=case.device)

    return layer


def fused_lstm(gates: Tensor, weight: Tensor, bias: Tensor, first: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Pre-activations [B, T, 4H] -> outputs [B, T, H], views of the package's result, and the final h and c [B, H].

    weight: W_hh, [4H, H], bias: [4H] in float32, both in torch.nn's order of gates, which is the package's. first: the initial
    h and c [B, H], () for zeros. Differentiable once; the backward pass waits for the device.
    """
    hidden = weight.shape[1]
    all_states = torch.stack(tuple(first))[:, :, None, None] if first else None  # [S, B, 1, heads, D]
    given = (
        gates.unflatten(-1, (GATES, 1, hidden)), weight.view(GATES, 1, hidden, hidden), bias.view(GATES, 1, hidden), all_states
    )  # fmt: skip
    refuse_second_gradients("flashrnn", given)
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
