"""LSTM and GRU on a CPU by JAX: lax.scan, compiled by XLA for each shape. Inference in float32, on XLA's own threads.

Tensors go there and back as NumPy's arrays: for small ones DLPack takes several times as long. Source: docs.jax.dev.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, SupportedCases, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations.peers._peer import import_quietly, missing_packages


class JaxCpu(Noted):
    carry, deterministic, costly_shapes = "float32", True, True
    supported = SupportedCases(
        ("lstm", "gru"), ("float32",), ("ieee",), ("inference",), devices=("cpu",), nobias=False, ragged=False, projected=False
    )

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return missing_packages(("jax",), "peers-cpu")

    def build(self, case: Case, weights: Weights) -> Layer:
        jax, scan, count = import_quietly("jax"), compiled_scan(case.cell), len(cells.get(case.cell).states)
        arrays = {name: weights.masked(name).detach().numpy() for name in weights}
        constants = jax.device_put(arrays, jax.local_devices(backend="cpu")[0])
        self._notes = f"jax {jax.__version__}, lax.scan"

        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
        ) -> tuple[Tensor, cells.GateTensors]:
            first = state or (x.new_zeros(case.batch, case.hidden_size),) * count
            inputs = x.detach().numpy(), tuple(tensor.detach().numpy() for tensor in first)
            results = scan(*inputs, *(constants[name + suffix] for name in PARAMETERS), reverse, case.batch_first)
            output, *final = (torch.from_numpy(np.array(result)) for result in results)
            return output, tuple(final)

        return lambda x, state, lengths: run_layers(case, x, state, run_layer)


@cache
def compiled_scan(cell: str) -> Any:
    """A layer in one direction: x [T, B, I] or [B, T, I], the initial states [B, H] -> the outputs alike, the final states."""
    jax = import_quietly("jax")
    sigmoid, tanh, split = jax.nn.sigmoid, jax.numpy.tanh, jax.numpy.split

    def lstm(state: Any, x: Any, h: Any) -> Any:
        i, f, g, o = split(x + h, 4, -1)
        c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def gru(state: Any, x: Any, h: Any) -> Any:
        (x_r, x_z, x_n), (h_r, h_z, h_n) = split(x, 3, -1), split(h, 3, -1)
        z, n = sigmoid(x_z + h_z), tanh(x_n + sigmoid(x_r + h_r) * h_n)
        return (n + z * (state[0] - n),)

    def scan(x: Any, first: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, reverse: bool, batch_first: bool) -> Any:
        def step(state: Any, gates: Any) -> Any:
            state = (lstm if cell == "lstm" else gru)(state, gates, state[0] @ w_hh.T + b_hh)
            return state, state[0]

        gates = (x.swapaxes(0, 1) if batch_first else x) @ w_ih.T + b_ih
        final, outputs = jax.lax.scan(step, first, gates, reverse=reverse)
        return outputs.swapaxes(0, 1) if batch_first else outputs, *final

    return jax.jit(scan, static_argnums=(6, 7))
