"""A PackedSequence by the kernels: padded and packed in one launch, and in short calls from the third on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from pytest_ecornn.nn import short_calls
from pytest_ecornn.nn.calls import run_packed
from tests.helpers import nn_kernels, nn_modules, persistent
from tests.helpers.nn_modules import MODULES, tensors
from tests.helpers.operators import Operators
from tests.helpers.requirements import needs_compiler

T, B, I, H = 7, 4, 3, 5  # noqa: E741
LENGTHS = [[3, 7, 1, 3], [7, 7, 7, 7], [1, 7, 2, 5]]
on_cpu, by_kernels = persistent.on_cpu, nn_kernels.by_kernels  # fixtures


def packed_of(lengths: list[int], dtype: torch.dtype = torch.float64) -> PackedSequence:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randn(length, I, generator=generator, dtype=dtype) for length in lengths]
    return pack_sequence(rows, enforce_sorted=False)


def squared(x: Tensor, hx: Any, lengths: Tensor) -> tuple[Tensor, Any]:
    """A layer whose padding is not 0."""
    return (x + 1) ** 2, hx


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_they_are_padded_and_packed_as_by_torch(lengths: list[int], batch_first: bool) -> None:
    packed, hx, passed = packed_of(lengths), torch.randn(1, len(lengths), H), list[Any]()
    output, final = run_packed(lambda *given: passed.extend(given) or squared(*given), packed, hx, batch_first)
    x, sorted_lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes), batch_first)
    assert torch.equal(passed[0], x)
    assert passed[0].is_contiguous()
    assert torch.equal(passed[2], sorted_lengths)
    assert torch.equal(output.data, (packed.data + 1) ** 2)
    assert torch.equal(final, hx)


@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients_are_differentiable(batch_first: bool) -> None:
    packed = packed_of(LENGTHS[0])

    def run(data: Tensor) -> Tensor:
        again = packed._replace(data=data)
        return run_packed(squared, again, None, batch_first)[0].data

    data = packed.data.requires_grad_()
    assert torch.autograd.gradcheck(run, (data,), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, (data,))


def test_as_many_operators_run_for_any_lengths() -> None:
    counts = []
    for lengths in ([20] * 20, [*range(1, 21)]):
        packed = packed_of(lengths)
        packed.data.requires_grad_()
        with Operators(sees_inside_ops=True) as operators:
            run_packed(squared, packed, None, False)[0].data.sum().backward()
        counts.append(operators.names)
    assert counts[0] == counts[1]


def test_another_default_device() -> None:
    packed = packed_of(LENGTHS[0])
    with torch.device("meta"):
        output, _ = run_packed(squared, packed, None, False)
    assert torch.equal(output.data, (packed.data + 1) ** 2)


@needs_compiler
@pytest.mark.parametrize("cell", MODULES)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}])
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.usefixtures("by_kernels")
def test_repeated_calls_are_short(
    cell: str, options: dict[str, Any], has_states: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, usual = list[list[int]](), short_calls._KernelCall.__call__

    def run(self: Any, module: Any, x: Tensor, hx: Any, lengths: Tensor) -> Any:
        taken.append(lengths.tolist())
        return usual(self, module, x, hx, lengths)

    monkeypatch.setattr(short_calls._KernelCall, "__call__", run)
    reference, module = nn_modules.both(cell, I, H, **options)
    for lengths in (*LENGTHS, LENGTHS[0]):
        expect_alike(reference, module, packed_of(lengths, torch.float32), has_states)
    assert taken == [[7, 5, 2, 1], [7, 3, 3, 1]]
    assert module._notes.endswith(short_calls.HOST_NOTE)
    monkeypatch.setenv("ECORNN_AUTO", "torch")
    module._chooser.forget()
    expect_alike(reference, module, packed_of(LENGTHS[0], torch.float32), has_states)
    assert len(taken) == 2


def expect_alike(reference: Any, module: Any, packed: PackedSequence, has_states: bool) -> None:
    """The same results, and the same gradients of parameters, inputs and states."""
    tracks, states = module.num_layers * (1 + module.bidirectional), list[Tensor]()
    if has_states:
        states = [torch.randn(tracks, B, H).requires_grad_() for _ in range(1 + (module.mode == "LSTM"))]
    hx = None if not states else states[0] if len(states) == 1 else tuple(states)
    data = packed.data.requires_grad_()
    runs = []
    for layer in (module, reference):
        output, final = layer(packed, hx)
        assert torch.equal(output.batch_sizes, packed.batch_sizes)
        results = output.data, *tensors((output.data, final))[1:]
        loss = sum((result * result.detach().cos()).sum() for result in results)
        runs.append((*results, *torch.autograd.grad(loss, [data, *states, *layer.parameters()])))
    torch.testing.assert_close(*runs, rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.usefixtures("by_kernels")
def test_torchs_errors() -> None:
    _, module = nn_modules.both("gru", I, H)
    for sizes, message in (
        ((I + 1,), "input.size.-1. must be equal to input_size"),
        ((), "3 dimensions, got 2"),
        ((2, I), "got 4"),
    ):
        with pytest.raises(RuntimeError, match=message):
            module(pack_sequence([torch.randn(2, *sizes)]))


def test_padded_ones_are_packed_for_torch() -> None:
    """Where no kernels run torch.nn takes the PackedSequence as it is."""
    reference, module = nn_modules.both("gru", I, H)
    x = torch.randn(T, B, I)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS[0]), enforce_sorted=False)
    assert torch.equal(module(packed)[0].data, reference(packed)[0].data)
