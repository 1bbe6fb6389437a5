"""`check` on kernels that are no recurrent layers: right ones pass, and each planted fault fails for the stated reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import strategies as st
from torch import Tensor

from pytest_ecornn import WrongKernel, check
from tests.helpers.foreign_kernels import FAULTS, KERNELS, random, softmax, softmax_reference


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes(name: str) -> None:
    kernel = KERNELS[name]
    row = check(kernel.candidate, kernel.reference, kernel.make_inputs, draws=6, skip=kernel.skip).row
    assert row.status == "passed"
    assert {one.tensor for one in row.tensors} == {one for one in row.informative if one.startswith(("output", "grad"))}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_for_its_reason(fault: str) -> None:
    name, wrong, message = FAULTS[fault]
    kernel = KERNELS[name]
    with pytest.raises(WrongKernel) as failure:
        check(wrong, kernel.reference, kernel.make_inputs, draws=4, skip=kernel.skip)
    assert message in str(failure.value)
    assert failure.value.report.row.status == "failed"


def test_a_strategy_draws_shapes() -> None:
    shapes = set[tuple[int, ...]]()

    def recorded(x: Tensor) -> Tensor:
        shapes.add(tuple(x.shape))
        return softmax(x)

    strategy = st.builds(lambda rows, width, seed: (random(seed, rows, width),), *[st.integers(1, 40)] * 2, st.integers(0, 99))
    assert check(recorded, softmax_reference, strategy, draws=12).row.examples == 12
    assert len(shapes) > 4


def test_a_property_is_left_out_with_its_reason() -> None:
    def seeds(x: Tensor) -> Tensor:
        torch.manual_seed(99)
        return softmax(x)

    kernel = KERNELS["softmax float32"]
    with pytest.raises(WrongKernel, match=r"globals_unchanged is broken.*skip={'globals_unchanged': reason} leaves it out"):
        check(seeds, kernel.reference, kernel.make_inputs, draws=2)
    row = check(seeds, kernel.reference, kernel.make_inputs, draws=2, skip={"globals_unchanged": "seeds on purpose"}).row
    assert row.notes == "globals_unchanged left out: seeds on purpose"


@pytest.mark.parametrize(
    ("reference", "options", "error", "message"),
    [
        (lambda x: F.softmax(x, -1).float(), {}, None, ""),
        (lambda x: torch.from_numpy(x.detach().numpy().astype(np.float32)), {}, ValueError, "computes in the dtype"),
        (lambda x: x.nothing(), {}, ValueError, "expected a reference that runs on these arguments, got AttributeError"),
        (softmax_reference, {"skip": {"speed": "slow"}}, ValueError, "skip: expected properties of globals_unchanged"),
        (softmax_reference, {"skip": {"repeats": ""}}, ValueError, "expected the reason why repeats is left out"),
    ],
)
def test_a_reference_that_cannot_judge_is_refused(reference: Any, options: Any, error: Any, message: str) -> None:
    kernel = KERNELS["softmax float32"]
    if error is None:
        assert check(softmax, reference, kernel.make_inputs, draws=2, **options).row.status == "passed"
        return
    with pytest.raises(error, match=message):
        check(softmax, reference, kernel.make_inputs, draws=2, **options)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: None, "expected a tensor, or a tuple or dict of them, got NoneType"),
        (lambda x: (softmax(x), x + 1), "expected output, as the reference returns; got output 0, output 1"),
        (lambda x: softmax(x).double(), "expected a tensor of shape"),
        (lambda x: softmax(x)[:, 1:], "expected a tensor of shape"),
        (lambda x: softmax(x.detach()), "grad x: expected a tensor"),
        (lambda x: 1 / 0, "expected a result, got ZeroDivisionError"),
    ],
)
def test_a_result_of_another_form_fails(result: Any, message: str) -> None:
    kernel = KERNELS["softmax float32"]
    with pytest.raises(WrongKernel, match=message):
        check(result, kernel.reference, kernel.make_inputs, draws=2)


def test_what_no_draw_can_show_is_not_proven() -> None:
    with pytest.raises(WrongKernel, match="nothing was proven: output: vanished"):
        check(torch.relu, torch.relu, lambda seed: (random(seed, 8, 8) * 1e-38,), draws=2)


def test_integers_and_several_outputs() -> None:
    def largest(x: Tensor) -> dict[str, Tensor]:
        values, places = x.max(-1)
        return {"values": values, "places": places}

    row = check(largest, largest, lambda seed: (random(seed, 8, 30, grad=True),), draws=3).row
    assert [one.tensor for one in row.tensors] == ["output values", "output places", "grad x"]
    with pytest.raises(WrongKernel, match=r"output places: at \[0\] expected"):
        check(
            lambda x: {"values": x.max(-1).values, "places": x.min(-1).indices},
            largest,
            lambda seed: (random(seed, 8, 30, grad=True),),
            draws=2,
        )


def test_what_is_zero_in_the_reference_must_be_zero() -> None:
    def make_inputs(seed: int) -> tuple[Tensor, ...]:
        return (-random(seed, 8, 8).abs(),)

    assert check(torch.relu, torch.relu, make_inputs, draws=2).row.status == "passed"
    with pytest.raises(WrongKernel, match="output: expected 0 throughout, got 7"):
        check(lambda x: torch.full_like(x, 7.0), torch.relu, make_inputs, draws=2)


def test_an_idempotent_kernel_in_place_is_found() -> None:
    with pytest.raises(WrongKernel, match="inputs_unchanged"):
        check(lambda x: x.relu_().exp(), lambda x: x.relu().exp(), lambda seed: (random(seed, 8, 8),), draws=2)
    skip = {"inputs_unchanged": "in place", "fresh_results": "in place"}
    check(lambda x: x.mul_(2), lambda x: x * 2, lambda seed: (random(seed, 8, 8),), draws=2, skip=skip)


class _Rounded(torch.autograd.Function):
    """Right, but for incoming gradients that it rounds to bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.bfloat16().to(gradient.dtype) * 2


