"""Many cases by one text: a name with braces, as B{1,8,64} or H{256..2048}, in which several things stand; a file of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ecornn.contract import Case

FILE_SUFFIX = ".txt"
MAX_CASES = 10_000
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})(?:\.\.(\d{1,9}))?")


def expand_sweep(text: str) -> list[str]:
    """All combinations of what the braces hold, in order, the last braces' first; where there are none, the text alone.

    {a,b,c} are texts. {a..b} are a, 2a, 4a, ... up to b, and {a..b..s} are a, a + s, ... up to b. Raises ValueError, in one
    line, for other braces, and for more than `MAX_CASES`.
    """
    parts = re.split(r"\{([^{}]*)\}", text)
    if re.search("[{}]", "".join(parts[::2])):
        raise ValueError(f"{text!r}: expected each brace to have its other one, and none within others")
    choices = [_choices(part, text) if number % 2 else [part] for number, part in enumerate(parts)]
    if (count := prod(map(len, choices))) > MAX_CASES:
        raise ValueError(f"{text!r}: expected a sweep of at most {MAX_CASES:,} cases, got {count:,}")
    return ["".join(map(str, one)) for one in product(*choices)]


def _choices(inside: str, text: str) -> Sequence[object]:
    if match := _RANGE.fullmatch(inside):
        first, last, step = (int(number or 0) for number in match.groups())
        if 0 < first <= last and match[3] is None:
            return [first << power for power in range((last // first).bit_length())]
        if first <= last and step:
            return range(first, last + 1, step)
    elif "," in inside and ".." not in inside:
        return inside.split(",")
    forms = "{a,b,c}, {a..b} (doubled from a to b) or {a..b..s} (from a to b by s), whole numbers, the smaller first"
    raise ValueError(f"{text!r}: expected {forms}, got {{{inside}}}")


def read_cases(text: str, parse: Callable[[str], Case]) -> Iterator[Case]:
    """The cases of a name, a sweep, or of a file NAME.txt with one of these a line. Raises ValueError with the file's line."""
    if not text.endswith(FILE_SUFFIX):
        yield from map(parse, expand_sweep(text))
        return
    for number, line in numbered_lines(Path(text)):
        try:
            yield from map(parse, expand_sweep(line))
        except ValueError as error:
            raise ValueError(f"{text}, line {number}: {error}") from error


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """A file's lines, but for empty ones and those that begin with #. Raises ValueError where it has none or cannot be read."""
    try:
        lines = [(number, line.strip()) for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1)]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not (found := [(number, line) for number, line in lines if line and not line.startswith("#")]):
        raise ValueError(f"{path}: expected lines that are no comments, got none")
    return found
