"""Base of the right implementations: refusals, precision of the computation, layers above the one that each of them runs."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import DTYPES, Case, Implementation, Layer, Precision, State, Weights, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.contract.layer_stack import run_layers

ALL_CELLS = tuple(cell.name for cell in cells.BUILT_IN)
RECURRENT_CELLS = tuple(cell.name for cell in cells.BUILT_IN if cell.recurrent)
Parameters = dict[str, Tensor]
LayerResult = tuple[Tensor, GateTensors]  # output and final states


class Right(Implementation):
    """Runs `cells` in `dtypes`. refused: fields of a case, each with the value that is not run.

    refuses_infinities: of any contents.
    """

    carry: Precision = "float32"
    deterministic = True
    takes_resets = False
    cells: tuple[str, ...] = ALL_CELLS
    dtypes: tuple[str, ...] = DTYPES
    refused: Mapping[str, object] = {}
    refuses_infinities = False

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if device.type != "cpu" or case.precision != "ieee":
            return "runs on a CPU"
        if case.cell not in self.cells or case.dtype not in self.dtypes:
            return f"runs {', '.join(self.cells)} in {', '.join(self.dtypes)}"
        if self.refuses_infinities and "infinite" in case.contents:
            return "runs no infinities"
        values = [f"{name} {value}" for name, value in self.refused.items() if getattr(case, name) == value]
        return f"does not run {values[0]}" if values else None


class RightLayer(Right):
    """One layer in one direction is the subclass's."""

    def build(self, case: Case, weights: Weights) -> Layer:
        self.case, self.cell, self._call = case, cells.get(case.cell), threading.local()

        def layer(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
            self._call.resets = resets.T if resets is not None and case.batch_first else resets
            return run_layers(case, x, state, partial(self._layer, weights, lengths))

        return layer

    @property
    def resets(self) -> Tensor | None:
        """[T, B], of this thread's call."""
        resets: Tensor | None = self._call.resets
        return resets

    def compute(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the computation where x is of `dtype`."""
        return torch.promote_types(dtype, torch.float32)

    def _layer(
        self,
        weights: Weights,
        lengths: Tensor | None,
        suffix: str,
        x: Tensor,
        is_projected: bool,
        state: GateTensors,
        reverse: bool,
    ) -> LayerResult:
        storage, compute = x.dtype, self.compute(x.dtype)
        parameters = {name: weights.masked(name + suffix).to(compute) for name in cells.layer_parameters(weights, suffix)}
        steps = (x.transpose(0, 1) if self.case.batch_first else x).to(compute)
        first = tuple(s.to(compute) for s in state) or self.zeros(steps)
        output, final = self.run(steps, first, parameters, lengths, reverse)
        output = output.to(storage)
        return (output.transpose(0, 1) if self.case.batch_first else output), tuple(s.to(storage) for s in final)

    def zeros(self, x: Tensor) -> GateTensors:
        """The states that a layer starts from where none is given."""
        return tuple(x.new_zeros(x.shape[1], self.case.hidden_size) for _ in self.cell.states)

    @abstractmethod
    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        """Inputs [T, B, I], or pre-activations where there is no weight_ih -> outputs [T, B, H] and final states [B, H]."""

    def advance(self, x_gates: Tensor, state: GateTensors, parameters: Parameters) -> GateTensors:
        """One step of some sequences by the cell's equations."""
        h_gates: GateTensors = ()
        if self.cell.recurrent:
            h_gates = linear(state[0], parameters["weight_hh"], parameters.get("bias_hh")).chunk(len(self.cell.gates), -1)
        return self.cell.step(x_gates.chunk(len(self.cell.gates), -1), h_gates, state, parameters)


def x_gates(x: Tensor, parameters: Parameters) -> Tensor:
    """W_ih x + b_ih; x itself where it holds pre-activations."""
    return linear(x, parameters["weight_ih"], parameters.get("bias_ih")) if "weight_ih" in parameters else x


def order(count: int, reverse: bool) -> list[int]:
    """The steps as a direction takes them."""
    return list(range(count))[:: -1 if reverse else 1]


def alive(lengths: Tensor | None, t: int, batch: int) -> Tensor:
    """Mask of the sequences that have a step t: [B, 1]."""
    return (torch.full((batch,), True) if lengths is None else lengths > t)[:, None]


def kept(mask: Tensor, new: GateTensors, old: GateTensors) -> GateTensors:
    return tuple(torch.where(mask, one, other) for one, other in zip(new, old, strict=True))
