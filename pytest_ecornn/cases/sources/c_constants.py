"""Integer constants of a C or CUDA text: of definitions, array sizes, template arguments, comparisons and loops first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pytest_ecornn.cases.sources.constant_expressions import Environment, evaluate

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_C_TEXT = re.compile(
    r"^\s*#\s*(define|include|pragma)\b|__(global|device|shared)__|\bconstexpr\b|\btemplate\s*<|\bvoid\s+\w+\(", re.M
)
_DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)\s+([^\n\\]+)$", re.M)
_NAMED = re.compile(r"\b(?:constexpr|const|enum)\b[^;{}()=]*?\b(\w+)\s*=\s*([^;,}]+)|\benum\b[^{;]*\{([^}]*)\}")
_SUFFIX = re.compile(r"(?<=[0-9a-fA-F])(?:[uU][lL]{0,2}|[lL]{1,2}[uU]?)\b")
_NUMBER = r"(0[xX][0-9a-fA-F]+|\d+)\b(?!\.)"
_SHIFT, _MASK = re.compile(rf">>=?\s*{_NUMBER}"), re.compile(rf"&=?\s*{_NUMBER}")
# What stands beside a size: after an operator, before one, in brackets.
_BESIDE_SIZES = (
    re.compile(rf"(?:[%/]|[<>]=?|[=!]=|\+=)\s*{_NUMBER}"),
    re.compile(rf"(?<![\w.]){_NUMBER}\s*(?:[<>]=?|[=!]=)"),
    re.compile(rf"[\[<,]\s*{_NUMBER}\s*(?=[\],>])"),
)
_PRODUCT = re.compile(rf"(?<![\w.]){_NUMBER}\s*(\*|<<)\s*{_NUMBER}")
_LITERAL = re.compile(rf"(?<![\w.]){_NUMBER}")


def is_c(text: str) -> bool:
    """Whether a string looks like a kernel's source."""
    return bool(_C_TEXT.search(text))


def c_constants(text: str) -> Iterator[tuple[int, bool]]:
    """Each constant, in order of kind, with whether it is likely to be the size of a tile."""
    text = _SUFFIX.sub("", _COMMENT.sub(" ", text))
    env: Environment = {}
    for name, expression in _definitions(text):
        if (value := _value(expression, env)) is not None:
            env.setdefault(name, value)
            yield value, True
    for pattern in _BESIDE_SIZES:
        yield from ((int(number, 0 if "x" in number.lower() else 10), True) for number in pattern.findall(text))
    yield from ((2 ** int(shift), True) for shift in _SHIFT.findall(text) if shift.isdigit() and int(shift) < 32)
    yield from ((int(mask, 0) + 1, True) for mask in _MASK.findall(text) if "x" in mask.lower() or not mask.startswith("0"))
    for left, operator, right in _PRODUCT.findall(text):
        if (value := _value(f"{left} {operator} {right}", env)) is not None:
            yield value, True
    yield from ((int(number, 0 if "x" in number.lower() else 10), False) for number in _LITERAL.findall(text))


def _definitions(text: str) -> Iterator[tuple[str, str]]:
    yield from _DEFINE.findall(text)
    for name, expression, members in _NAMED.findall(text):
        if name:
            yield name, expression
        for member in members.split(","):
            key, sign, value = member.partition("=")
            if sign:
                yield key.strip(), value


def _value(expression: str, env: Environment) -> int | None:
    """The value of a constant expression; `/` divides integers."""
    try:
        tree = ast.parse(expression.strip().replace("/", "//"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return evaluate(tree.body, env)
