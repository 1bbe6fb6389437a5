"""`backend="fused_cpu"` of RNN, LSTM and GRU beside torch.nn: results, gradients, repeated calls, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils.rnn import pack_sequence

from pytest_ecornn import nn as own
from pytest_ecornn.verification.calls import PoisonedAllocations

CELLS = ("LSTM", "GRU", "RNN")


def pair(cell: str, *sizes: int, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, Any]:
    """The module by fused_cpu, and torch.nn's of the same weights."""
    torch.manual_seed(0)
    module = getattr(own, cell)(*sizes, backend="fused_cpu", dtype=dtype, **options)
    return module, copy.deepcopy(module.to_torch())


def flat(results: Any) -> list[Tensor]:
    output, final = results
    return [output, *(final if isinstance(final, tuple) else (final,))]


def with_gradients(module: Any, x: Tensor, hx: Any, **options: Any) -> list[Tensor]:
    leaves = [x.clone().requires_grad_(), *(state.clone().requires_grad_() for state in hx)]
    state = None if not hx else tuple(leaves[1:]) if len(hx) > 1 else leaves[1]
    results = flat(module(leaves[0], state, **options))
    generator = torch.Generator().manual_seed(1)
    incoming = [torch.randn(one.shape, dtype=one.dtype, generator=generator) for one in results]
    return [*(one.detach() for one in results), *torch.autograd.grad(results, [*leaves, *module.parameters()], incoming)]


def states_of(cell: str, tracks: int, batch: int, hidden: int) -> list[Tensor]:
    return [torch.randn(tracks, batch, hidden, dtype=torch.float64) for _ in range(1 + (cell == "LSTM"))]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}])
@pytest.mark.parametrize("shape", [(1, 1), (5, 2), (6, 5)])
def test_results_and_gradients_are_torchs(cell: str, options: dict[str, Any], shape: tuple[int, int]) -> None:
    module, reference = pair(cell, 3, 9, **options)
    tracks, batch = options.get("num_layers", 1) * (1 + options.get("bidirectional", False)), shape[1]
    x = torch.randn(*(shape[::-1] if options.get("batch_first") else shape), 3, dtype=torch.float64)
    for hx in ([], states_of(cell, tracks, batch, 9)):
        expected = with_gradients(reference, x, hx)
        for _ in range(3):  # the third call is a short one
            torch.testing.assert_close(with_gradients(module, x, hx), expected, rtol=0, atol=1e-12)
    assert module.notes() == "fused_cpu"


@pytest.mark.parametrize("cell", CELLS)
def test_repeated_calls_see_every_change_of_weights(cell: str) -> None:
    module, reference = pair(cell, 4, 8, num_layers=2, dtype=torch.float32)
    x = torch.randn(1, 1, 4)
    with torch.no_grad():
        for number in range(6):
            torch.testing.assert_close(flat(module(x)), flat(reference(x)), rtol=0, atol=1e-6)
            for weight, other in zip(module.parameters(), reference.parameters(), strict=True):
                values = torch.randn_like(weight)
                if number % 3 == 0:
                    weight.data.copy_(values)  # which no version counter sees
                elif number % 3 == 1:
                    weight.data = values
                else:
                    weight.copy_(values)
                other.copy_(values)


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_repeated_calls_heed_modes_and_other_inputs(cell: str) -> None:
    module, reference = pair(cell, 4, 8, dtype=torch.float32)
    x, h = torch.randn(1, 1, 4), torch.randn(1, 1, 8)
    hx = (h, h + 1) if cell == "LSTM" else h

    def expect_alike(**given: Any) -> None:
        torch.testing.assert_close(flat(module(**given)), flat(reference(**given)), rtol=0, atol=1e-6)

    def repeat() -> None:
        for _ in range(3):
            expect_alike(input=x, hx=hx)

    repeat()
    with pytest.raises(ValueError, match="autocast"), torch.autocast("cpu", torch.bfloat16):
        module(x, hx)
    with pytest.raises(ValueError, match="transforms"):
        torch.vmap(lambda one: module(one, hx)[0])(x[None])
    with pytest.raises(ValueError, match="forward-mode"), forward_ad.dual_level():
        module(x, hx)
    repeat()
    for given in (x[:, :0], x.repeat(3, 1, 1), x.expand(1, 2, 4)[:, :1], x.double().float()):
        for _ in range(2):
            expect_alike(input=given)
            repeat()
    for wrong in ((h, None), (h, h, h), h[0], h.double()):
        with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever torch.nn raises
            reference(x, wrong)
        with pytest.raises(expected.type):
            module(x, wrong)
    with torch.enable_grad():
        repeat()
        assert module(x, hx)[0].requires_grad
    module.requires_grad_(False)
    repeat()


