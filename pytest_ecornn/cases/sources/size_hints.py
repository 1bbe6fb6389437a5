"""The dimensions that a constant of the sources is about, by the names beside it: `steps > 96`, `h[:, :192]`, `BATCH = 64`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_ecornn.cases.sources.constant_expressions import Environment, evaluate
from pytest_ecornn.cases.sources.own_sources import own_files
from pytest_ecornn.cases.sources.source_constants import environment, parsed

_WORDS = {
    "T": {"t", "time", "times", "step", "steps", "timestep", "timesteps", "seqlen", "length", "lengths", "chunk", "chunks"},
    "B": {"b", "batch", "batches", "sequence", "sequences", "seqs", "bs"},
    "H": {"h", "hidden", "unit", "units", "channel", "channels", "state", "states"},
    "I": {"i", "input", "inputs", "feature", "features", "k"},
}
_DIM_OF = {word: dim for dim, words in _WORDS.items() for word in words}
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_BESIDE = ast.Compare | ast.BinOp | ast.Subscript | ast.keyword | ast.Assign | ast.AnnAssign | ast.Call
_DEFINITION = re.compile(r"(?:#\s*define\s+(\w+)\s+|\b(\w+)\s*=\s*)(\d+)\b")


def size_hints(path: Path) -> dict[int, str]:
    """Letters of the dimensions by constant; none where no name beside it says one."""
    found: dict[int, set[str]] = {}
    for file, text in own_files(path):
        for value, dims in _python_hints(text) if file.suffix == ".py" else _c_hints(text):
            found.setdefault(value, set()).update(dims)
    return {value: "".join(sorted(dims)) for value, dims in found.items() if dims}


def dims_of(name: str) -> set[str]:
    """Letters of the dimensions that the parts of an identifier name."""
    return {_DIM_OF[part.lower()] for part in _PART.findall(name) if part.lower() in _DIM_OF}


def _python_hints(text: str) -> Iterator[tuple[int, set[str]]]:
    if (tree := parsed(text)) is None:
        return
    env = environment(tree)
    for node in ast.walk(tree):
        if isinstance(node, _BESIDE):
            names = set().union(*map(dims_of, _names(node)))
            yield from ((value, names) for value in _values(node, env))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield from _c_hints(node.value)


def _names(node: ast.AST) -> Iterator[str]:
    """Identifiers in an expression, or on the left of an assignment."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr
        elif isinstance(one, ast.keyword):
            yield one.arg or ""


def _values(node: ast.AST, env: Environment) -> Iterator[int]:
    """Constants among its operands, the bounds of its slices and the elements of its index."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Slice | ast.Tuple):
            yield from _values(child, env)
        elif isinstance(child, ast.expr) and (value := evaluate(child, env)) is not None:
            yield abs(value)


def _c_hints(text: str) -> Iterator[tuple[int, set[str]]]:
    for defined, assigned, value in _DEFINITION.findall(text):
        yield int(value), dims_of(defined or assigned)
