"""A plain loop over time steps, any cell, any device: the yardstick of errors, and on a GPU the literature's "default".

16-bit types: products take 16-bit operands and accumulate in float32, gates are float32, outputs are rounded once; the
state crosses steps in float32 or, where asked, rounded to storage.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pytest_ecornn import cells
from pytest_ecornn.contract import Case, Cost, Declared, Implementation, Layer, Precision, State, Weights
from pytest_ecornn.implementations._precision import Linear, ieee_linear, tf32_linear
from pytest_ecornn.implementations._stack import run_layers

_EXACT = Declared("float32")


class _RoundedGradient(torch.autograd.Function):
    """The same tensor; its gradient rounded to a dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.to(ctx.dtype).to(gradient.dtype), None


class _RoundedWhenSaved(torch.autograd.Function):
    """sigmoid or tanh, as it is; its slope from the value rounded to a dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Any, dtype: torch.dtype) -> Tensor:
        result: Tensor = function(x)
        ctx.is_tanh = function is torch.tanh
        ctx.save_for_backward(result.to(dtype))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        value = ctx.saved_tensors[0].to(gradient.dtype)
        slope = 1 - value * value if ctx.is_tanh else value * (1 - value)
        return gradient * slope, None, None


class _SavedGates(TorchFunctionMode):
    """Within it, what sigmoid and tanh keep for the backward pass is rounded to a dtype."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.sigmoid, torch.tanh):
            return _RoundedWhenSaved.apply(*args, func, self._dtype)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class Sequential(Implementation):
    """`declared` may be given, so that the harness can judge others by a loop that rounds where they do."""

    carry: Precision = "float32"
    deterministic = True

    def __init__(self, declared: Declared = _EXACT):
        self.carry, self.gate_gradients, self.saved_gates, self.activation_error = declared

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.precision != "ieee":
            return "the plain loop imitates TF32 only to judge others by; it multiplies in IEEE precision"
        return None

    def build(self, case: Case, weights: Weights) -> Layer:
        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            def run_layer(
                suffix: str, x: Tensor, is_projected: bool, state: cells.Blocks, reverse: bool
            ) -> tuple[Tensor, cells.Blocks]:
                parameters = {name: weights.masked(name + suffix).to(compute) for name in _names(weights, suffix)}
                x = x.transpose(0, 1) if case.batch_first else x
                x_gates = x.to(compute)
                if not is_projected:
                    x_gates = multiply(x_gates, parameters["weight_ih"], parameters.get("bias_ih"))
                first = state or (x.new_zeros(x.shape[1], case.hidden_size),) * len(cell.states)
                output, final = self._loop(cell, dtype, multiply, x_gates, first, parameters, lengths, reverse)
                return (output.transpose(0, 1) if case.batch_first else output), final

            multiply = tf32_linear() if case.precision == "tf32" and dtype == torch.float32 else ieee_linear()
            lengths = None if lengths is None else lengths.to(x.device)
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
        state: cells.Blocks,
        parameters: dict[str, Tensor],
        lengths: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, cells.Blocks]:
        """x_gates [T, B, G*H], state [B, H] each -> output [T, B, H] in `dtype`, final states [B, H] in `dtype`."""
        count, compute = len(cell.gates), x_gates.dtype
        kept = dtype if self.carry == "storage" else compute
        state = tuple(s.to(compute) for s in state)
        is_rounded = self.saved_gates == "storage" and dtype != compute
        saving: Any = _SavedGates(dtype) if is_rounded else nullcontext()
        outputs: list[Tensor] = []
        steps = list(enumerate(self._rounded(x_gates, dtype).unbind(0)))
        for t, x_t in reversed(steps) if reverse else steps:
            h_gates: cells.Blocks = ()
            if cell.recurrent:
                operand = state[0].to(dtype).to(compute)
                product = multiply(operand, parameters["weight_hh"], parameters.get("bias_hh"))
                h_gates = self._rounded(product, dtype).chunk(count, -1)
            with saving:
                new = cell.step(x_t.chunk(count, -1), h_gates, state, parameters)
            output = new[0]
            if lengths is not None:
                alive = (lengths > t).unsqueeze(-1)  # [B, 1]
                new = tuple(torch.where(alive, a, b) for a, b in zip(new, state, strict=True))
                output = torch.where(alive, output, 0)
            state = tuple(s.to(kept).to(compute) for s in new)
            outputs.append(output.to(dtype))
        return torch.stack(outputs[::-1] if reverse else outputs), tuple(s.to(dtype) for s in state)

    def _rounded(self, gates: Tensor, dtype: torch.dtype) -> Tensor:
        if self.gate_gradients == "float32" or dtype == gates.dtype:
            return gates
        rounded: Tensor = _RoundedGradient.apply(gates, dtype)  # type: ignore[no-untyped-call]
        return rounded

    def cost(self, case: Case) -> Cost:
        """The floor's, plus what a loop adds: each step reads the recurrent weights and its state, and writes the gates."""
        floor, cell = cells.floor_cost(case), cells.get(case.cell)
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
