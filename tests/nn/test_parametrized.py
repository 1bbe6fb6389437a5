"""Parametrized weights are computed as often as torch.nn computes them, and vary as they do there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence

from tests.helpers import nn_kernels, persistent
from tests.helpers.nn_modules import MODULES, both
from tests.helpers.requirements import needs_compiler

X = torch.linspace(-1, 1, 60).view(5, 3, 4)
LENGTHS = torch.tensor([5, 3, 1])
on_cpu, by_kernels = persistent.on_cpu, nn_kernels.by_kernels  # fixtures
of_each = pytest.mark.parametrize("cell", MODULES)


class Count(nn.Module):
    calls = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return 2 * weight


def counts(module: nn.Module, call: Callable[[nn.Module], object], names: tuple[str, ...]) -> list[list[int]]:
    """How often each weight is computed in each of three calls."""
    counters = [Count() for _ in names]
    for name, counter in zip(names, counters, strict=True):
        parametrize.register_parametrization(module, name, counter)
    found = []
    for _ in range(3):
        before = [counter.calls for counter in counters]
        call(module)
        found.append([counter.calls - start for counter, start in zip(counters, before, strict=True)])
    return found


@of_each
@pytest.mark.parametrize("names", [("weight_hh_l0",), ("weight_ih_l0", "weight_hh_l1", "bias_ih_l0")])
def test_each_is_computed_as_often_as_by_torch(cell: str, names: tuple[str, ...]) -> None:
    expected, found = (counts(module, lambda module: module(X), names) for module in both(cell, 4, 6, 2))
    assert found == expected


@of_each
def test_with_lengths_as_often_as_by_torch_of_packed_sequences(cell: str) -> None:
    reference, module = both(cell, 4, 6)
    packed = pack_padded_sequence(X, LENGTHS)
    expected = counts(reference, lambda module: module(packed), ("weight_hh_l0",))
    assert counts(module, lambda module: module(X, lengths=LENGTHS), ("weight_hh_l0",)) == expected
    reference, module = both(cell, 4, 6)
    assert counts(module, lambda module: module(packed), ("weight_hh_l0",)) == expected


@of_each
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by torch's compiler
def test_in_graphs_as_often_as_by_torch(cell: str) -> None:
    reference, module = both(cell, 4, 6)
    torch.compiler.reset()
    compiled = torch.compile(lambda module: module(X)[0], backend="eager")
    expected = counts(reference, lambda module: module(X), ("weight_hh_l0",))
    assert counts(module, compiled, ("weight_hh_l0",)) == expected


@needs_compiler
@pytest.mark.usefixtures("by_kernels")
def test_by_the_kernels_as_often_as_by_torch() -> None:
    reference, module = both("gru", 4, 8)
    for call in (lambda module: module(X), lambda module: module(X, lengths=LENGTHS)):
        expected = counts(reference, lambda module: module(X), ("weight_hh_l0",))
        assert counts(module, call, ("weight_hh_l0",)) == expected
        assert module.notes().startswith("persistent_gpu")
        parametrize.remove_parametrizations(reference, "weight_hh_l0")
        parametrize.remove_parametrizations(module, "weight_hh_l0")


@of_each
@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_six_steps_of_training_are_torchs(cell: str, norm: Callable[..., Any]) -> None:
    losses = []
    for module in both(cell, 4, 6):
        torch.manual_seed(1)
        norm(module, "weight_hh_l0")
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        losses.append(list[float]())
        for _ in range(6):
            loss = module(X)[0].square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
