"""A pool of two threads shares the batch, and rests between calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order, x_gates


class OwnThreads(RightLayer):
    deterministic = False  # two threads' gradients of the same weights are added in either order

    def build(self, case: Case, weights: Weights) -> Layer:
        self._pool = ThreadPoolExecutor(2)
        return super().build(case, weights)

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        middle, has_gradients = -(-x.shape[1] // 2), torch.is_grad_enabled()  # which is each thread's own

        def half(part: slice) -> tuple[Tensor, GateTensors]:
            with torch.set_grad_enabled(has_gradients):
                some = None if lengths is None else lengths[part]
                return self._half(x[:, part], tuple(one[part] for one in state), parameters, some, reverse)

        parts = [slice(0, middle), slice(middle, None)][: 1 if x.shape[1] == 1 else 2]
        halves = [done.result() for done in [self._pool.submit(partial(half, part)) for part in parts]]
        finals = zip(*(final for _, final in halves), strict=True)
        return torch.cat([output for output, _ in halves], 1), tuple(torch.cat(one) for one in finals)

    def _half(
        self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool
    ) -> tuple[Tensor, GateTensors]:
        gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(gates[t], state, parameters)
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state