def test_incoming_gradients_have_all_bits() -> None:
    with pytest.raises(WrongKernel, match="grad x"):
        check(_Rounded.apply, lambda x: x * 2, lambda seed: (random(seed, 8, 8, grad=True),), draws=2)


def test_a_gradient_needs_a_reference_of_its_own() -> None:
    with pytest.raises(ValueError, match="expected a reference with a gradient"):
        check(lambda x: x * 2, lambda x: (x * 2).detach(), lambda seed: (random(seed, 8, 8, grad=True),), draws=2)
    with pytest.raises(WrongKernel, match="grad y: expected 0 throughout"):
        check(
            lambda x, y: x * 2 + (y.sum() - y.sum().detach()),
            lambda x, y: x * 2,
            lambda seed: tuple(random(seed + k, 8, 8, grad=True) for k in (0, 1)),
            draws=2,
        )


def test_arguments_of_any_form() -> None:
    def add(x: Tensor, others: dict[str, Tensor], scale: float) -> Tensor:
        return x * scale + others["a"]

    def make_inputs(seed: int) -> tuple[Any, ...]:
        return random(seed, 8, 8), {"a": random(seed + 1, 8, 8)}, 1.0 + seed

    assert check(add, add, make_inputs, draws=3).row.status == "passed"
    assert check(torch.relu, torch.relu, lambda seed: (torch.zeros(0, 7),), draws=2).row.status == "passed"
    assert check(torch.relu, torch.relu, lambda seed: (random(seed, 1, 7).expand(5, 7),), draws=2).row.status == "passed"
    with pytest.raises(TypeError, match="got an array of NumPy"):
        check(add, add, lambda seed: (random(seed, 8), np.zeros(8)), draws=1)
    for option in ({"draws": 0}, {"precision": "TF32"}, {"terms": 0}):
        with pytest.raises(ValueError, match="expected"):
            check(add, add, make_inputs, **option)  # type: ignore[arg-type]


def test_a_float64_argument_leaves_other_dtypes_their_limits() -> None:
    def scaled(x: Tensor, factor: Tensor) -> Tensor:
        return x * factor

    def make_inputs(seed: int) -> tuple[Tensor, ...]:
        return random(seed, 40, 40, dtype=torch.bfloat16), torch.tensor(0.37, dtype=torch.float64)

    assert check(scaled, scaled, make_inputs, draws=2).row.status == "passed"


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_a_mask_of_large_numbers_hides_no_error(factor: float) -> None:
    def masked(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.t() / 4).masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -1e9)

    def make_inputs(seed: int) -> tuple[Tensor, ...]:
        return random(seed, 12, 16), random(seed + 1, 12, 16)

    if factor == 1.0:
        assert check(masked, masked, make_inputs, draws=2).row.status == "passed"
        return
    with pytest.raises(WrongKernel, match="output"):
        check(lambda q, k: masked(factor * q, k), masked, make_inputs, draws=2)


