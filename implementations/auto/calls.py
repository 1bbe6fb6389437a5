"""Calls of a candidate on copies of the weights and random inputs of the case's sizes, as they are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from pytest_ecornn.contract import Case, Implementation, State, Weights, cells

_SEED = 0


def copied(weights: Weights) -> Weights:
    """Copies of the weights, which no user's hook or optimizer sees."""
    parameters = {name: nn.Parameter(one.detach().clone(), one.requires_grad) for name, one in weights.items()}
    return Weights(parameters, weights.masks)


def make_call(
    cls: type[Implementation], case: Case, copies: Callable[[], Weights], device: torch.device, steps: int
) -> Callable[[], object]:
    """A call of an implementation on `steps` steps: forward, and in training the gradients of all leaves."""
    shorter = replace(case, steps=steps)
    weights = copies()
    layer = cls().build(shorter, weights)
    x, state, rest = _inputs(shorter, device)
    if not case.training:
        return lambda: _without_gradients(lambda: layer(x, state, *rest))
    leaves = [one for one in (x, *cells.unpack_state(state), *weights.values()) if one.requires_grad]
    incoming: list[Tensor] = []

    def train() -> object:
        with torch.enable_grad():
            output, _ = layer(x, state, *rest)
            if not incoming:
                incoming.append(torch.ones_like(output))
            return torch.autograd.grad(output, leaves, incoming, allow_unused=True)

    return train


def _without_gradients(call: Callable[[], object]) -> object:
    with torch.no_grad():
        return call()


def _inputs(case: Case, device: torch.device) -> tuple[Tensor, State, list[Tensor | None]]:
    """x, the initial states, and lengths and resets as a layer takes them, by a generator of their own."""
    generator = torch.Generator(device).manual_seed(_SEED)

    def values(*shape: int) -> Tensor:
        value = torch.empty(shape, dtype=getattr(torch, case.dtype), device=device).normal_(generator=generator)
        return value.requires_grad_(case.training)

    outer = (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)
    x, hx, cell = values(*outer, cells.x_width(case)), [], cells.get(case.cell)
    if case.has_state:
        hx = [values(case.layers * case.directions, case.batch, case.hidden_size) for _ in cell.states]
    lengths = torch.linspace(case.steps, 1, case.batch).ceil().long() if case.ragged else None
    resets = torch.zeros(outer, dtype=torch.bool, device=device) if case.resets else None
    state = None if not hx else tuple(hx) if len(hx) > 1 else hx[0]
    return x, state, [lengths] if resets is None else [lengths, resets]
