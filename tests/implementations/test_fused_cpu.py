"""fused_cpu: its vectors, its products, and what a recurrence must do for any size, layout, length, reset and thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.contract.weight_rounding import quantize
from pytest_ecornn.implementations._cpu import threads
from pytest_ecornn.implementations.fused_cpu import FusedCpu, recurrence
from pytest_ecornn.implementations.fused_cpu.layout import PANEL, SAVED, pack, pack_bias, round_up
from pytest_ecornn.implementations.fused_cpu.ops import recur
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence
from pytest_ecornn.verification.verification import Candidate, failure_message

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
MODULES: dict[str, Callable[[int, int], nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda inputs, hidden: nn.RNN(inputs, hidden, nonlinearity="relu"),
}
JUDGED = (
    "lstm-T9-B5-I7-H33-float32-batchfirst-ragged-state-training",
    "gru-T9-B7-I3-H31-float32-bidirectional-ragged-state-training-strided",
    "lstm-T1-B1-I1-H1-float32-state",
    "gru-T2-B3-I5-H9-L2-float32-bidirectional-state",
    "gru-T8-B1-I33-H8-L2-float32-batchfirst-ragged-state",
    "lstm-T12-B17-I6-H40-L2-float32-bidirectional-ragged-resets-state-training",
    "rnn_tanh-T11-B6-I5-H65-float64-bidirectional-batchfirst-ragged-state-training",
    "rnn_relu-T7-B4-I2-H7-L3-float32-nobias-state-training",
    "lstm-T10-B3-I4-H31-L2-bfloat16-bidirectional-batchfirst-ragged-state-training",
    "gru-T10-B3-H32-float16-bidirectional-state-projected-training-offset",
    "gru-T4-B2-I4-H16-bfloat16-resets-state",
    "lstm-T20-B2-I8-H32-float32-state-training-saturated",
    "gru-T20-B2-I8-H32-float32-state-training-large",
    "lstm-T20-B2-I8-H32-float32-state-training-denormal",
    "lstm-T12-B3-I4-H32-float32-state-infinite",
    "rnn_relu-T12-B3-I4-H32-float32-nan",
    "lstm-T12-B5-I9-H30-float32-state-density0.2-training",
)
Tensors = dict[str, Any]  # x, h0, c0, w_hh and b_hh


def recurrence_of(cell: str, hidden: int, dtype: torch.dtype = torch.float32, **options: Any) -> Recurrence:
    """A recurrence on one thread, time first and forward unless `options` say otherwise."""
    defaults = {"x_dtype": dtype, "batch_first": False, "reverse": False, "threads": 1}
    return Recurrence(cell=cell, hidden=hidden, dtype=dtype, **(defaults | options))


def tensors_of(cell: str, steps: int, batch: int, hidden: int) -> Tensors:
    width = GATES[cell] * hidden
    return {
        "x": torch.randn(steps, batch, width),
        "h0": torch.randn(batch, hidden),
        "c0": torch.randn(batch, hidden) if cell == "lstm" else None,
        "w_hh": torch.randn(width, hidden) / hidden**0.5,
        "b_hh": torch.randn(width),
    }


def gradients(call: Callable[..., tuple[Tensor, ...]], tensors: Tensors) -> list[Tensor]:
    """Results, then gradients of all tensors under random loss weights of seed 1."""
    leaves = {name: None if tensor is None else tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    results = [result for result in call(**leaves) if result.requires_grad]
    weights = [weight.to(result.dtype) for weight, result in zip(loss_weights(results), results, strict=True)]
    inputs = [leaf for leaf in leaves.values() if leaf is not None]
    return [*(result.detach() for result in results), *torch.autograd.grad(results, inputs, weights)]


def loss_weights(results: list[Tensor]) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(result.shape, generator=random) for result in results]


def run(layer: Recurrence, tensors: Tensors, lengths: Tensor | None = None, resets: Tensor | None = None) -> list[Tensor]:
    """`gradients` of a recurrence. Tensors are time first, whatever the layer's layout."""

    def call(x: Tensor, **others: Tensor | None) -> tuple[Tensor, ...]:
        rows = (x, resets) if not layer.batch_first else (x.transpose(0, 1), None if resets is None else resets.T)
        output, *finals = recur(layer, rows[0], **others, lengths=lengths, resets=rows[1])
        return output.transpose(0, 1) if layer.batch_first else output, *finals

    return gradients(call, tensors)