@torch.no_grad()
def test_a_mode_sees_what_repeated_calls_allocate() -> None:
    module, _ = pair("LSTM", 4, 8, dtype=torch.float32)
    for mode in (nullcontext(), PoisonedAllocations(), nullcontext()):
        for _ in range(3):  # the third call is a short one
            with mode:
                output, _ = module(torch.randn(1, 1, 4))
            assert output.isfinite().all()
    short = [one.run for one in module._chooser.short._calls.values()]
    assert [type(one).__name__ for one in short] == ["ShortRun"]
    with PoisonedAllocations():
        for _ in range(3):
            module(torch.randn(1, 1, 4))
        (short_run,) = (one.run for one in module._chooser.short._calls.values())
        assert short_run._new_output().isnan().all()
    assert not module(torch.randn(1, 1, 4))[0].isnan().any()


@pytest.mark.parametrize("cell", CELLS)
def test_lengths_are_those_of_packed_sequences(cell: str) -> None:
    module, reference = pair(cell, 3, 7, bidirectional=True)
    rows = [torch.randn(length, 3, dtype=torch.float64) for length in (6, 4, 1)]
    x = torch.nn.utils.rnn.pad_sequence(rows, padding_value=float("nan"))
    for _ in range(3):
        given = x.clone().requires_grad_()
        output, final = module(given, lengths=[6, 4, 1])
        packed, expected = reference(pack_sequence(rows))
        padded, _ = torch.nn.utils.rnn.pad_packed_sequence(packed)
        torch.testing.assert_close(flat((output, final)), flat((padded, expected)), rtol=0, atol=1e-12)
        of_x, *of_weights = torch.autograd.grad(output.cos().sum(), [given, *module.parameters()])
        torch.testing.assert_close(of_weights, [*torch.autograd.grad(padded.cos().sum(), reference.parameters())])
        assert not of_x[x.isnan().any(-1)].any()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}])
def test_gradients_of_gradients_are_torchs(cell: str, options: dict[str, Any]) -> None:
    module, reference = pair(cell, 3, 4, **options)
    second = []
    for one in (module, reference):
        x = torch.linspace(-1, 1, 24, dtype=torch.float64).view(4, 2, 3).requires_grad_()
        first = torch.autograd.grad(one(x)[0].square().sum(), [x, *one.parameters()], create_graph=True)
        second.append(torch.autograd.grad(sum(each.square().sum() for each in first), [x, *one.parameters()]))
    torch.testing.assert_close(*second, rtol=1e-9, atol=1e-9)


def test_one_sequence_copies_and_pickles() -> None:
    module, reference = pair("GRU", 3, 5)
    x = torch.randn(4, 3, dtype=torch.float64)
    expected = flat(reference(x))
    for one in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(flat(one(x)), expected, rtol=0, atol=1e-12)


def test_dropout_is_between_layers_in_training_alone() -> None:
    module, reference = pair("LSTM", 3, 5, 2, dropout=0.5)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    assert not torch.equal(module(x)[0], module(x)[0])
    torch.testing.assert_close(flat(module.eval()(x)), flat(reference.eval()(x)), rtol=0, atol=1e-12)


