"""Each call sets its own default dtype, thread count and random state, and puts back what it found."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order, x_gates


class SettingsPutBack(RightLayer):
    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        dtype, threads, random = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state()
        try:
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(1)
            torch.manual_seed(1)
            sequences = torch.randperm(x.shape[1])  # in an order of its own, the same in each call
            return self._permuted(x, state, parameters, lengths, reverse, sequences)
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            torch.set_rng_state(random)

    def _permuted(
        self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool, sequences: Tensor
    ) -> tuple[Tensor, GateTensors]:
        lengths = None if lengths is None else lengths[sequences]
        state, outputs = tuple(one[sequences] for one in state), dict[int, Tensor]()
        gates = x_gates(x.index_select(1, sequences), parameters)
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(gates[t], state, parameters)
            state, outputs[t] = kept(mask, new, state), new[0].masked_fill(~mask, 0.0)
        back = sequences.argsort()
        return torch.stack([outputs[t] for t in range(len(x))])[:, back], tuple(one[back] for one in state)
