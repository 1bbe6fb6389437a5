"""Texts are cut and wrapped to the room that they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.reporting.pictures.text_width import cut, width, wrap

NAME = "mingru-T4096-B8-H256-float32-cuda-batchfirst-projected-training"


def test_wider_letters_bold_and_other_scripts_take_more() -> None:
    assert width("iii", 14) < width("mmm", 14) < width("mmm", 14, is_bold=True) < width("mmm", 20)
    assert width("a", 10) < width("\u4e16", 10)
    assert width("", 14) == 0


@given(st.text(max_size=80), st.integers(40, 400), st.booleans())
def test_nothing_is_wider_than_its_room(text: str, room: int, is_bold: bool) -> None:
    assert width(cut(text, room, 14, is_bold), 14, is_bold) <= room
    assert all(width(line, 14, is_bold) <= room for line in wrap(text, room, 14, is_bold))


def test_a_text_that_fits_is_whole_and_another_says_that_it_is_not() -> None:
    assert cut("scan_cpu", 100, 14) == "scan_cpu"
    assert cut(NAME * 10_000, 100, 14).endswith("...")


@pytest.mark.parametrize("room", [250, 300, 420])
def test_lines_break_after_hyphens_and_keep_every_token(room: int) -> None:
    lines = wrap(NAME, room, 14, max_lines=3)
    assert 2 <= len(lines) <= 3
    assert "".join(lines) == NAME
    assert all(line.endswith("-") for line in lines[:-1])


def test_lines_break_after_spaces_and_the_last_is_cut() -> None:
    assert wrap("one two three", 60, 14) == ["one two", "three"]
    assert wrap("one two three four five six", 60, 14)[1].endswith("...")
    assert wrap("", 60, 14) == [""]
