"""Inference in NumPy: torch's memory is read, and the result is NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order

Array = Any  # numpy.ndarray of the case's dtype


class NumpyRoundTrip(RightLayer):
    cells = ("rnn_tanh", "rnn_relu", "gru")
    dtypes = ("float32", "float64")
    refused = {"mode": "training"}

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        by_name = {name: value.detach().numpy() for name, value in parameters.items()}
        gates, h = x.detach().numpy(), state[0].detach().numpy().copy()
        if "weight_ih" in by_name:
            with np.errstate(all="ignore"):
                gates = gates @ by_name["weight_ih"].T + by_name.get("bias_ih", 0)
        output = np.zeros((*gates.shape[:2], self.case.hidden_size), h.dtype)
        ends = np.full(x.shape[1], len(x)) if lengths is None else lengths.numpy()
        for t in order(len(x), reverse):
            rows = np.flatnonzero(ends > t)
            with np.errstate(all="ignore"):  # as torch, which does not warn of infinities
                h[rows] = output[t, rows] = self._stepped(gates[t, rows], h[rows], by_name)
        return torch.from_numpy(output), (torch.from_numpy(h),)

    def _stepped(self, x: Array, h: Array, named: dict[str, Array]) -> Array:
        product = h @ named["weight_hh"].T + named.get("bias_hh", 0)
        if self.case.cell == "rnn_tanh":
            return np.tanh(x + product)
        if self.case.cell == "rnn_relu":
            return np.maximum(x + product, 0)
        (x_r, x_z, x_n), (h_r, h_z, h_n) = np.split(x, 3, 1), np.split(product, 3, 1)
        r, z = (1 / (1 + np.exp(-one)) for one in (x_r + h_r, x_z + h_z))
        n = np.tanh(x_n + r * h_n)
        return n + z * (h - n)
