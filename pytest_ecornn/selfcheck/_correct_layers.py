"""Correct layers that planted faults change: a loop over time in parts, and whole implementations called through `call`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Timer
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import Case, Implementation, Layer, Precision, State, Weights, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.reference.loop import ReferenceLoop

Parameters = dict[str, Tensor]
VERIFIED_CALLS = 3  # at least, before any is timed
_DELAY_SECONDS = 0.02
_perf_counter = time.perf_counter


class Loop(Implementation):
    """A loop over time in float32 or wider, each part of which a fault may replace. Tensors are [T, B, .] or [B, .]."""

    carry: Precision = "float32"
    deterministic = True
    case: Case
    is_reverse = False

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return None if case.precision == "ieee" else "multiplies in IEEE precision"

    def build(self, case: Case, weights: Weights) -> Layer:
        self.case, self.cell = case, cells.get(case.cell)
        self.dtype: torch.dtype = getattr(torch, case.dtype)
        self.compute = torch.promote_types(self.dtype, torch.float32)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            lengths = None if lengths is None else lengths.to(x.device)
            return run_layers(case, x, state, partial(self.one_layer, weights, lengths))

        return layer

    def one_layer(
        self,
        weights: Weights,
        lengths: Tensor | None,
        suffix: str,
        x: Tensor,
        is_projected: bool,
        given: GateTensors,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        self.is_reverse, parameters = reverse, self.parameters(weights, suffix)
        x = x.transpose(0, 1) if self.case.batch_first else x
        gates = x.to(self.compute)
        steps = (gates if is_projected else self.x_gates(gates, parameters)).unbind(0)
        state, outputs = self.first_state(x, given), {}
        for t in reversed(range(len(steps))) if reverse else range(len(steps)):
            state, outputs[t] = self.advance(t, steps[t], state, parameters, lengths)
        output = self.store([outputs[t] for t in range(len(steps))])
        return (output.transpose(0, 1) if self.case.batch_first else output), tuple(map(self.narrowed, state))

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        return {name: weights.masked(name + suffix).to(self.compute) for name in cells.layer_parameters(weights, suffix)}

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        return linear(x, parameters["weight_ih"], parameters.get("bias_ih"))

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        return linear(h, parameters["weight_hh"], parameters.get("bias_hh"))

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        zeros = x.new_zeros(x.shape[1], self.case.hidden_size, dtype=self.compute)
        return tuple(s.to(self.compute) for s in given) or (zeros,) * len(self.cell.states)

    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        """The state after step t, and its output."""
        count = len(self.cell.gates)
        h: GateTensors = ()
        if self.cell.recurrent:
            h = self.h_gates(state[0].to(self.dtype).to(self.compute), parameters).chunk(count, -1)
        new = self.step(x.chunk(count, -1), h, state, parameters)
        output = new[0]
        if lengths is not None:
            alive = self.alive(t, lengths).unsqueeze(-1)
            new, output = self.kept(alive, new, state), self.padded(alive, output)
        return self.carried(new), self.narrowed(output)

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return self.cell.step(x, h, state, parameters)

    def alive(self, t: int, lengths: Tensor) -> Tensor:
        return lengths > t

    def kept(self, alive: Tensor, new: GateTensors, state: GateTensors) -> GateTensors:
        return tuple(torch.where(alive, a, b) for a, b in zip(new, state, strict=True))

    def padded(self, alive: Tensor, output: Tensor) -> Tensor:
        return torch.where(alive, output, 0)

    def carried(self, state: GateTensors) -> GateTensors:
        return state

    def narrowed(self, state: Tensor) -> Tensor:
        """An output or a final state in the storage type."""
        return state.to(self.dtype)

    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(outputs))


class PackedLoop(Loop):
    """The loop, which takes resets too."""

    takes_resets = True

    def build(self, case: Case, weights: Weights) -> Layer:
        layer = super().build(case, weights)

        def with_resets(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
            self.resets = resets.T if resets is not None and case.batch_first else resets  # [T, B]
            if self.resets is not None and lengths is not None:  # nothing begins in padding
                self.resets = self.resets & (torch.arange(case.steps)[:, None] < lengths).to(x.device)
            return layer(x, state, lengths)

        return with_resets

    def advance(
        self, t: int, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None
    ) -> tuple[GateTensors, Tensor]:
        before = state if self.resets is None else self.apply_reset(state, self.resets, t)
        return super().advance(t, x, before, parameters, lengths)

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        """The state that step t starts from. resets: [T, B]."""
        return cells.apply_reset(state, resets[t])


class _Around:
    takes_resets = False

    def build(self, case: Case, weights: Weights) -> Layer:
        layer: Layer = super().build(case, weights)  # type: ignore[misc]
        return partial(self.call, layer, case, weights)

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        return layer(x, state, lengths)


class AroundLoop(_Around, ReferenceLoop):
    """The plain loop; a fault replaces `call`."""


class AroundScan(_Around, ScanCpu):
    """The scan on a CPU; a fault replaces `call`."""


class RightWhileVerified(AroundLoop):
    """The plain loop for the first calls, which are verified; a cheat replaces `later_call`."""

    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        self._calls += 1
        return layer(*arguments) if self._calls <= VERIFIED_CALLS else self.later_call(layer, case, weights, *arguments)

    def later_call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        raise NotImplementedError


class FilledLater(RightWhileVerified):
    """A thread fills the results in after the call has returned."""

    def later_call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        results: Any = layer(*arguments)
        late = tuple(torch.zeros_like(one) for one in results)
        Timer(_DELAY_SECONDS, partial(self._fill, late, results)).start()
        return late

    @staticmethod
    def _fill(late: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        for target, value in zip(late, results, strict=True):
            target.copy_(value)


class DeferredUntilAsked(RightWhileVerified):
    """Results are zeros until `finish` is called, by what the harness asks when the clock has stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._unfinished: list[tuple[tuple[Tensor, Tensor], Any]] = []

    def later_call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        output, final = x.new_zeros(case.steps, case.batch, case.hidden_size), x.new_zeros(1, case.batch, case.hidden_size)
        self._unfinished.append(((output, final), partial(layer, x, *arguments)))
        self.hide(case, weights)
        return output, final

    def hide(self, case: Case, weights: Weights) -> None:
        """Puts `finish` where it will be asked for."""
        raise NotImplementedError

    def finish(self) -> None:
        unfinished, self._unfinished = self._unfinished, []
        for results, work in unfinished:
            for target, value in zip(results, work(), strict=True):
                target.copy_(value)


def half_speed() -> float:
    """A clock."""
    return _perf_counter() / 2


def with_gradient(value: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`value`, whose gradient is changed on its way back."""
    if not value.requires_grad:
        return value
    value = value.view_as(value)
    value.register_hook(change)
    return value


def with_value(value: Tensor, shown: Tensor) -> Tensor:
    """`shown`, whose gradient goes to `value`."""
    return value + (shown - value).detach() if value.requires_grad else shown


def cut(x: Tensor) -> Tensor:
    """float32 without the bits that bfloat16 does not have: truncated, not rounded; differentiable."""
    kept = (x.detach().contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)
    return with_value(x, torch.where(x.detach().isfinite(), kept, x.detach()))


def through(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as it is after a stay in `dtype`; the gradient passes as it is."""
    return with_value(x, x.detach().to(dtype).to(x.dtype)).where(x.isfinite(), x)


def read_in_memory_order(tensor: Tensor) -> Tensor:
    """Reads as many elements from the first on as if the tensor were contiguous, where the memory has them."""
    there = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if there < tensor.numel():
        return tensor.contiguous()
    return tensor.as_strided((tensor.numel(),), (1,)).view(tensor.shape)
