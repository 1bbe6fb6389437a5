"""A scan beside a copy, and within a whole layer: everything but the measuring itself, which takes a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.contract import MODES, Case, Weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.scan_parts import scan_bandwidth, scan_layer
from pytest_ecornn.suites.published.scan_parts.scan_judge import states
from tests.helpers.studies import event, fake_clock


def fake_ops(share: float = 1.0) -> tuple[scan_bandwidth.Forward, scan_bandwidth.Forward]:
    """scan_gpu's, by the reference; the backward's result times `share`."""

    def forward(x: Tensor, bias: None, first: None, *how: Any) -> tuple[Tensor, Tensor]:
        output = states(x, how[2]).to(x.dtype)
        return output, output[:, -1]

    def backward(x: Tensor, bias: None, first: None, output: Tensor, d_output: Tensor, d_final: Tensor, *how: Any) -> Any:
        wide = x.double().requires_grad_()
        with torch.enable_grad():
            given = torch.autograd.grad(states(wide, how[2]), wide, d_output.double())
        return (given[0] * share).to(x.dtype), d_final

    return forward, backward


SMALL = scan_bandwidth.Shape("minlstm", 2, 9, 5, "float32", False, None)


def test_the_fewest_bytes_are_counted_each_way() -> None:
    assert SMALL.bytes == (3 + 1) * 2 * 9 * 5 * 4
    assert replace(SMALL, is_backward=True, dtype="bfloat16").bytes == (2 * 3 + 2) * 2 * 9 * 5 * 2


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("cell", ["mingru", "minlstm"])
def test_a_scan_that_is_timed_is_right(cell: str, is_backward: bool) -> None:
    shape = replace(SMALL, cell=cell, is_backward=is_backward)
    made = scan_bandwidth.make_scan(shape, "cpu", *fake_ops())
    with torch.no_grad():
        made.run()
        assert made.error() < 1e-6
    if is_backward:
        wrong = scan_bandwidth.make_scan(shape, "cpu", *fake_ops(1.01))
        wrong.run()
        assert wrong.error() == pytest.approx(0.01, rel=1e-3)


def test_a_copy_moves_as_many_bytes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_bandwidth, "_PIECE_BYTES", 16)
    sizes: list[int] = []
    copy_into = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda self, other: [sizes.append(other.nbytes), copy_into(self, other)])
    scan_bandwidth.make_copy(80, "cpu")()
    assert sizes == [16, 16, 8]


@pytest.mark.parametrize("share", [1.0, 1.01])
def test_only_scans_that_are_right_when_replayed_have_a_share(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch)
    shape = replace(SMALL, is_backward=True)
    monkeypatch.setattr(scan_bandwidth, "_ops", lambda: fake_ops(share))
    monkeypatch.setattr(scan_bandwidth, "Replay", lambda call: call)
    monkeypatch.setattr(scan_bandwidth, "shapes", lambda: [shape])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=shape.bytes))
    (row,) = scan_bandwidth.measure(time.monotonic() + 100, "cpu")
    assert row.share == (Ratio(1.0, 1.0, 1.0) if share == 1 else None)
    assert row.reason == ("" if share == 1 else "wrong: error 1.0e-02")


def test_every_shape_of_a_bar_is_measured() -> None:
    found = [str(shape) for shape in scan_bandwidth.shapes() if shape.bar]
    assert len(found) == len(set(found)) == 2 + 2 + 3 * 4


# The whole layer.


@pytest.mark.parametrize("training", [False, True])
def test_outputs_at_once_and_step_by_step_are_the_same(training: bool) -> None:
    case = Case(cell="mingru", steps=6, batch=2, hidden_size=4, batch_first=True, projected=True)
    whole = scan_layer.LayerWithProjections(ReferenceLoop().build(case, Weights({})), (2, 6, 4), training, "cpu")
    assert whole.difference() < 1e-5
    found = whole.call("one product")
    assert [tuple(one.shape) for one in found] == [(2, 6, 4), (2, 6, 4), (8, 4), (4, 4)][: 4 if training else 1]


def test_a_projection_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(cell="mingru", steps=6, batch=2, hidden_size=4, batch_first=True, projected=True)
    monkeypatch.setitem(scan_layer.PROJECTIONS, "a product a step", lambda states, weight: states @ weight)
    whole = scan_layer.LayerWithProjections(ReferenceLoop().build(case, Weights({})), (2, 6, 4), False, "cpu")
    assert whole.difference() > scan_layer._LIMIT


def test_a_layer_is_profiled_with_either_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Tensor, ...]] = []

    def profiled(call: Callable[[], Any]) -> list[dict[str, Any]]:
        made.append(call())
        return [event("kernel", "scan_forward", 0, 4), event("kernel", "sgemm", 4, 6)]

    monkeypatch.setattr(scan_layer, "profiled", profiled)
    monkeypatch.setattr(scan_layer, "IMPLEMENTATION", "scan_cpu")
    monkeypatch.setattr(scan_layer, "STEPS", 5)
    rows = list(scan_layer.measure(time.monotonic() + 100, "cpu"))
    assert [row.label for row in rows] == [f"{mode}, {name}" for mode in MODES for name in scan_layer.PROJECTIONS]
    assert [len(one) for one in made] == [1, 1, 4, 4]
    assert {(row.found.scan_us, row.found.product_us) for row in rows if row.found} == {(4.0, 6.0)}
