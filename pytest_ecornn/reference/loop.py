"""A plain loop over time steps, any cell, any device: the yardstick of errors, and on a GPU the literature's "default".

16-bit types: products take 16-bit operands and accumulate in float32, gates are float32, outputs are rounded once; the
state crosses steps in float32 or, where asked, rounded to storage.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pytest_ecornn.contract import Case, Cost, Declared, Implementation, Layer, Precision, State, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.reference.precision import Linear, ieee_linear, tf32_linear
from pytest_ecornn.reference.rounding import Rounding

_EXACT = Declared("float32")


class Operand(NamedTuple):
    """The operand of a product with some rows of a weight."""

    x: Tensor
    rows: slice


class ReferenceLoop(Implementation):
    """`declared` and `rounding` may be given, so that the harness can judge others by a loop that rounds where they do."""

    carry: Precision = "float32"
    deterministic = True
    takes_resets = True

    def __init__(self, declared: Declared = _EXACT, rounding: Rounding | None = None):
        vars(self).update(declared._asdict())
        self._rounding = rounding or Rounding()

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.precision != "ieee":
            return "the plain loop imitates TF32 only to judge others by; it multiplies in IEEE precision"
        return None

    def build(self, case: Case, weights: Weights) -> Layer:
        def layer(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
            def run_layer(
                suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
            ) -> tuple[Tensor, cells.GateTensors]:
                parameters = {name: weights.masked(name + suffix).to(compute) for name in _names(weights, suffix)}
                x = x.transpose(0, 1) if case.batch_first else x
                x_gates = x.to(compute)
                if not suffix.startswith(
                    "_l0"
                ):  # a layer's output is in storage, and so its gradient; the caller's x is its own
                    x_gates = self._rounded_backwards(x_gates, dtype, "storage")
                if not is_projected:
                    weight, bias = parameters["weight_ih"], parameters.get("bias_ih")
                    operands = self._summed_backwards(x_gates, dtype, weight.shape[0])
                    x_gates = self._product(multiply, dtype, operands, weight, bias)
                first = state or (x.new_zeros(x.shape[1], case.hidden_size),) * len(cell.states)
                output, final = self._loop(cell, dtype, multiply, x_gates, first, parameters, lengths, marks, reverse)
                return (output.transpose(0, 1) if case.batch_first else output), final

            multiply = tf32_linear(self._rounding) if case.precision == "tf32" and dtype == torch.float32 else ieee_linear()
            lengths = None if lengths is None else lengths.to(x.device)
            marks = resets.T if resets is not None and case.batch_first else resets
            return run_layers(case, x, state, run_layer)

        cell, dtype = cells.get(case.cell), getattr(torch, case.dtype)
        compute = torch.promote_types(dtype, torch.float32)
        return layer

    def _loop(
        self,
        cell: cells.Cell,
        dtype: torch.dtype,
        multiply: Linear,
        x_gates: Tensor,
        state: cells.GateTensors,
        parameters: dict[str, Tensor],
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, cells.GateTensors]:
        """x_gates [T, B, G*H], state [B, H] each, resets [T, B] -> output [T, B, H] and final states [B, H] in `dtype`."""
        count, compute, rounded = len(cell.gates), x_gates.dtype, self._rounding.to
        kept = dtype if self.carry == "storage" else compute
        state = tuple(s.to(compute) for s in state)
        outputs: list[Tensor] = []
        step = (cell.other if self._rounding.is_other_form else None) or cell.step
        weight, bias = parameters.get("weight_hh"), parameters.get("bias_hh")
        steps = list(enumerate(self._rounded_backwards(x_gates, dtype, self.gate_gradients).unbind(0)))
        for t, x_t in reversed(steps) if reverse else steps:
            before = state if resets is None else cells.apply_reset(state, resets[t])
            h_gates: cells.GateTensors = ()
            if weight is not None:
                if lengths is not None or t == len(steps) // 2:
                    weight = self._rounded_backwards(weight, dtype, self.weight_gradients)
                operand = rounded(before[0], dtype).to(compute)
                operands = self._summed_backwards(operand, dtype, weight.shape[0])
                if len(operands) > 1 and self.carry == "storage":
                    before = (operands[-1].x, *before[1:])  # the sum begins with the gradient of the state that a step keeps
                product = self._product(multiply, dtype, operands, weight, bias)
                h_gates = self._rounded_backwards(product, dtype, self.gate_gradients).chunk(count, -1)
            with self._saving(dtype, compute):
                new = step(x_t.chunk(count, -1), h_gates, before, parameters)
            output = new[0]
            if lengths is not None:
                alive = (lengths > t).unsqueeze(-1)  # [B, 1]
                new = tuple(torch.where(alive, a, b) for a, b in zip(new, state, strict=True))
                output = torch.where(alive, output, 0)
            stored = tuple(rounded(s, kept) for s in new)
            state = tuple(s.to(compute) for s in stored)
            if self._rounding.is_other_form and self.carry == "storage":  # sums what step and output send back in storage
                output = stored[0] if lengths is None else torch.where(alive, stored[0], 0)
            outputs.append(rounded(output, dtype))
        final = tuple(rounded(s, dtype) for s in state)
        if self._rounding.is_other_form and lengths is None:
            final = (outputs[-1], *final[1:])
        return torch.stack(outputs[::-1] if reverse else outputs), final

    def _product(
        self, multiply: Linear, dtype: torch.dtype, operands: list[Operand], weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """x W^T + bias, rounded before the bias is added where that is declared."""
        x = operands[0].x
        if self.products == "float32" or dtype == x.dtype:
            return multiply(x, weight, bias)

        def rounded(exact: Tensor) -> Tensor:
            given = exact.detach()
            return exact + torch.where(given.isfinite(), self._rounding.to(given, dtype) - given, 0.0)

        def part(columns: slice) -> Tensor:
            return rounded(torch.cat([multiply(one.x[..., columns], weight[one.rows, columns], None) for one in operands], -1))

        parts = [part(columns) for columns in self._rounding.partial_sum_terms(x.shape[-1])]
        product = rounded(torch.stack(parts).sum(0)) if len(parts) > 1 else parts[0]
        return product if bias is None else product + bias

    def _summed_backwards(self, x: Tensor, dtype: torch.dtype, rows: int) -> list[Operand]:
        """x for each part of a weight's rows, whose sum is x's gradient: rounded after each part where that is declared."""
        parts = self._rounding.running_parts(rows)
        if self.products == "float32" or dtype == x.dtype or len(parts) == 1:
            return [Operand(x, slice(rows))]
        operands = []
        for part in parts:
            x = self._rounded_backwards(x, dtype, self.products)
            operands.append(Operand(x, part))
        return operands

    def _rounded_backwards(self, x: Tensor, dtype: torch.dtype, declared: Precision) -> Tensor:
        """x, whose gradient, summed over all that is made of the result, is rounded where "storage" is declared."""
        if declared == "float32" or dtype == x.dtype or not x.requires_grad:
            return x
        # A view, as a leaf's own gradient is the caller's. A hook that knew its own tensor would keep the whole graph alive.
        view, rounded, compute = x.view_as(x), self._rounding.to, x.dtype
        view.register_hook(lambda gradient: rounded(gradient, dtype).to(compute))
        return view

    def _saving(self, dtype: torch.dtype, compute: torch.dtype) -> AbstractContextManager[Any]:
        """Rounds tensors that operations save for the backward pass to `dtype`, where that is declared."""
        if self.saved_gates == "float32" or dtype == compute:
            return nullcontext()

        def pack(kept: Tensor) -> Tensor:
            return self._rounding.to(kept.detach(), dtype) if kept.dtype == compute else kept

        return saved_tensors_hooks(pack, lambda kept: kept.to(compute) if kept.dtype == dtype else kept)

    def cost(self, case: Case) -> Cost:
        """The floor's, plus what a loop adds: each step reads the recurrent weights and its state, and writes the gates."""
        floor, cell = cells.minimum_cost(case), cells.get(case.cell)
        size = torch.empty((), dtype=getattr(torch, case.dtype)).element_size()
        shapes = cells.parameter_shapes(case)
        recurrent = sum(torch.Size(s).numel() for name, s in shapes.items() if name.startswith("weight_hh"))
        elements = case.batch * case.hidden_size * case.layers * case.directions
        a_step = recurrent + elements * 2 * (len(cell.gates) + len(cell.states))
        return Cost(floor.bytes + case.steps * a_step * size * (2 if case.training else 1), floor.operations)

    def notes(self) -> str:
        return f"state carried in {'the storage type' if self.carry == 'storage' else 'float32 or wider'}"


def _names(weights: Weights, suffix: str) -> list[str]:
    return list(cells.layer_parameters(weights, suffix))
