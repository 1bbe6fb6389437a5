"""All layers and directions of a case by fused_cpu: with gradients through `ops.py`, without them straight to the kernels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import Case, State, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.autograd_ops import can_skip_dispatch, wants_gradient
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim
from pytest_ecornn.implementations.fused_cpu.layout import Packed, pack, pack_bias
from pytest_ecornn.implementations.fused_cpu.ops import recur
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence, Rows, States

_FEW_ROWS = 8  # steps times sequences, up to which the kernel multiplies by W_ih too


class Stack:
    """Runs a case's layers. In inference weights are packed when it is built."""

    def __init__(self, case: Case, weights: Weights, threads: int):
        self._case, self._weights = case, weights
        self._dtype: torch.dtype = getattr(torch, case.dtype)
        self._compute = torch.promote_types(self._dtype, torch.float32)
        self._recurrences = {
            (x_dtype, reverse): Recurrence(
                case.cell, case.hidden_size, x_dtype, self._dtype, case.batch_first, reverse, threads
            )
            for x_dtype in {self._dtype, self._compute}
            for reverse in (False, True)[: case.directions]
        }
        self._has_c, self._takes_inputs = case.cell == "lstm", case.steps * case.batch <= _FEW_ROWS and not case.training
        self._packed: list[Packed] = []
        if not case.training:
            with torch.no_grad():
                self._packed = [self._pack(suffix) for _, _, suffix in cells.parameter_suffixes(case)]
        self._compile()

    def _compile(self) -> None:
        """Compiles the kernels of the first layer."""
        takes_x = self._case.projected or self._takes_inputs
        recurrence = self._recurrences[self._dtype if takes_x else self._compute, False]
        recurrence.forward_kernel  # noqa: B018
        if self._case.training:
            recurrence.backward_kernel  # noqa: B018

    def _pack(self, suffix: str) -> Packed:
        w_hh, w_ih, w_packed, b_packed = self._weight("weight_hh", suffix), self._weight("weight_ih", suffix), None, None
        assert w_hh is not None
        if w_ih is not None and self._takes_inputs:
            w_packed, b_packed = pack(w_ih), pack_bias(self._weight("bias_ih", suffix), w_ih)
        return Packed(pack(w_hh), pack_bias(self._weight("bias_hh", suffix), w_hh), w_packed, b_packed)

    def _weight(self, name: str, suffix: str) -> Tensor | None:
        """A parameter in the computing type, its pattern applied."""
        full = name + suffix
        if full not in self._weights:
            return None
        parameter = self._weights.masked(full)
        return parameter if parameter.dtype == self._compute else parameter.to(self._compute)

    def __call__(self, x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
        states = cells.unpack_state(state)
        given = x, *states, lengths, resets
        if self._packed and x.numel() and can_skip_dispatch(given) and not wants_gradient(given):
            return self._infer(x, states, lengths, resets)
        return run_layers(self._case, x, state, partial(self._run_layer, lengths, resets))

    def _infer(
        self, x: Tensor, states: cells.GateTensors, lengths: Tensor | None, resets: Tensor | None
    ) -> tuple[Tensor, State]:
        """The layers on packed weights, final states and both directions' outputs written where they belong."""
        case, directions, hidden = self._case, self._case.directions, self._case.hidden_size
        steps, batch = (x.shape[1], x.shape[0]) if case.batch_first else (x.shape[0], x.shape[1])
        finals = [torch.empty(case.layers * directions, batch, hidden, dtype=self._dtype) for _ in range(1 + self._has_c)]
        first = [state.contiguous() for state in states]
        starts = [tensor.data_ptr() for tensor in (*first, *finals)]
        lengths = None if lengths is None else lengths.contiguous()
        size, width = batch * hidden * x.element_size(), directions * hidden
        row_step, row_sequence = (width, steps * width) if case.batch_first else (batch * width, width)
        x = contiguous_last_dim(x)
        for layer in range(case.layers):
            output = torch.empty(*x.shape[:2], width, dtype=self._dtype)
            for direction in range(directions):
                track = layer * directions + direction
                gates, packed = self._gates_of(x, track, case.projected and layer == 0)
                addresses = [start + track * size for start in starts]
                out = Rows(output.data_ptr() + direction * hidden * output.element_size(), row_step, row_sequence)
                self._recurrences[gates.dtype, direction == 1].forward(
                    gates, packed, self._states(addresses, bool(first)), out, lengths, resets
                )
            x = output
        return x, tuple(finals) if self._has_c else finals[0]

    def _states(self, addresses: list[int], has_first: bool) -> States:
        """Addresses of initial states, if there are any, and of final ones."""
        if not self._has_c:
            return States(addresses[0], 0, addresses[1]) if has_first else States(hn=addresses[0])
        return States(*addresses) if has_first else States(0, 0, *addresses)

    def _gates_of(self, x: Tensor, track: int, is_projected: bool) -> tuple[Tensor, Packed]:
        """What a kernel reads of x, and the weights by which it multiplies."""
        packed, direction = self._packed[track], track % self._case.directions
        if is_projected:
            width = x.shape[2] // self._case.directions
            return x.narrow(2, direction * width, width), packed
        if packed.w_ih is not None:
            return x, packed
        suffix = f"_l{track // self._case.directions}" + "_reverse" * direction
        return self._gates(x, suffix), packed

    def _run_layer(
        self, lengths: Tensor | None, resets: Tensor | None, suffix: str, x: Tensor, is_projected: bool,
        state: cells.GateTensors, reverse: bool,
    ) -> tuple[Tensor, cells.GateTensors]:  # fmt: skip
        """One layer in one direction, differentiable."""
        h0, c0 = (*state, None, None)[:2]
        gates, w_hh = x if is_projected else self._gates(x, suffix), self._weight("weight_hh", suffix)
        assert w_hh is not None
        recurrence = self._recurrences[gates.dtype, reverse]
        output, h, c = recur(recurrence, gates, h0, c0, w_hh, self._weight("bias_hh", suffix), lengths, resets)
        return output, (h, c)[: 1 + self._has_c]

    def _gates(self, x: Tensor, suffix: str) -> Tensor:
        """The gates' pre-activations W_ih x + b_ih, in the computing type."""
        weight = self._weight("weight_ih", suffix)
        assert weight is not None
        return linear(x if x.dtype == self._compute else x.to(self._compute), weight, self._weight("bias_ih", suffix))
