"""Gradients of a layer's weights and inputs, both directions at once: sums over all steps, from states one step before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common import gradient_sizes, padded_gemm, tensor_views
from pytest_ecornn.implementations._common.gradient_sizes import GradientSizes
from pytest_ecornn.implementations._common.tensor_views import View
from pytest_ecornn.implementations._common.weight_gradients import WeightGradients
from pytest_ecornn.implementations._cuda.parameter_gradients import LayerTensors, may_share_launch
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions, get_plan
from tests.helpers.gradients import sums_over_steps
from tests.helpers.requirements import needs_compiler, on_simulator
from tests.helpers.simulated_kernels import runs

CPU = torch.device("cpu")
T, B, H, WIDTH = 5, 3, 8, 4


def sizes(gates: int, directions: int, hidden: int = H, dtype: torch.dtype = torch.float32) -> GradientSizes:
    return GradientSizes(T, B, hidden, gates * hidden, directions, gates == 3, dtype, CPU)


def run(
    computed: WeightGradients, layer: LayerTensors, weights: Sequence[torch.Tensor], may_have_gaps: bool = False
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """A layer's gradients in one launch or by products, and its inputs'."""
    width = layer.inputs.shape[2]
    if not computed.suit_one_launch(width):
        return computed.for_layer(*layer, weights, may_have_gaps)
    (found,) = computed.in_one_launch([layer])
    return found, computed.of_inputs(layer.d_gates, width, weights)


def expect_sums(computed: WeightGradients, of: GradientSizes, width: int, has_initial: bool) -> None:
    """All gradients of drawn tensors are sums over all steps."""
    torch.manual_seed(0)
    hidden, directions = of.hidden, of.directions

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(of.dtype)

    products = drawn(directions, T, B, hidden) if of.splits_last else None
    of_gates, weights = drawn(directions, T, B, of.gate_width), drawn(directions, of.gate_width, width)
    # Inputs and outputs lie within larger memory, as tensors of a user's may.
    inputs, output = drawn(2, T, B, width)[1], drawn(2, T, B, directions * hidden)[1]
    initial = drawn(directions, B, hidden) if has_initial else None
    d_gates, d_product = computed.gates(), computed.product() if of.splits_last else None
    d_gates.copy_(of_gates.view_as(d_gates))
    if d_product is not None and products is not None:
        d_product.copy_(products.view_as(d_product))
    given = None if initial is None else initial if directions > 1 else initial[0]
    close = {"rtol": 1e-5, "atol": 1e-5} if of.dtype == torch.float32 else {"rtol": 0.01, "atol": 0.01}
    layer = LayerTensors(d_gates, d_product, inputs, output, given)
    actual, of_inputs = run(computed, layer, [*weights])
    sums = sums_over_steps(of_gates, products, inputs, output, initial)
    wanted = [one[direction].to(of.dtype) for direction in range(directions) for one in sums]
    torch.testing.assert_close(actual, wanted, **close)
    assert all(one.is_contiguous() for one in actual)
    assert of_inputs is not None
    wanted_inputs = torch.einsum("dtbg,dgi->tbi", of_gates.float(), weights.float()).to(of.dtype)
    torch.testing.assert_close(of_inputs, wanted_inputs, **close)
    assert of_inputs.shape == (T, B, width)
    assert of_inputs.is_contiguous()
    without, none = run(computed, layer, ())
    assert none is None
    assert all(map(torch.equal, without, actual))
    again, with_gaps = run(computed, layer, [*weights], may_have_gaps=True)
    assert with_gaps is not None
    assert all(map(torch.equal, (*again, with_gaps), (*actual, of_inputs)))


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("has_initial", [False, True])
@pytest.mark.parametrize("by", ["launch", "products", "products of as_strided"])
@pytest.mark.parametrize("gates", [1, 3, 4])
@pytest.mark.parametrize("directions", [1, 2])
def test_they_are_sums_over_all_steps(
    directions: int, gates: int, by: str, has_initial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by != "launch":
        monkeypatch.setattr(WeightGradients, "suit_one_launch", lambda self, width: False)
    if by == "products of as_strided":
        monkeypatch.setattr(tensor_views, "_reinterpret", None)
    of = sizes(gates, directions)
    computed = WeightGradients(of)
    assert computed.take_initial_states(WIDTH) == (directions == 1 or by == "launch")
    if not has_initial or computed.take_initial_states(WIDTH):
        expect_sums(computed, of, WIDTH, has_initial)


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("gates", [1, 3, 4])
def test_directions_of_long_sums_have_products_of_their_own(gates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightGradients, "suit_one_launch", lambda self, width: False)
    monkeypatch.setattr(gradient_sizes, "_MAX_BATCHED_ROWS", T * B - 1)
    of = sizes(gates, 2)
    assert not of.are_batched
    expect_sums(WeightGradients(of), of, WIDTH, has_initial=False)


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("has_initial", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(("gates", "hidden"), [(1, 9), (3, 6), (3, 8), (3, 9), (4, 9), (4, 6), (4, 8)])
@pytest.mark.parametrize("width", [3, 8])
def test_products_of_copies(
    width: int, gates: int, hidden: int, is_padded: bool, dtype: torch.dtype, has_initial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WeightGradients, "suit_one_launch", lambda self, width: False)
    of = sizes(gates, 1, hidden, dtype)
    expect_sums(WeightGradients(of, is_padded), of, width, has_initial)


@needs_compiler
@pytest.mark.parametrize("case", ["lstm-T4-B3-H9-L2-bfloat16-training", "gru-T4-B3-H9-L2-float16-state-training"])
def test_layers_whose_products_are_padded(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_gemm, "_MIN_FLOPS", 0)
    monkeypatch.setattr(GradientSizes, "suit_one_launch", lambda sizes, width: False)
    (of_case,) = runs(f"cluster {case}")
    assert "pad_rows" in of_case.expect_right().launched


@pytest.mark.parametrize(
    ("changes", "widths", "tf32", "suits"),
    [
        ({}, (WIDTH,), False, True),
        ({}, (), False, True),  # a layer whose input product is given
        ({"steps": 1}, (WIDTH,), False, False),
        ({"steps": 4096, "batch": 1, "directions": 1}, (WIDTH,), False, True),
        ({"steps": 4096, "batch": 1, "directions": 1, "dtype": torch.float16}, (WIDTH,), False, False),  # a long sum
        ({"steps": 256, "batch": 2}, (WIDTH,), False, True),
        ({"steps": 256, "batch": 3}, (WIDTH,), False, True),  # two sums that are worth splitting, so two products
        ({"steps": 100, "hidden": 1024, "gate_width": 4096}, (1024,), False, False),  # two large products
        ({"steps": 2000, "hidden": 1024, "gate_width": 4096, "directions": 1}, (1024,), False, True),
        ({"steps": 2000, "hidden": 1023, "gate_width": 4092, "directions": 1}, (1024,), False, True),
        ({"steps": 2000, "hidden": 1023, "gate_width": 4092, "directions": 1}, (1024,), True, True),  # whose rows are padded
        ({"steps": 2000, "hidden": 1023, "gate_width": 3069, "directions": 1}, (1024,), True, True),  # and the gates' too
        ({"steps": 1300, "hidden": 1023, "gate_width": 4092, "directions": 1, "dtype": torch.float16}, (1024,), False, True),
    ],
)
def test_what_they_suit(changes: dict[str, object], widths: tuple[int, ...], tf32: bool, suits: bool) -> None:
    assert sizes(4, 2)._replace(tf32=tf32, **changes).suit_products(widths) == suits


@pytest.mark.parametrize(
    ("changes", "width", "suits"),
    [
        ({}, WIDTH, True),
        ({"dtype": torch.float16}, WIDTH, True),
        ({"steps": 0}, WIDTH, False),
        ({}, 0, False),
        ({}, 2**20, False),
        # Measured on an H200, us, in one launch and by products: 10.2, 21.9 (18.8 in TF32); 37.7, 12.6; 71.6, 12.3; 891, 266
        ({"steps": 35, "batch": 16, "hidden": 128, "gate_width": 384, "directions": 1}, 128, True),
        ({"steps": 35, "batch": 16, "hidden": 128, "gate_width": 384, "directions": 1, "tf32": True}, 128, True),
        ({"steps": 35, "batch": 16, "hidden": 256, "gate_width": 768, "directions": 1, "dtype": torch.bfloat16}, 256, False),
        ({"steps": 10, "batch": 4, "hidden": 512, "gate_width": 1536, "directions": 1}, 512, False),
        ({"steps": 512, "batch": 100, "hidden": 200, "gate_width": 600, "directions": 1, "tf32": True}, 40, False),
        # Few tiles of many rows, which several clusters share: 31.6, 37.5; 33.5, 45.1
        ({"steps": 128, "batch": 100, "hidden": 48, "gate_width": 144, "directions": 1, "tf32": True}, 48, True),
        ({"steps": 128, "batch": 100, "hidden": 48, "gate_width": 144, "directions": 1, "dtype": torch.float16}, 48, True),
    ],
)
def test_what_suits_one_launch(changes: dict[str, int], width: int, suits: bool) -> None:
    assert sizes(3, 2)._replace(**changes).suit_one_launch(width) == suits


@pytest.mark.parametrize(
    ("case", "is_used"),
    [
        (Case.parse("gru-T5-B3-H8-L2-float32-bidirectional"), True),
        (Case.parse("lstm-T5-B3-H8-float32-batchfirst"), False),
        (Case.parse("lstm-T5-B3-H8-float32-ragged"), True),
        (Case.parse("lstm-T1-B3-H8-float32"), False),  # by the kernel of one step
        (Case.parse("lstm-T1-B300-H512-float32"), False),
        # In one launch, where products do not suit: of many rows in 16 bits, or in both directions
        (Case.parse("gru-T128-B100-H16-float16"), True),
        (Case.parse("gru-T128-B100-H16-L2-float32-bidirectional"), True),
        (Case.parse("lstm-T50-B16-H256-float16-bidirectional"), True),
        (Case.parse("lstm-T128-B100-H256-float32-bidirectional"), False),
    ],
    ids=str,
)
def test_calls_that_use_them(case: Case, is_used: bool) -> None:
    options = RNNOptions(case.cell, case.batch_first, case.bidirectional, projected=False, tf32=False)
    shape = torch.Size(
        (case.batch, case.steps, case.hidden_size) if case.batch_first else (case.steps, case.batch, case.hidden_size)
    )
    weights, dtype = 4 * case.layers * case.directions, getattr(torch, case.dtype)
    plan = get_plan(options, shape, weights, case.hidden_size, dtype, CPU, True, case.ragged)
    assert (plan.weight_gradients is not None) == is_used


def test_a_view_is_that_of_as_strided() -> None:
    base = torch.arange(40.0)[4:].view(6, 6)
    view = View((2, 3), (1, 6), 7)
    assert torch.equal(view.of(base), base.flatten()[7:].as_strided((2, 3), (1, 6), 4 + 7))


def test_what_shares_a_launch() -> None:
    def layer(width: int, gates: int = 8, offset: int = 0) -> LayerTensors:
        inputs = torch.zeros(T * B * width + 4)[offset : offset + T * B * width].view(T, B, width)
        return LayerTensors(torch.zeros(gates), None, inputs, torch.zeros(T, B, H))

    assert may_share_launch([], layer(3))
    assert may_share_launch([layer(8)] * 3, layer(4))
    assert not may_share_launch([layer(8)] * 4, layer(8))
    assert not may_share_launch([layer(8)], layer(3))  # which is read by elements
    assert not may_share_launch([layer(8)], layer(8, offset=1))
    assert may_share_launch([layer(3)], layer(8, offset=1))
    assert not may_share_launch([layer(8, gates=2**22 + 1)], layer(8))  # 16 MiB
