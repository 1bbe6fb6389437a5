"""`stream()` of RNN, LSTM, GRU, MinGRU and MinLSTM: one step a call on a CPU, beside torch.nn's own steps."""

from __future__ import annotations

import copy
import sys
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrizations

from pytest_ecornn import nn as own

KINDS: dict[str, dict[str, Any]] = {
    "LSTM": {}, "GRU": {}, "RNN": {}, "RNN relu": {"nonlinearity": "relu"},
}  # fmt: skip
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def module_of(kind: str, *sizes: int, **options: Any) -> Any:
    torch.manual_seed(0)
    return getattr(own, kind.partition(" ")[0])(*sizes, **KINDS[kind], **options)


def run_by_torch(module: Any, x: Tensor) -> tuple[Tensor, Any]:
    """The output [T, B, H] and final state of torch.nn's loop, in float64."""
    reference = module.to_torch().double()
    with torch.no_grad():
        output, state = reference(x.double())
    return output, state


def flat(state: Any) -> list[Any]:
    return list(state) if isinstance(state, tuple) else [state]


def steps_of(stream: Any, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    outputs = []
    for row in x:
        output, state = stream(row, state)
        outputs.append(output)
    return torch.stack(outputs), state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layers", "batch", "hidden", "bias"), [(1, 1, 8, True), (2, 3, 33, True), (3, 5, 7, False)])
def test_steps_are_those_of_torch(kind: str, layers: int, batch: int, hidden: int, bias: bool) -> None:
    module, x = module_of(kind, 5, hidden, layers, bias=bias), torch.randn(6, batch, 5)
    output, state = steps_of(module.stream(batch), x)
    expected, final = run_by_torch(module, x)
    torch.testing.assert_close([output, *flat(state)], [one.float() for one in (expected, *flat(final))], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_every_dtype_streams(dtype: torch.dtype) -> None:
    module, x = module_of("LSTM", 9, 16, dtype=dtype), torch.randn(4, 2, 9, dtype=dtype)
    output, state = steps_of(module.stream(2), x)
    expected, _ = run_by_torch(module, x)
    assert {one.dtype for one in (output, *state)} == {dtype}
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_arrays_of_numpy_give_arrays(kind: str) -> None:
    module, x = module_of(kind, 4, 6), torch.randn(3, 2, 4)
    stream, state = module.stream(2), None
    outputs = []
    for row in x.numpy():
        output, state = stream(row, state)
        outputs.append(output)
    expected, final = steps_of(module.stream(2), x)
    assert all(isinstance(one, np.ndarray) for one in (*outputs, *flat(state)))
    np.testing.assert_array_equal(np.stack(outputs), expected.numpy())
    for one, other in zip(flat(state), flat(final), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_state_may_be_written_in_place(kind: str) -> None:
    module, x = module_of(kind, 4, 6, 2), torch.randn(5, 1, 4)
    expected, final = steps_of(module.stream(), x)
    states = [torch.zeros(2, 1, 6) for _ in flat(final)]
    state: Any = tuple(states) if len(states) > 1 else states[0]
    stream, y = module.stream(), torch.empty(1, 6)
    for row, output in zip(x, expected, strict=True):
        assert stream(row, state, out=(y, state)) == (y, state)
        torch.testing.assert_close(y, output, rtol=0, atol=0)
    torch.testing.assert_close(states, flat(final), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["MinGRU", "MinLSTM"])
@pytest.mark.parametrize("positive", [False, True])
def test_scans_step_as_their_modules_run(kind: str, positive: bool) -> None:
    torch.manual_seed(0)
    module = getattr(own, kind)(5, 19, 2, positive=positive, backend="loop", dtype=torch.float64)
    x = 4 * torch.randn(6, 3, 5, dtype=torch.float64)
    x[2, 0], x[3, 1] = 300, -300  # gates that underflow
    with torch.no_grad():
        expected, final = module(x)
    output, state = steps_of(module.stream(3), x)
    torch.testing.assert_close([output, state], [expected, final], rtol=0, atol=1e-11)


def test_a_bound_step_reads_and_writes_the_same_memory() -> None:
    module, x = module_of("LSTM", 4, 6, 2), torch.randn(5, 2, 4)
    expected, final = steps_of(module.stream(2), x)
    row, y, state = torch.empty(2, 4), torch.empty(2, 6), (torch.zeros(2, 2, 6), torch.zeros(2, 2, 6))
    stream = module.stream(2)
    step = stream.bound(row, (y, state))
    del stream
    for given, output in zip(x, expected, strict=True):
        row.copy_(given)
        step()
        torch.testing.assert_close(y, output, rtol=0, atol=0)
    torch.testing.assert_close(list(state), list(final), rtol=0, atol=0)


@pytest.mark.parametrize("weight_dtype", [None, torch.int8])
def test_a_warm_step_allocates_nothing(weight_dtype: torch.dtype | None) -> None:
    module, x, y = module_of("LSTM", 16, 16, 2), torch.randn(1, 16), torch.empty(1, 16)
    state = torch.zeros(2, 1, 16), torch.zeros(2, 1, 16)
    stream = module.stream(1, weight_dtype).warm_up()
    step = stream.bound(x, (y, state))
    for run, most in ((step, 0), (lambda: stream(x, state, (y, state)), 1024)):
        for _ in range(3):
            run()
        blocks = sys.getallocatedblocks()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(200):
            run()
        after, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak - before <= most + 256, "numbers of Python alone"
        assert after - before <= 512
        assert sys.getallocatedblocks() - blocks < 100


def test_weights_are_those_of_the_last_update() -> None:
    module, x = module_of("GRU", 4, 6), torch.randn(1, 4)
    stream = module.stream()
    y, state = torch.empty(1, 6), torch.zeros(1, 1, 6)
    step = stream.bound(x, (y, state))
    before, _ = stream(x)
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(2)
    torch.testing.assert_close(stream(x)[0], before, rtol=0, atol=0)
    stream.update()
    expected, _ = run_by_torch(module, x[None])
    step()
    for output in (stream(x)[0], y):
        torch.testing.assert_close(output.double(), expected[0], rtol=0, atol=1e-6)


def test_rounded_weights_are_those_of_a_rounded_module() -> None:
    module, x = module_of("LSTM", 40, 40), torch.randn(8, 1, 40)
    output, _ = steps_of(module.stream(weight_dtype=torch.bfloat16), x)
    exact, _ = steps_of(module.stream(), x)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        weight = getattr(module, name)
        weight.data = weight.data.bfloat16().float()
    expected, _ = run_by_torch(module, x)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-6)
    assert (exact - output).abs().max() > 1e-4


STREAMED = {**KINDS, "MinGRU": {}, "MinLSTM": {}, "MinGRU positive": {"positive": True}, "MinLSTM positive": {"positive": True}}


def rounded_in_float64(module: Any) -> Any:
    """A copy in float64 whose weights are int8 times a scale for each row."""
    exact = copy.deepcopy(module).double()
    for name, weight in exact.named_parameters():
        if name.startswith("weight"):
            scales = getattr(module, name).detach().abs().amax(1, keepdim=True) / 127
            scales = torch.where(scales > 0, scales, 1)
            weight.data = (getattr(module, name).detach() / scales).round().double() * scales.double()
    return exact


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize(("layers", "batch", "hidden", "bias"), [(1, 1, 40, True), (2, 3, 33, True), (2, 7, 9, False)])
def test_int8_weights_have_a_scale_for_each_row(kind: str, layers: int, batch: int, hidden: int, bias: bool) -> None:
    torch.manual_seed(0)
    backend = {"backend": "loop"} if kind.startswith("Min") else {}
    module = getattr(own, kind.partition(" ")[0])(5, hidden, layers, bias=bias, **STREAMED[kind], **backend)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name.startswith("weight"):
                weight.mul_(4 * torch.rand(weight.shape[0], 1))
                weight[3] = 0
    x = torch.randn(6, batch, 5)
    output, state = steps_of(module.stream(batch, torch.int8), x)
    with torch.no_grad():
        expected, final = rounded_in_float64(module)(x.double())
    results = [one.double() for one in (output, *flat(state))]
    torch.testing.assert_close(results, [expected, *flat(final)], rtol=0, atol=1e-5)
    assert (steps_of(module.stream(batch), x)[0] - output).abs().max() > 1e-4


def test_int8_weights_and_scales_are_those_of_the_last_update() -> None:
    module, x = module_of("LSTM", 12, 20), torch.randn(1, 12)
    stream = module.stream(weight_dtype=torch.int8)
    y, state = torch.empty(1, 20), (torch.zeros(1, 1, 20), torch.zeros(1, 1, 20))
    step = stream.bound(x, (y, state))
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(torch.rand(weight.shape[0]).view(-1, *[1] * (weight.dim() - 1)) * 3)
    stream.update()
    step()
    expected, _ = module.stream(weight_dtype=torch.int8)(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


def test_weights_that_int8_does_not_have_are_refused() -> None:
    module = module_of("GRU", 4, 6)
    module.weight_hh_l0.data[1, 2] = torch.nan
    with pytest.raises(ValueError, match="expected finite weights to round to int8, got NaN or an infinity"):
        module.stream(weight_dtype=torch.int8)


def test_parametrized_weights_stream() -> None:
    module = own.LSTM(4, 6)
    parametrizations.weight_norm(module, "weight_hh_l0")
    x = torch.randn(3, 1, 4)
    output, _ = steps_of(module.stream(), x)
    with torch.no_grad():
        expected, _ = module(x)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)


def test_threads_with_streams_of_their_own_do_not_meet() -> None:
    module, x = module_of("GRU", 8, 24, 2), torch.randn(4, 300, 1, 8)
    expected = [steps_of(module.stream(), rows)[0] for rows in x]
    outputs: dict[int, Tensor] = {}
    threads = [
        threading.Thread(target=lambda k: outputs.update({k: steps_of(module.stream(), x[k])[0]}), args=(k,)) for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close([outputs[k] for k in range(4)], expected, rtol=0, atol=0)


def test_gradients_do_not_pass_and_dropout_is_off() -> None:
    module = module_of("LSTM", 4, 6, 2, dropout=0.9).train()
    output, (h, c) = module.stream()(torch.randn(1, 4, requires_grad=True))
    assert not any(one.requires_grad for one in (output, h, c))
    x = torch.randn(3, 1, 4)
    torch.testing.assert_close(steps_of(module.stream(), x)[0], steps_of(module.stream(), x)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("x", "state", "expected"),
    [
        (torch.zeros(2, 4), None, r"expected x as \(1, 4\) of torch.float32, contiguous on the CPU, got Tensor \(2, 4\)"),
        (torch.zeros(1, 4, dtype=torch.float64), None, r"got Tensor .* of torch\.float64"),
        (torch.zeros(1, 8)[:, ::2], None, "expected x as"),
        (np.zeros((1, 4)), None, r"got ndarray .* of float64"),
        ([0.0] * 4, None, "got list"),
        (torch.zeros(1, 4), (torch.zeros(1, 1, 6), torch.zeros(1, 6)), r"expected c as \(1, 1, 6\)"),
    ],
)
def test_what_does_not_fit_raises(x: Any, state: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        module_of("LSTM", 4, 6).stream()(x, state)


def test_modules_without_a_stream_say_so() -> None:
    with pytest.raises(ValueError, match="got bidirectional"):
        own.LSTM(4, 6, bidirectional=True).stream()
    with pytest.raises(ValueError, match="got bidirectional"):
        own.MinGRU(4, 6, bidirectional=True).stream()
    with pytest.raises(ValueError, match="got proj_size 3"):
        own.LSTM(4, 6, proj_size=3).stream()
    with pytest.raises(ValueError, match="expected batch as 1 or more, got 0"):
        own.GRU(4, 6).stream(0)
    with pytest.raises(ValueError, match=r"weights of torch\.int16"):
        own.GRU(4, 6).stream(weight_dtype=torch.int16)
    with pytest.raises(ValueError, match=r"expected weights that are computed in torch\.float64, got torch\.int8"):
        own.GRU(4, 6, dtype=torch.float64).stream(weight_dtype=torch.int8)
    with pytest.raises(ValueError, match="expected parameters on the CPU, got meta"):
        own.GRU(4, 6, device="meta").stream()
