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
        (lambda x: x.nothing(), {}, ValueError, "expected a reference that runs in float64, got AttributeError"),
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
        check(torch.relu, torch.relu, lambda seed: (-random(seed, 8, 8).abs(),), draws=2)


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
