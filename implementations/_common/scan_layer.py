"""A layer whose scan is a function of tensors, by operations of torch: its products, directions, device and cost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Layer, State, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.input_projection import product_cost
from pytest_ecornn.implementations._cuda.compile import with_index

Product = Callable[[Tensor, Tensor], Tensor]
_OPERATIONS = 20  # of a gate: an exponential, a reciprocal, the recurrence


class Scan(Protocol):
    def __call__(self, x: Tensor, first: Tensor | None, bias: Tensor | None) -> Tensor:
        """Pre-activations -> outputs [T, B, H] or [B, T, H], as the case lays them out, from the first step to the last.

        x: as the product returns it; without a product, [T, B, G*H] or [B, T, G*H]. first: [B, H]. bias: [G*H], to be added.
        """


def make_layer(case: Case, weights: Weights, product: Product, scan: Scan) -> Layer:
    """The layer of sequences of one length. product: of inputs [T, B, I] or [B, T, I] and a weight [G*H, I]."""
    time = 1 if case.batch_first else 0

    def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
        ) -> tuple[Tensor, cells.GateTensors]:
            bias = None
            x = x.flip(time) if reverse else x
            if not is_projected:
                x, bias = product(x, weights["weight_ih" + suffix]), weights.get("bias_ih" + suffix)
            output = scan(x, state[0] if state else None, bias)
            final = output.select(time, -1)
            return (output.flip(time) if reverse else output), (final,)

        with on_device(case):
            return run_layers(case, x, state, run_layer)

    return layer


def on_device(case: Case) -> AbstractContextManager[object]:
    """Context in which the case's CUDA device is the current one, where other people's kernels are launched."""
    return torch.cuda.device(with_index(case.device)) if case.device.startswith("cuda") else nullcontext()


def scan_cost(case: Case, moved: int) -> Cost:
    """Cost of the input products, and `moved` values of float32 (or wider) for each output element, in training thrice."""
    product, passes = product_cost(case), 3 if case.training else 1
    elements = passes * case.layers * case.directions * case.steps * case.batch * case.hidden_size
    size = max(4, getattr(torch, case.dtype).itemsize)
    operations = elements * len(cells.get(case.cell).gates) * _OPERATIONS
    return Cost(product.bytes + elements * moved * size, product.operations + operations)