@pytest.mark.test_all
def test_a_compiled_function_passes() -> None:
    """By torch.compile, whose guards are global state of its own."""
    kernel = KERNELS["softmax float32"]
    compiled = torch.compile(kernel.reference, dynamic=False)
    skip = {"calls_at_once": "each thread compiles for itself", "globals_unchanged": "compiling sets modes of torch"}
    assert check(compiled, kernel.reference, kernel.make_inputs, draws=3, skip=skip).row.status == "passed"


def test_a_graph_of_onnx_runtime_passes() -> None:
    runtime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    shape = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "softmax", shape[:1], shape[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def softmax(x: Tensor) -> Any:
        return session.run(["y"], {"x": x.numpy()})[0]

    kernel = KERNELS["softmax float32"]
    assert check(softmax, kernel.reference, lambda seed: (random(seed, 17, 97),), draws=4).row.status == "passed"


def _faint_row(seed: int) -> tuple[Tensor, ...]:
    x = random(seed, 24, 40)
    x[5] *= 1e-6
    return (x,)


@pytest.mark.parametrize("fault", [0.0, 1.5])
def test_an_error_of_a_row_far_smaller_than_its_tensor_is_found(fault: float) -> None:
    def wrong(x: Tensor) -> Tensor:
        y = x * 2
        y[5] *= fault
        return y

    assert check(lambda x: x * 2, lambda x: x * 2, _faint_row, draws=2).row.status == "passed"
    with pytest.raises(WrongKernel, match=r"output \(\[5\]\): "):
        check(wrong, lambda x: x * 2, _faint_row, draws=2)


def test_small_outputs_are_judged_for_their_rounding_over_several_draws() -> None:
    def make_inputs(seed: int) -> tuple[Tensor, ...]:
        return tuple(random(seed + 1000 * k, *shape, dtype=torch.bfloat16) for k, shape in enumerate([(4, 70), (70, 32)]))

    def rounded_twice(a: Tensor, b: Tensor) -> Tensor:
        return a[:, :35] @ b[:35] + a[:, 35:] @ b[35:]

    product = KERNELS["matmul bfloat16"].reference
    assert check(product, product, make_inputs).row.status == "passed"
    with pytest.raises(WrongKernel, match=r"output \(over 16 draws\): share of elements that differ"):
        check(rounded_twice, product, make_inputs)


@pytest.mark.parametrize("call", [lambda x: (x * 2).sum().backward(), lambda x: setattr(x, "grad", torch.ones_like(x))])
def test_a_gradient_that_is_written_is_an_argument_touched(call: Any) -> None:
    def wrong(x: Tensor) -> Tensor:
        if x.requires_grad:
            call(x)
        return x * 2

    with pytest.raises(WrongKernel, match=r"expected x unchanged by the call, but it has .* or another \.grad"):
        check(wrong, lambda x: x * 2, lambda seed: (random(seed, 8, 8, grad=True),), draws=2)


@pytest.mark.parametrize("grad", [True, False])
def test_another_grad_mode_is_a_global_setting_changed(grad: bool) -> None:
    def wrong(x: Tensor) -> Tensor:
        y = x * 2
        torch.set_grad_enabled(not grad)
        return y

    with pytest.raises(WrongKernel, match=f"grad mode: expected {grad} as before the call, got {not grad}"):
        check(wrong, lambda x: x * 2, lambda seed: (random(seed, 8, 8, grad=grad),), draws=2)
    assert torch.is_grad_enabled()


def test_a_reference_that_writes_into_its_argument_is_named() -> None:
    def in_place(x: Tensor) -> Tensor:
        return x.mul_(2)

    with pytest.raises(ValueError, match="the reference in_place: expected x unchanged by the call, but at"):
        check(lambda x: x * 2, in_place, lambda seed: (random(seed, 8, 8),), draws=2)
