"""The values of integer expressions of constants, as far as a reader of the source can compute them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

Environment = dict[str, int]  # constants by name

_MAX = 2**32
_MAX_EXPONENT = 32
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_CALLS: dict[str, Callable[..., int]] = {"int": int, "max": max, "min": min, "abs": abs, "sum": sum}


def evaluate(node: ast.expr, env: Environment) -> int | None:
    """The expression's value; None where it is none, or no integer."""
    if isinstance(node, ast.Constant):
        return _integer(node.value)
    if isinstance(node, ast.Name):
        return env.get(node.id)
    if isinstance(node, ast.Attribute):
        return env.get(node.attr)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = evaluate(node.operand, env)
        return None if value is None else -value
    if isinstance(node, ast.BinOp):
        return _combined(node, env)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords:
        return _called(node, env)
    return None


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX:
        return int(value)
    return value if isinstance(value, int) and abs(value) < _MAX else None


def _combined(node: ast.BinOp, env: Environment) -> int | None:
    left, right = evaluate(node.left, env), evaluate(node.right, env)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Div):
        return left // right if right and left % right == 0 else None
    is_growing = isinstance(node.op, ast.Pow | ast.LShift | ast.RShift)
    if type(node.op) not in _OPERATORS or (is_growing and not 0 <= right <= _MAX_EXPONENT):
        return None
    try:
        return _integer(_OPERATORS[type(node.op)](left, right))
    except (ArithmeticError, ValueError):
        return None


def _called(node: ast.Call, env: Environment) -> int | None:
    """Evaluates a call such as int("96"), max(32, 96) or sum((32, 64))."""
    assert isinstance(node.func, ast.Name)
    values: list[int] = []
    for argument in node.args:
        parts = argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]
        for part in parts:
            is_text = isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isdecimal()
            value = int(part.value) if is_text else evaluate(part, env)  # type: ignore[attr-defined]
            if value is None:
                return None
            values.append(value)
    try:
        return _integer(sum(values) if node.func.id == "sum" else _CALLS[node.func.id](*values))
    except (TypeError, ValueError):
        return None
