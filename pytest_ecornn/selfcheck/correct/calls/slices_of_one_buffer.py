"""All results lie in one fresh buffer, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.selfcheck.correct._right import Right


class SlicesOfOneBuffer(Right):
    takes_resets = True

    def build(self, case: Case, weights: Weights) -> Layer:
        cell, wide = cells.get(case.cell), torch.promote_types(getattr(torch, case.dtype), torch.float32)

        def layer(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
            given = {name: weights.masked(name).to(wide) for name in weights}
            states = tuple(one.to(wide) for one in cells.unpack_state(state))
            output, final = cells.reference(case, given, x.to(wide), states or None, lengths, resets)
            results = [output, *cells.unpack_state(final)]
            buffer = torch.cat([one.reshape(-1) for one in results]).to(x.dtype)
            parts = buffer.split([one.numel() for one in results])
            first, *rest = (part.view(one.shape) for part, one in zip(parts, results, strict=True))
            return first, tuple(rest) if len(cell.states) > 1 else rest[0]

        return layer
