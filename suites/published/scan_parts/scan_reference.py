"""minGRU's and minLSTM's states in float64, differentiable, in two levels of time: the reference for 65,536 steps on a GPU.

The loop of `cells.reference` takes a launch or more for every step and operation. Here the steps of all chunks are taken at
once and the chunks one after the other after that, T^(1/2) of each, in linear space. Its own error is some units in float64's
last place, which is nothing beside those that it is there to show.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from pytest_ecornn.contract import cells


def states(x: Tensor, cell: str) -> Tensor:
    """float64 [B, T, H] from pre-activations [B, T, G*H] and an initial state of zeros."""
    keep, new = _gates(x.double(), cell)
    batch, steps, hidden = keep.shape
    length = isqrt(steps - 1) + 1
    late = -steps % length
    keep, new = (pad(one, (0, 0, 0, late)).view(batch, -1, length, hidden) for one in (keep, new))
    state, product = torch.zeros_like(new[:, :, 0]), torch.ones_like(new[:, :, 0])
    within, products = [], []
    for keep_t, new_t in zip(keep.unbind(2), new.unbind(2), strict=True):  # [B, chunks, H]
        state, product = keep_t * state + new_t, keep_t * product
        within.append(state)
        products.append(product)
    starts = [torch.zeros_like(state[:, 0])]
    for end, whole in zip(state.unbind(1), product.unbind(1), strict=True):  # [B, H]
        starts.append(whole * starts[-1] + end)
    found = torch.stack(within, 2) + torch.stack(products, 2) * torch.stack(starts[:-1], 1)[:, :, None]
    return found.view(batch, -1, hidden)[:, :steps]


def _gates(x: Tensor, cell: str) -> tuple[Tensor, Tensor]:
    """Returns keep and new of h_t = keep h_(t-1) + new, for each step. Source: arXiv 2410.01201."""
    *given, candidate = x.chunk(len(cells.get(cell).gates), -1)
    opens = given[0] if len(given) == 1 else logsigmoid(given[1]) - logsigmoid(given[0])
    candidate = cells.positive(candidate) if cell.endswith("_positive") else candidate
    return torch.sigmoid(-opens), torch.sigmoid(opens) * candidate


def sampled(x: Tensor, channels: Tensor, hidden: int) -> Tensor:
    """Selects the same channels of every block of [B, T, blocks*H], as for a scan of fewer channels: they are independent."""
    blocks = range(0, x.shape[-1], hidden)
    return x[..., torch.cat([channels + start for start in blocks])]
