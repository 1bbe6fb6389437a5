"""Property: one weight that changes by itself between calls is used, in place or as other memory, and all others as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from pytest_ecornn import contents
from pytest_ecornn.agreement import Agreement
from pytest_ecornn.contract import Weights
from pytest_ecornn.graph_calls import labelled, nearly, needs_training, rotated, variants
from pytest_ecornn.subject import Subject

_MOST = 4  # weights of a case that are changed, each seed's from another one on


def each_weight_seen(subject: Subject) -> str:
    """After each change, against a layer that is built on the weights as they are then. Values change places where they can.

    A sum over them stays as it was, and so does what is told by it.
    """
    needs_training(subject)
    weights = contents.make_weights(subject.case)
    layer = subject.built(subject.case, weights)
    changing = replace(subject.problem, weights=weights)
    subject.run(changing, layer)
    first, ways = subject.case.seed, list(_WAYS.items())
    for number, name in variants(subject, list(enumerate(rotated([*weights], first)[:_MOST]))):
        said, change = ways[(first + number) % len(ways)]
        change(weights[name], _exchanged(weights, name))
        fresh = replace(subject.problem, weights=_copied(weights))
        wanted = subject.run(fresh, subject.built(subject.case, fresh.weights))
        message = nearly(subject, wanted, subject.run(changing, layer), Agreement(fresh, subject.declared))
        if message:
            return labelled(message, f"after {name} alone was {said}")
    return ""


def _exchanged(weights: Weights, name: str) -> Tensor:
    """The weight's values in reverse order of rows; with other signs where that is the same, or would leave its pattern."""
    old = weights[name].detach()
    new = old.flip(0)
    return -old if name in weights.masks or bool((new == old).all()) else new


def _copied(weights: Weights) -> Weights:
    return Weights({name: nn.Parameter(one.detach().clone()) for name, one in weights.items()}, weights.masks)


def _in_place(weight: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(new)


def _unseen(weight: nn.Parameter, new: Tensor) -> None:
    """In place, which torch does not count as a change."""
    weight.data.copy_(new)


def _replaced(weight: nn.Parameter, new: Tensor) -> None:
    weight.data = new


_WAYS: dict[str, Callable[[nn.Parameter, Tensor], None]] = {
    "changed in place": _in_place,
    "replaced by other memory (weight.data = ...)": _replaced,
    "changed in place through weight.data": _unseen,
}