def test_threads_may_call_one_module() -> None:
    module, _ = pair("LSTM", 8, 16, dtype=torch.float32)
    x = torch.randn(4, 200, 1, 1, 8)
    with torch.no_grad():
        expected = [[module(row)[0] for row in rows] for rows in x]
    outputs: dict[int, list[Tensor]] = {}

    @torch.no_grad()
    def work(number: int) -> None:
        outputs[number] = [module(row)[0] for row in x[number]]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close([outputs[number] for number in range(4)], expected, rtol=0, atol=0)


def test_what_it_does_not_run_raises() -> None:
    module, _ = pair("LSTM", 3, 5)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="expected proj_size 0, got 2"):
        own.LSTM(3, 5, proj_size=2, backend="fused_cpu")(x.float())
    with pytest.raises(ValueError, match="got a PackedSequence"):
        module(pack_sequence([x[:, 0]]))
    with pytest.raises(ValueError, match=r"expected one dtype, got torch\.float32, torch\.float64"):
        module(x.float())
    with pytest.raises(ValueError, match="no autocast on a CPU"), torch.autocast("cpu", torch.bfloat16):
        module(x)
    with pytest.raises(ValueError, match=r"no transforms of torch\.func"):
        torch.func.vmap(lambda row: module(row)[0])(x[None])
    with pytest.raises(ValueError, match="expected an input on a CPU, got meta"):
        own.LSTM(3, 5, backend="fused_cpu", device="meta")(torch.zeros(4, 2, 3, device="meta"))
    with pytest.raises(RuntimeError, match=r"input\.size"):
        module(torch.zeros(4, 2, 7, dtype=torch.float64))


def test_states_of_another_dtype_are_refused_in_every_call() -> None:
    module, x, state = own.GRU(4, 9, backend="fused_cpu"), torch.randn(1, 2, 4), torch.randn(1, 2, 9)
    for _ in range(3):
        module(x, state)
    with pytest.raises(RuntimeError, match=r"expected states of .*float32 on cpu, got .*float64 on cpu"):
        module(x, state.double())


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bidirectional": True, "batch_first": True}])
def test_for_a_seed_the_same_elements_are_dropped_as_by_torch(options: dict[str, Any]) -> None:
    module, reference = pair("GRU", 4, 9, 3, dropout=0.5, **options)
    outputs = []
    for each in (module, reference):
        torch.manual_seed(3)
        outputs.append(each(torch.linspace(-1, 1, 5 * 7 * 4, dtype=torch.float64).view(5, 7, 4))[0])
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 30])
def test_another_default_device_does_not_matter(steps: int) -> None:
    module, reference = pair("LSTM", 4, 9)
    x = torch.randn(steps, 2, 4, dtype=torch.float64)
    expected, _ = reference(x)
    with torch.no_grad(), torch.device("meta"):
        for _ in range(3):
            torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)
        assert module.stream(2).warm_up()(x[0])[0].device.type == "cpu"


def test_parameters_on_another_device_are_refused() -> None:
    x = torch.randn(3, 2, 4)
    with pytest.raises(ValueError, match="expected states and weights on a CPU, got meta"):
        own.GRU(4, 9, backend="fused_cpu", device="meta")(x)


def test_views_that_negate_are_read_as_what_they_are() -> None:
    module, reference = pair("GRU", 4, 9)
    x, h = (torch.randn(shape, dtype=torch.cdouble).conj().imag for shape in ((3, 2, 4), (1, 2, 9)))
    assert x.is_neg()
    with torch.no_grad():
        for rows in (x, x[:1], x[:1].resolve_neg(), x[:1]):
            for _ in range(3):
                torch.testing.assert_close(flat(module(rows, h)), flat(reference(rows, h)), rtol=0, atol=1e-12)
