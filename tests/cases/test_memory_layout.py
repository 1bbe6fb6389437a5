"""Layouts of x, states and lengths: other memory, the same values. Which tensors share memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_ecornn.cases import contents, memory_layout
from pytest_ecornn.cases.contents import generator
from pytest_ecornn.contract import LAYOUTS, Case
from pytest_ecornn.verification import overlap

STRIDES = {
    "contiguous": ((8, 4, 1), (10, 5, 1), (1,)),
    "strided": ((14, 7, 1), (16, 8, 1), (4,)),
    "offset": ((8, 4, 1), (10, 5, 1), (1,)),
    "transposed": ((4, 12, 1), (5, 10, 1), (1,)),
    "feature_major": ((2, 1, 6), (2, 1, 4), (1,)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["", "-batchfirst"])
def test_a_layout_changes_memory_and_no_value(layout: str, order: str) -> None:
    case = Case.parse(f"gru-T3-B2-I4-H5-L2-float32-ragged-state{order}")
    plain, laid = contents.problem(case), contents.problem(replace(case, layout=layout))
    assert Case.parse(str(laid.case)) == laid.case
    tensors: list[Any] = [laid.x, *laid.state, laid.lengths]
    for one, other in zip(tensors, (plain.x, *plain.state, plain.lengths), strict=True):
        assert torch.equal(one, other)
    if not order:
        assert tuple(one.stride() for one in tensors) == STRIDES[layout]
    assert {one.storage_offset() for one in tensors} == {int(layout == "offset")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_later_rows_of_a_pool_are_x_as_well(layout: str) -> None:
    case = Case.parse("gru-T3-B2-I4-H5-float32")
    rows = contents.sample_x_rows(replace(case, layout=layout), 11, generator(0, "x"))
    x = memory_layout.x_at(replace(case, layout=layout), rows, 5)
    assert x.shape == (3, 2, 4)
    values = sorted(x.flatten().tolist())
    assert values == sorted(rows[5:].flatten().tolist())


def test_overlap_is_told_by_elements() -> None:
    room = torch.zeros(4, 6)
    assert overlap.overlaps(room, room[1])
    assert not overlap.overlaps(room[:, :3], room[:, 3:])
    assert overlap.overlaps(room[:, :4], room[:, 3:])
    assert not overlap.overlaps(room, torch.zeros(4))
    assert overlap.shared([("a", room[0]), ("b", room)]) == "b: expected memory of its own, got some of a"
    assert overlap.shared([("a", room[0]), ("b", room[1])]) == ""


def test_an_expanded_tensor_is_folded_and_a_permuted_one_is_not() -> None:
    room = torch.zeros(4, 6, 2)
    assert not any(map(overlap.is_folded, (room, room.permute(2, 0, 1), room[:, ::2], room[:1].expand(1, 6, 2))))
    assert all(map(overlap.is_folded, (room[:1].expand(3, 6, 2), room.as_strided((3, 3), (1, 1)))))
