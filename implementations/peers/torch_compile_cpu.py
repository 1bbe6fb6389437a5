"""LSTM, GRU and RNN on a CPU by torch.compile: torch's scan over the cell's equations, compiled for each shape. Inference.

torch.compile calls torch.nn's modules as they are. To compile a shape takes some ten seconds, so this runs where it is named.
A loop of many steps would be compiled for minutes.
Source: torch's higher-order operator scan.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import Case, Cost, Layer, SupportedCases, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS, PARAMETERS
from pytest_ecornn.implementations.peers._peer import compiled_copy

_MOST_UNROLLED = 4  # steps up to which a plain loop is compiled: a single one takes two thirds of the scan's time


class TorchCompileCpu(Noted):
    carry, deterministic, costly_shapes, runs_unnamed = "float32", True, True, False
    supported = SupportedCases(
        NN_CELLS, ("float32",), ("ieee",), ("inference",), devices=("cpu",), ragged=False, projected=False
    )

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        compiler = os.environ.get("CXX", "g++")
        return None if shutil.which(compiler) else f"needs {compiler}, by which torch.compile compiles"

    def build(self, case: Case, weights: Weights) -> Layer:
        parameters = {name: weights.masked(name).detach() for name in weights}
        states = len(cells.get(case.cell).states)
        self._notes = f"torch {torch.__version__}, compiled scan"

        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
        ) -> tuple[Tensor, cells.GateTensors]:
            zeros = [x.new_zeros(case.batch, case.hidden_size) for _ in range(states)]
            first = tuple(one.contiguous() for one in state or zeros)
            own = [parameters.get(name + suffix) for name in PARAMETERS]
            how = case.cell, case.batch_first, reverse
            scan = _compiled_scan(x.shape, case.hidden_size, case.bias, torch.get_num_threads(), *how)
            output, *final = scan(x.contiguous(), first, *own, *how)
            return output, tuple(final)

        return lambda x, state, lengths: run_layers(case, x, state, run_layer)

    def cost(self, case: Case) -> Cost:
        return torch_nn.cost(case)


@cache
def _compiled_scan(*shape: Any) -> Any:
    """`_scan` of a shape and a number of threads, both of which are compiled in."""
    return compiled_copy(_scan)


def _scan(
    x: Tensor, first: cells.GateTensors, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, cell: str,
    batch_first: bool, reverse: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A layer in one direction: x [T, B, I] or [B, T, I], the initial states [B, H] -> the outputs alike, the final states."""
    from torch._higher_order_ops.scan import scan

    kind = cells.get(cell)

    def step(state: Any, gates: Tensor) -> tuple[Any, Tensor]:
        h_gates = linear(state[0], w_hh, b_hh).chunk(len(kind.gates), -1)
        new = kind.step(gates.chunk(len(kind.gates), -1), h_gates, state, {})
        return new, new[0].clone()  # scan's results share no memory

    gates = linear(x.transpose(0, 1) if batch_first else x, w_ih, b_ih)
    if len(gates) > _MOST_UNROLLED:
        final, outputs = scan(step, first, gates, reverse=reverse)
    else:
        final, listed = first, []
        for one in gates.unbind(0)[:: -1 if reverse else 1]:
            final, output = step(final, one)
            listed.append(output)
        outputs = torch.stack(listed[::-1] if reverse else listed)
    return outputs.transpose(0, 1) if batch_first else outputs, *final
