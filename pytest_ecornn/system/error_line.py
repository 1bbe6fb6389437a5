"""An exception in one line, as a cell of a table or a stored reason has it."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message; empty where it has none."""
    return next(iter(str(error).splitlines()), "")


def error_line(error: BaseException, most_characters: int | None = None) -> str:
    """Returns the exception's type and the first line of its message, or so many characters of that."""
    return f"{type(error).__name__}: {first_line(error)[:most_characters]}"