def by_torch(cell: str, tensors: Tensors) -> list[Tensor]:
    """torch.nn's in float64, whose W_ih is the identity."""
    hidden, width = tensors["w_hh"].shape[1], tensors["x"].shape[2]
    module = MODULES[cell](width, hidden).double()
    fixed = {"weight_ih_l0": torch.eye(width).double(), "bias_ih_l0": torch.zeros(width).double()}

    def call(x: Tensor, h0: Tensor, c0: Tensor | None, w_hh: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
        parameters = {"weight_hh_l0": w_hh, "bias_hh_l0": b_hh, **fixed}
        state = h0[None] if c0 is None else (h0[None], c0[None])
        output, final = torch.func.functional_call(module, parameters, (x, state))
        return output, *(state[0] for state in (final if isinstance(final, tuple) else (final,)))

    return gradients(call, {name: None if tensor is None else tensor.double() for name, tensor in tensors.items()})


def formula_of(name: str, dtype: Any) -> Callable[[Any], Any]:
    """A formula of `Lanes` as a function of an array."""
    from numba import cfunc, types
    from numba.extending import intrinsic

    from pytest_ecornn.implementations._cpu.compile import OPTIONS
    from pytest_ecornn.implementations._cpu.lanes import Lanes, for_elements

    element, formula = types.float32 if dtype is np.float32 else types.float64, getattr(Lanes, name)

    @intrinsic
    def apply(typingctx: Any, source: Any, target: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            for_elements(
                builder, element, args[2], lambda units: units.store(formula(units.load(args[0], element)), args[1], element)
            )
            return context.get_dummy_value()

        return types.none(source, target, types.int64), codegen

    pointer, options = types.CPointer(element), {key: value for key, value in OPTIONS.items() if key != "forceinline"}
    compiled = cfunc(types.void(pointer, pointer, types.int64), **options)(lambda source, target, n: apply(source, target, n))

    def call(x: Any) -> Any:
        result = np.full_like(x, np.nan)
        addresses = (ctypes.c_void_p(array.ctypes.data) for array in (x, result))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(compiled.address)(*addresses, len(x))
        return result

    return call


def sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


# The function itself, and by how many ulp Lanes' may miss it.
EXACT: dict[str, tuple[Callable[[Any], Any], float]] = {"exp": (np.exp, 1.0), "sigmoid": (sigmoid, 2.2), "tanh": (np.tanh, 3.0)}
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.mark.parametrize("name", EXACT)
@DTYPES
def test_lanes_are_right_to_some_ulp(name: str, dtype: Any) -> None:
    exact, limit_ulp = EXACT[name]
    small, limit = np.logspace(-44 if dtype is np.float32 else -320, 0, 4001), 110 if dtype is np.float32 else 750
    negative = -np.concatenate([np.linspace(0, limit, 20_003), np.linspace(0, 2, 20_003), small, [3e38, np.inf]])
    x = (negative if name == "exp" else np.concatenate([negative, -negative])).astype(dtype)
    formula = formula_of(name, dtype)
    with np.errstate(under="ignore"):
        expected = exact(x.astype(np.longdouble))
        error = np.abs(formula(x) - expected) / np.spacing(np.abs(expected).astype(dtype))
    assert error.max() < limit_ulp, f"{error.max()} ulp at {x[error.argmax()]}"
    singles = np.concatenate([formula(x[index : index + 1]) for index in range(0, len(x), 97)])
    np.testing.assert_array_equal(singles, formula(x)[::97])  # what no vector holds


@pytest.mark.parametrize(("name", "ends"), [("exp", [0, 1]), ("sigmoid", [0, 0.5, 0.5, 1]), ("tanh", [-1, -0.0, 0.0, 1])])
@DTYPES
def test_lanes_have_exact_ends_and_keep_nan(name: str, ends: list[float], dtype: Any) -> None:
    x = np.array([-np.inf, 0] if name == "exp" else [-np.inf, -0.0, 0.0, np.inf], dtype)
    payload = np.array([0x7FC00155], np.uint32).view(np.float32).astype(dtype)
    values = formula_of(name, dtype)(np.concatenate([x, [np.nan], payload, x]).astype(dtype))
    np.testing.assert_array_equal(values, [*ends, np.nan, np.nan, *ends])
    np.testing.assert_array_equal(np.signbit(values[: len(x)]), np.signbit(ends))


def product_of(dtype: Any, weight_dtype: Any) -> Callable[..., None]:
    """`multiply` as a function of addresses and sizes."""
    from numba import cfunc, types

    from pytest_ecornn.implementations.fused_cpu.panels import multiply

    elements = {torch.int8: types.int8, torch.float32: types.float32, torch.float64: types.float64}
    weights, pointer, size = types.CPointer(elements[weight_dtype]), types.CPointer(elements[dtype]), types.int64
    signature = types.void(weights, pointer, size, size, pointer, size, pointer, size, pointer, size, size)

    @cfunc(signature, error_model="numpy", fastmath={"contract"})
    def product(
        w: Any, scales: Any, n: int, k: int, x: Any, x_stride: int, b: Any, b_stride: int, out: Any, stride: int, rows: int
    ) -> None:
        multiply(w, scales, n, k, x, x_stride, b, b_stride, out, stride, rows)

    kinds = [*(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 2, *(ctypes.c_void_p, ctypes.c_int64) * 3, ctypes.c_int64]
    call: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds)(product.address)
    return lambda *arguments: (call(*arguments), product)[0]


@pytest.mark.parametrize(
    ("dtype", "weight_dtype"), [(torch.float32,) * 2, (torch.float64,) * 2, (torch.float32, torch.int8)], ids=str
)
def test_products_of_any_rows_equal_torchs(dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    multiply, eps = product_of(dtype, weight_dtype), torch.finfo(dtype).eps
    for outputs in (1, 31, 32, 33, 97):
        for inputs in (1, 2, 3, 8, 33):
            weight, bias = torch.randn(outputs, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)
            values, scales = (weight, None) if weight_dtype is dtype else quantize(weight)
            packed, packed_bias, depth = pack(values), pack_bias(bias, weight), round_up(inputs, 2)
            packed_scales = pack_bias(scales, weight)
            if scales is not None:
                weight = values.double() * scales[:, None].double()
            width = round_up(outputs, PANEL)
            for rows in (1, 2, 3, 4, 5, 7, 16):
                x = torch.full((rows + 1, depth + 3), torch.nan, dtype=dtype)
                x[:rows, :depth] = nn.functional.pad(torch.randn(rows, inputs, dtype=dtype), (0, depth - inputs))
                out = torch.full((rows + 1, width + 5), torch.nan, dtype=dtype)
                addresses = packed.data_ptr(), packed_scales.data_ptr(), outputs, depth, x.data_ptr(), depth + 3
                multiply(*addresses, packed_bias.data_ptr(), 0, out.data_ptr(), width + 5, rows)
                expected = x[:rows, :inputs].double() @ weight.double().T + bias.double()
                case = f"N {outputs}, K {inputs}, {rows} rows"
                error = (out[:rows, :outputs].double() - expected).abs().max()
                assert error < 4 * eps * (inputs + 1), f"{case}: {error}"
                assert out[rows:].isnan().all(), case
                assert out[:, width:].isnan().all(), case
                multiply(*addresses, out.data_ptr(), width + 5, out.data_ptr(), width + 5, rows)  # in place
                error = (out[:rows, :outputs].double() - (2 * expected - bias.double())).abs().max()
                assert error < 8 * eps * (inputs + 1), f"{case} in place: {error}"


def test_packed_matrix_has_each_weight_in_its_panel_and_zeros_elsewhere() -> None:
    weight = torch.arange(1.0, 34 * 3 + 1).view(34, 3)
    packed = pack(weight)
    assert packed.shape == (2, 4, PANEL)
    assert packed.is_contiguous()
    for output, k in ((0, 0), (0, 2), (31, 1), (32, 0), (33, 2)):
        assert packed[output // PANEL, k, output % PANEL] == weight[output, k]
    assert packed.count_nonzero() == weight.numel()
    assert torch.equal(pack(weight.T.contiguous().T), packed)


def test_packed_bias_is_whole_panels_and_zeros_where_there_is_none() -> None:
    weight, bias = torch.zeros(33, 5), torch.arange(1.0, 34)
    assert torch.equal(pack_bias(bias, weight), nn.functional.pad(bias, (0, 31)))
    assert torch.equal(pack_bias(None, weight), torch.zeros(64))
    assert pack_bias(None, weight.double()).dtype == torch.float64


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.test_all(keep=3)
def test_agrees_with_the_reference(name: str) -> None:
    case = Case.parse(name)
    assert failure_message("fused_cpu", case, Candidate.build("fused_cpu", FusedCpu, case).verify()) == ""


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("hidden", [1, 7, 8, 9, 31, 33])
def test_every_tail_of_units_equals_torchs(cell: str, hidden: int) -> None:
    tensors = tensors_of(cell, 4, 5, hidden)
    actual = [tensor.double() for tensor in run(recurrence_of(cell, hidden), tensors)]
    torch.testing.assert_close(actual, by_torch(cell, tensors), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("reverse", [False, True])
def test_split_run_equals_whole_run(cell: str, reverse: bool) -> None:
    tensors, layer = tensors_of(cell, 20, 3, 33), recurrence_of(cell, 33, reverse=reverse)
    output, h, c = recur(layer, **tensors, lengths=None, resets=None)
    x, h_part, c_part, outputs = tensors["x"], tensors["h0"], tensors["c0"], []
    for part in (x[13:], x[:13]) if reverse else (x[:13], x[13:]):
        state = {"x": part, "h0": h_part, "c0": c_part}
        part_output, h_part, c_part = recur(layer, **(tensors | state), lengths=None, resets=None)
        c_part = c_part if cell == "lstm" else None
        outputs.append(part_output)
    assert torch.equal(torch.cat(outputs[::-1] if reverse else outputs), output)
    assert torch.equal(h_part, h)
    assert c_part is None or torch.equal(c_part, c)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_layouts_strides_and_rows_of_a_task_do_not_change_a_bit(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, lengths, resets = tensors_of(cell, 9, 13, 9), torch.arange(13) % 10, torch.rand(9, 13) < 0.2
    layer, x = recurrence_of(cell, 9), tensors["x"]
    plain = run(layer, tensors, lengths, resets)
    wide = torch.full((10, 14, x.shape[2] + 5), torch.nan)
    wide[1:, 1:, 3:-2] = x
    strided_resets = torch.stack([resets, ~resets], 2)[..., 0]
    batch_first = recurrence_of(cell, 9, batch_first=True)
    for strided in (wide[1:, 1:, 3:-2], x.permute(2, 0, 1).contiguous().permute(1, 2, 0)):
        equal(run(layer, tensors | {"x": strided}, lengths, strided_resets), plain)
        d_weights = 2  # torch sums their rows in another order
        equal(run(batch_first, tensors | {"x": strided}, lengths, strided_resets)[:-d_weights], plain[:-d_weights])
    for rows in (4, 8):
        monkeypatch.setattr(recurrence, "_MAX_ROWS", rows)
        equal(run(layer, tensors, lengths, resets), plain)


def equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.xfail(strict=True, reason="the last odd sequence of a task is summed in two parts, and tasks depend on threads")
@pytest.mark.parametrize("batch", [2, 5])
def test_threads_do_not_change_a_bit(batch: int) -> None:
    tensors = tensors_of("gru", 6, batch, 33)
    plain = run(recurrence_of("gru", 33), tensors)
    for count in (2, 3):
        equal(run(recurrence_of("gru", 33, threads=count), tensors), plain)


@pytest.mark.parametrize("has_openmp", [True, False])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_tasks_on_threads_equal_tasks_in_turn(cell: str, has_openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, lengths, launches = tensors_of(cell, 9, 13, 33), torch.arange(13) % 10, list[int]()
    layer = recurrence_of(cell, 33, threads=4)
    plain, run_on_threads = run(layer, tensors, lengths), recurrence.run_on_threads

    def count_threads(kernel: int, integers: Any, count: int) -> None:
        launches.append(count)
        run_on_threads(kernel, integers, count)

    monkeypatch.setattr(recurrence, "run_on_threads", count_threads)
    monkeypatch.setattr(recurrence, "_FEW_OPERATIONS", 0)
    if not has_openmp:
        monkeypatch.setattr(threads, "openmp", lambda: None)
    for _ in range(20):
        equal(run(layer, tensors, lengths), plain)
    assert set(launches) == {4}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_is_neither_read_nor_left_unwritten(batch_first: bool, reverse: bool) -> None:
    tensors, lengths = tensors_of("lstm", 11, 4, 9), torch.tensor([5, 11, 1, 0])
    late, x = torch.arange(11)[:, None] >= lengths, tensors["x"]
    spoilt = torch.where(late[..., None], torch.nan, x)
    layer = recurrence_of("lstm", 9, batch_first=batch_first, reverse=reverse)
    clean, dirty = (run(layer, tensors | {"x": rows}, lengths) for rows in (x, spoilt))
    equal(dirty, clean)
    output, h, c, d_x, d_h0, d_c0, *_ = clean
    assert (output[late] == 0).all()
    assert (d_x[late] == 0).all()
    equal([h[3], c[3]], [tensors["h0"][3], tensors["c0"][3]])
    d_h, d_c = loss_weights([output.transpose(0, 1) if batch_first else output, h, c])[1:]
    equal([d_h0[3], d_c0[3]], [d_h[3], d_c[3]])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_each_sequence_runs_as_alone_cut_to_its_length(cell: str, reverse: bool) -> None:
    tensors, lengths = tensors_of(cell, 7, 4, 9), torch.tensor([7, 1, 4, 6])
    output, *finals = recur(recurrence_of(cell, 9, reverse=reverse), **tensors, lengths=lengths, resets=None)
    for b, length in enumerate(lengths.tolist()):
        own = {name: value[b : b + 1] for name in ("h0", "c0") if (value := tensors[name]) is not None}
        alone = tensors | own | {"x": tensors["x"][:length, b : b + 1]}
        own_output, *own_finals = recur(recurrence_of(cell, 9, reverse=reverse), **alone, lengths=None, resets=None)
        torch.testing.assert_close(output[:length, b], own_output[:, 0], rtol=1e-5, atol=1e-6)
        for final, own_final in zip(finals, own_finals, strict=True):
            torch.testing.assert_close(final[b : b + 1] if final.numel() else final, own_final, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_nothing_passes_a_reset_at_the_first_or_last_step(cell: str, reverse: bool) -> None:
    tensors, layer = tensors_of(cell, 6, 3, 9), recurrence_of(cell, 9, reverse=reverse)
    states = {name: value.clone() for name in ("h0", "c0") if (value := tensors[name]) is not None}
    first, last = (5, 0) if reverse else (0, 5)
    resets = torch.zeros(6, 3, dtype=torch.bool)
    resets[first, 0] = resets[last, 1] = True
    for state in states.values():
        state[0] = torch.inf
    results = run(layer, tensors | states, resets=resets)
    for result in results:
        assert result.isfinite().all()
    count = 1 + len(states)
    d_states = results[count + 1 : count + 1 + len(states)]
    zeros = {name: torch.cat([torch.zeros(1, 9), value[1:]]) for name, value in states.items()}
    resets[first, 0] = False
    output, *others = run(layer, tensors | zeros, resets=resets)
    equal(results[:count], [output, *others[: count - 1]])
    alone = {"x": tensors["x"][last : last + 1], **{name: torch.zeros(3, 9) for name in states}}
    only_last = recur(layer, **(tensors | alone), lengths=None, resets=None)[0]
    assert torch.equal(output[last, 1], only_last[0, 1])
    assert not torch.equal(output[last, 2], only_last[0, 2])
    for d_state in d_states:
        assert (d_state[0] == 0).all()
        assert (d_state[1:] != 0).all()


@pytest.mark.parametrize("cell", GATES)
def test_nan_stays_in_its_unit_and_sequence_until_the_next_step(cell: str) -> None:
    for gate in range(GATES[cell]):
        tensors, expected = tensors_of(cell, 4, 5, 33), torch.zeros(4, 5, 33, dtype=torch.bool)
        tensors["x"][2, 1, gate * 33 + 32] = torch.nan
        expected[2, 1, 32], expected[3, 1] = True, True
        output, *_ = recur(recurrence_of(cell, 33), **tensors, lengths=None, resets=None)
        assert torch.equal(output.isnan(), expected)


def test_gradient_of_relu_at_nan_is_torchs() -> None:
    tensors = tensors_of("rnn_relu", 3, 2, 33)
    tensors["x"][0, 1, 32] = torch.nan
    d_x = run(recurrence_of("rnn_relu", 33), tensors)[2]
    x = tensors["x"].clone().requires_grad_()
    h, outputs = tensors["h0"], list[Tensor]()
    for step in x:
        h = (step + nn.functional.linear(h, tensors["w_hh"], tensors["b_hh"])).relu()
        outputs.append(h)
    weights = loss_weights([torch.stack(outputs), h])
    expected = torch.autograd.grad([torch.stack(outputs), h], x, weights)[0]
    torch.testing.assert_close(d_x, expected, equal_nan=True)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_no_sequences_have_empty_results_and_zero_gradients(cell: str) -> None:
    output, *others = run(recurrence_of(cell, 8), tensors_of(cell, 4, 0, 8))
    assert output.shape == (4, 0, 8)
    assert all((result == 0).all() for result in others)
    assert [result.numel() for result in others[-2:]] == [GATES[cell] * 64, GATES[cell] * 8]


def test_gradients_may_be_missing_or_expanded() -> None:
    tensors, layer = tensors_of("gru", 6, 2, 16), recurrence_of("gru", 16)
    leaves = {name: None if tensor is None else tensor.requires_grad_() for name, tensor in tensors.items()}
    inputs = [leaf for leaf in leaves.values() if leaf is not None]

    def call() -> tuple[Tensor, Tensor, Tensor]:
        return recur(layer, **leaves, lengths=None, resets=None)

    equal(
        list(torch.autograd.grad(call()[0].sum(), inputs)), list(torch.autograd.grad(call()[0], inputs, torch.ones(6, 2, 16)))
    )
    output, h, _ = call()
    equal(list(torch.autograd.grad(output[-1].sum(), inputs, retain_graph=True)), list(torch.autograd.grad(h.sum(), inputs)))


def test_only_what_wants_a_gradient_has_one_and_nothing_is_saved_without() -> None:
    tensors, layer = tensors_of("lstm", 4, 2, 8), recurrence_of("lstm", 8)
    tensors["w_hh"].requires_grad_()
    recur(layer, **tensors, lengths=None, resets=None)[0].sum().backward()
    assert tensors["w_hh"].grad is not None
    assert {name for name, tensor in tensors.items() if tensor is not None and tensor.grad is not None} == {"w_hh"}
    with torch.no_grad():
        assert all(result.grad_fn is None for result in recur(layer, **tensors, lengths=None, resets=None))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("has_masks", [False, True])
def test_gradients_have_gradients(reverse: bool, has_masks: bool) -> None:
    tensors = {name: None if one is None else one.double() for name, one in tensors_of("lstm", 3, 2, 4).items()}
    masks = {"lengths": torch.tensor([3, 1]), "resets": torch.tensor([[False, True], [True, False], [False, False]])}
    masks = masks if has_masks else dict.fromkeys(masks)
    names = [name for name, one in tensors.items() if one is not None]
    recurrence = recurrence_of("lstm", 4, torch.float64, reverse=reverse)

    def run(*leaves: Tensor) -> tuple[Tensor, ...]:
        return recur(recurrence, **(tensors | dict(zip(names, leaves, strict=True))), **masks)

    assert torch.autograd.gradgradcheck(run, [tensors[name].requires_grad_() for name in names])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("has_lengths", [False, True])
def test_the_ops_are_as_torch_wants_them(cell: str, has_lengths: bool) -> None:
    tensors = tensors_of(cell, 4, 3, 9)
    lengths, resets = (torch.tensor([4, 0, 2]), torch.rand(4, 3) < 0.3) if has_lengths else (None, None)
    plain, options = (*tensors.values(), lengths, resets), (cell, torch.float32, False, False)
    leaves = tuple(None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors.values())
    forward, backward = torch.ops.pytest_ecornn.fused_cpu_forward.default, torch.ops.pytest_ecornn.fused_cpu_backward.default
    output, h, c, saved, old = forward(*plain, *options, True)
    assert saved.shape == (4, 3, SAVED[cell] * 9)
    incoming = torch.randn_like(output), torch.randn_like(h), torch.randn_like(c) if cell == "lstm" else None
    with _disable_current_modes():  # that which poisons memory is none of torch's
        for op, arguments in (
            (forward, (*plain, *options, True)),
            (forward, (*plain, *options, False)),
            (forward, (*leaves, lengths, resets, *options, False)),
            (backward, (tensors["w_hh"], saved, old, lengths, resets, *incoming, *options)),
            (backward, (tensors["w_hh"], saved, old, lengths, resets, None, incoming[1], None, *options)),
        ):
            outcome = torch.library.opcheck(op, arguments)
            assert set(outcome.values()) == {"SUCCESS"}, outcome


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by torch's compiler
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_compiled_call_is_the_same_to_the_bit(cell: str, backend: str) -> None:
    torch.compiler.reset()
    tensors, layer, lengths = tensors_of(cell, 5, 2, 8), recurrence_of(cell, 8), torch.tensor([5, 3])

    def call(x: Tensor, h0: Tensor, c0: Tensor | None, w_hh: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
        return recur(layer, x, h0, c0, w_hh, b_hh, lengths, None)

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    equal(gradients(compiled, tensors), gradients(call, tensors))
    with torch.no_grad():
        equal(list(compiled(**tensors)), list(call(**tensors)))


def test_notes_tell_threads() -> None:
    case = Case.parse("gru-T5-B2-I4-H8-float32")
    own = FusedCpu()
    own.build(case, contents.make_weights(case))
    assert own.notes() == f"numba {'omp' if threads.openmp() else 'pool'}, 1 thread"


def test_other_cells_devices_and_precisions_are_refused() -> None:
    case, own = Case.parse("lstm-T5-B2-I4-H8-float32"), FusedCpu()
    assert own.unsupported(case, torch.device("cpu")) is None
    assert "CPU" in str(own.unsupported(case, torch.device("cuda")))
    assert "TF32" in str(own.unsupported(replace(case, precision="tf32"), torch.device("cpu")))
    assert "scan_cpu" in str(own.unsupported(Case.parse("mingru-T5-B2-H8-float32-projected"), torch.device("cpu")))
