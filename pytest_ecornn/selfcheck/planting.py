"""Planted layers: what must see each, and the file of its own that each is loaded from.

A module holds a family of them. Each is tried as a third party's file is: alone with what it uses of its module, so that it
shares no state with the others, and their sizes are not taken for its own.
"""

from __future__ import annotations

import ast
import atexit
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from inspect import isclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_ecornn.contract import Implementation
from pytest_ecornn.system.scratch import Scratch

MUTANTS, EXPLOITS, CORRECT = (f"{__package__}.{name}" for name in ("mutants", "exploits", "correct"))
_WORD = re.compile(r"(?:Float|Tf|D[ch]|L)\d+|\d+[a-z]*|[A-Z][a-z]*")  # Float32, Dh0 and 16bit are one word, Of16Bits is three
_Layer = TypeVar("_Layer", bound=type[Implementation])


@dataclass(frozen=True)
class Expectation:
    """The check that must fail on a planted layer, and what its cases are drawn around.

    profile: of the drawn cases. options: fields of the one case that an exploit is timed on. stands_for: the own implementation
    whose duties it takes over.
    """

    caught_by: str
    cell: str = "lstm"
    dtype: str = "float32"
    device: str = "cpu"
    mode: str = "inference"
    profile: str = "quick"
    options: Mapping[str, Any] = field(default_factory=dict)
    stands_for: str = ""


_expectations: dict[type[Implementation], Expectation] = {}


def mutant(
    caught_by: str,
    cell: str = "lstm",
    dtype: str = "float32",
    device: str = "cpu",
    profile: str = "quick",
    stands_for: str = "",
) -> Callable[[_Layer], _Layer]:
    """Marks a wrong kernel of `mutants/`, which drawn cases or properties must see."""
    return _planted(Expectation(caught_by, cell, dtype, device, profile=profile, stands_for=stands_for))


def exploit(
    caught_by: str,
    cell: str = "lstm",
    dtype: str = "float32",
    device: str = "cpu",
    mode: str = "inference",
    options: Mapping[str, Any] | None = None,
) -> Callable[[_Layer], _Layer]:
    """Marks a trick of `exploits/`, which a benchmark row of one case must see."""
    return _planted(Expectation(caught_by, cell, dtype, device, mode, options=options or {}))


def _planted(expectation: Expectation) -> Callable[[_Layer], _Layer]:
    def mark(layer: _Layer) -> _Layer:
        _expectations[layer] = expectation
        return layer

    return mark


def expectation(layer: type[Implementation]) -> Expectation:
    """What the layer's decorator says."""
    return _expectations[layer]


def layers(package: str) -> list[type[Implementation]]:
    """The layers that the package's modules define, by name."""
    public = (module for _, module, _ in pkgutil.iter_modules(import_module(package).__path__) if not module.startswith("_"))
    modules = [import_module(f"{package}.{module}") for module in public]
    classes = [value for module in modules for value in vars(module).values() if isclass(value)]
    names = {module.__name__ for module in modules}
    return sorted((kind for kind in classes if issubclass(kind, Implementation) and kind.__module__ in names), key=name_of)


def name_of(layer: type[Implementation]) -> str:
    """The layer's id: `sizes_index_of_16_bits` of IndexOf16Bits in mutants/sizes.py. Elsewhere the class alone says it."""
    package, _, family = layer.__module__.rpartition(".")
    words = "_".join(_WORD.findall(layer.__name__)).lower()
    return f"{family}_{words}" if package == MUTANTS else words


@cache
def own_file(layer: type[Implementation]) -> Path:
    """A module NAME.py in which the layer stands alone, each line where its family has it; it lasts as long as the process."""
    module = sys.modules[layer.__module__]
    assert module.__file__ is not None
    file = _folder() / f"{name_of(layer)}.py"
    file.write_text(part(Path(module.__file__).read_text(encoding="utf-8"), layer.__name__), encoding="utf-8")
    return file


@cache
def _folder() -> Path:
    scratch = Scratch()
    atexit.register(scratch.remove)
    return scratch.path


def part(source: str, name: str) -> str:
    """The definition of `name` in a module and those that it uses, imports too. All other lines are empty."""
    statements = ast.parse(source).body
    definitions = {bound: statement for statement in statements for bound in _bound(statement)}
    wanted, waiting = {definitions["annotations"]}, [name]  # the first is imported from __future__
    while waiting:
        statement = definitions.get(waiting.pop())
        if statement is not None and statement not in wanted:
            wanted.add(statement)
            waiting += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    numbers = {number for statement in wanted for number in _lines(statement)}
    return "\n".join(line if number in numbers else "" for number, line in enumerate(source.splitlines(), 1)) + "\n"


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines. Raises ValueError for one that defines none: it would be left out."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):  # a docstring
        raise ValueError(
            f"line {statement.lineno} belongs to no layer; expected definitions alone in a module of planted layers"
        )


def _lines(statement: ast.stmt) -> range:
    decorators = getattr(statement, "decorator_list", [])
    assert statement.end_lineno is not None
    return range(min(node.lineno for node in (statement, *decorators)), statement.end_lineno + 1)
