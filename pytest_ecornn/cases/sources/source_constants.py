"""Integer constants of an implementation's own sources, those that look like the size of a tile, chunk or block first.

Faults begin where such a share ends. What is assigned to a name, given by keyword or as a default, compared with, divided by
or counted up to looks like one. Values that the loaded module holds count too, however they were computed.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_ecornn.cases.sources.c_constants import c_constants, is_c
from pytest_ecornn.cases.sources.constant_expressions import Environment, evaluate
from pytest_ecornn.cases.sources.own_sources import own_files

SMALLEST, LARGEST = 3, 4096
_GATE_COUNTS = (3, 4)  # which most cells have, and every drawn case tries
_FLAG = re.compile(r"\b[A-Za-z_]\w*=(\d+)\b")  # as a compiler is given it: -DTILE=96
_MAX_ELEMENTS = 256  # of a container in a module
_SHARING = (ast.FloorDiv, ast.Mod, ast.Div)

FoundConstant = Iterator[tuple[int, bool]]  # a constant, and whether it looks like a tile's size


def source_constants(path: Path, module: str = "") -> list[int]:
    """The constants of the implementation in `path`, loaded as `module`, likeliest first."""
    found: list[tuple[int, bool]] = []
    for file, text in own_files(path):
        found += python_constants(text) if file.suffix == ".py" else c_constants(text)
    found += _loaded_constants(module)
    return ranked(found)


def ranked(found: Iterable[tuple[int, bool]]) -> list[int]:
    """Each once: likely sizes first, counts of gates last, otherwise as they came."""
    likely = dict[int, bool]()
    for value, is_likely in found:
        if SMALLEST <= value <= LARGEST:
            likely[value] = likely.get(value, False) or is_likely
    return sorted(likely, key=lambda value: (value in _GATE_COUNTS, not likely[value]))


def python_constants(text: str) -> FoundConstant:
    """The constants of a Python source, and of kernels and flags in its strings."""
    if (tree := parsed(text)) is None:
        return
    reader = _Reader(environment(tree))
    with contextlib.suppress(RecursionError):
        reader.read(tree)
    yield from reader.found


def parsed(text: str) -> ast.Module | None:
    """A Python source's tree; None of what is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def environment(tree: ast.AST) -> Environment:
    """Names that are assigned constants, of the module, a class or a function alike."""
    env: Environment = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            name = getattr(target, "id", getattr(target, "attr", ""))
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            if name and node.value is not None and (value := evaluate(node.value, env)) is not None:
                env.setdefault(name, value)
    return env


class _Reader:
    """Walks down to the largest constant expressions, and notes each with whether its place is that of a size."""

    def __init__(self, env: Environment):
        self.found: list[tuple[int, bool]] = []
        self._env = env

    def read(self, node: ast.AST, is_likely: bool = False) -> None:
        if isinstance(node, ast.expr) and (value := evaluate(node, self._env)) is not None:
            self.found.append((abs(value), is_likely))
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._read_text(node.value)
            return
        for child, is_size in self._children(node, is_likely):
            self.read(child, is_size)

    def _children(self, node: ast.AST, is_likely: bool) -> Iterator[tuple[ast.AST, bool]]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node, ast.BinOp) and (size := self._power(node)) is not None:
            self.found.append((size, True))
        if isinstance(node, ast.Compare) and any(_is_bit_length(one) for one in (node.left, *node.comparators)):
            self._read_bits(node)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child, _is_size(node, name) or (is_likely and _passes_on(node))

    def _power(self, node: ast.BinOp) -> int | None:
        """The size that a shift or a mask of a variable stands for."""
        value = evaluate(node.right, self._env)
        if value is None or not 0 < value < LARGEST:
            return None
        if isinstance(node.op, ast.RShift) and value < 16:
            return 1 << value
        return value + 1 if isinstance(node.op, ast.BitAnd) and value & (value + 1) == 0 else None

    def _read_bits(self, node: ast.Compare) -> None:
        for one in (node.left, *node.comparators):
            if (value := evaluate(one, self._env)) is not None and 0 < value < 16:
                self.found.append((1 << value, True))

    def _read_text(self, text: str) -> None:
        if is_c(text):
            self.found += c_constants(text)
        elif "def " in text and "\n" in text:
            self.found += python_constants(text)
        else:
            self.found += [(int(value), True) for value in _FLAG.findall(text)]


def _is_size(node: ast.AST, field: str) -> bool:
    """Whether a constant there is likely to be the size of a share."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.Return | ast.keyword):
        return field == "value"
    if isinstance(node, ast.arguments):
        return field in ("defaults", "kw_defaults")
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _SHARING)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return field == "args" and name in ("range", "arange", "min", "max", "clamp", "split", "cdiv", "ceil_div")
    return isinstance(node, ast.Compare | ast.Dict | ast.Slice)


def _passes_on(node: ast.AST) -> bool:
    """Whether a part of the expression stands for the whole."""
    return isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict | ast.IfExp | ast.BoolOp)


def _is_bit_length(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "bit_length"


def _loaded_constants(module: str) -> FoundConstant:
    """Integers that a loaded module and its classes hold, in containers too."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return
    classes = [one for one in vars(loaded).values() if isinstance(one, type) and one.__module__ == module]
    for owner in (loaded, *classes):
        for name, value in list(vars(owner).items()):
            if not name.startswith("__"):
                yield from ((one, True) for one in _integers(value))


def _integers(value: object) -> Iterator[int]:
    """The value, or what a container holds; subclasses of int, whose methods may do anything, are left out."""
    if type(value) is int:
        yield abs(value)
    elif type(value) is dict and len(value) <= _MAX_ELEMENTS:
        yield from (abs(one) for one in value.values() if type(one) is int)
    elif type(value) in (tuple, list, frozenset, set) and len(value) <= _MAX_ELEMENTS:  # type: ignore[arg-type]
        yield from (abs(one) for one in value if type(one) is int)  # type: ignore[attr-defined]
