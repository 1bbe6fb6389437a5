"""An exception in one line."""

from __future__ import annotations

from pytest_ecornn.system.error_line import error_line, first_line


def test_a_message_s_first_line_is_taken_and_with_the_type_s_name_is_cut() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == ""
    assert error_line(KeyError("name")) == "KeyError: 'name'"
    assert error_line(ValueError("x" * 300), 200) == "ValueError: " + "x" * 200
    assert error_line(ValueError()) == "ValueError: "
