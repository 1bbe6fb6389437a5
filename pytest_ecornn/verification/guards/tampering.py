"""Guards what an implementation must not touch: the functions that judge it, and what shows it more than its arguments.

A stack frame or a list of all objects shows which call is kept and what the next ones will be given, so an audit hook notes
who asks for one; so does what tells the expected result. Code counts as the implementation's where it stands in its file or in
one beside it whose name begins with _. Within one process nothing is out of reach: this makes it an effort, and seen.
"""

from __future__ import annotations

import builtins
import functools
import gc
import heapq
import inspect
import itertools
import logging
import math
import operator
import os
import random
import secrets
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
    NoneType,
    TracebackType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from pytest_ecornn.cases.sources.sources import owns
from pytest_ecornn.verification.guards.overrides import Overrides

_MODULES = (
    *(time, secrets, gc, builtins, functools, heapq, itertools, math, operator, random, random.Random, random.SystemRandom),
    *(statistics, np, sys.modules[inspect.unwrap(np.median).__globals__["__name__"]]),
    *(torch, torch.autograd, torch.cuda, torch.linalg, torch.nn.functional),
)
_CONSTANTS = (bool, int, float, str, tuple, frozenset)
# Types of most values, which have no function in them: to ask each of 12,000 takes longest of all that a row is guarded by.
_WITHOUT_FUNCTIONS = {
    *(*_CONSTANTS, NoneType, dict, list, set, bytes, type, ModuleType),
    *(BuiltinFunctionType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType),
}
HOOKING = "sys.addaudithook"
_FRAMES = {"sys._getframe", "sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile", HOOKING}
_OBJECTS = {"gc.get_objects", "gc.get_referrers", "gc.get_referents"}
_ATTRIBUTES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
_ON_BEHALF = {inspect.__file__, logging.__file__, traceback.__file__}  # ask for whoever calls them
_TORCH = os.path.dirname(torch.__file__)
_DISPATCHING = "__torch_dispatch__"  # which torch wraps in each class of modes
_OWN = __name__.partition(".")[0]
_UNTRUSTED_PACKAGES = ("selfcheck.mutants", "selfcheck.exploits", "selfcheck.correct", "selfcheck._correct_layers", "suites")


class MonkeypatchGuard:
    """Within it, what judges and measures and was replaced is noted, and put back when it ends: see `_guarded_objects`."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.overrides = Overrides()

    def __enter__(self) -> MonkeypatchGuard:
        self._before = [(name, position, dict(_names(position))) for name, position in _guarded_objects()]
        self._numbers = [
            (place_name, position, name, value, repr(value))
            for place_name, position, names in self._before
            if place_name.startswith(_OWN)
            for name, value in names.items()
            if type(value) in (int, float)
        ]
        self._functions = [one for _, position, names in self._before for one in _functions_of(position, names)]
        self._parts = list(map(_PARTS, self._functions))
        self._by_keyword = [dict(defaults) if defaults else None for *_, defaults in self._parts]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.changes += self.overrides.changes()
        for place_name, position, before in self._before:
            for name in _replaced(place_name, position, before):
                self._note(f"{place_name}.{name}")
                _put_back(position, name, before)
        for place_name, position, name, value, text in self._numbers:
            if repr(value) != text:  # the same object, into whose memory another number was written
                self._note(f"{place_name}.{name}")
                _put_back(position, name, {name: type(value)(text)})
        for function, parts, by_keyword in zip(self._functions, self._parts, self._by_keyword, strict=True):
            if not _has_parts(function, parts, by_keyword):
                self._note(f"{function.__module__}.{function.__qualname__}")
                function.__code__, function.__defaults__, function.__kwdefaults__ = parts
                if function.__kwdefaults__ is not None:  # the same dictionary, which may have been written to
                    function.__kwdefaults__.clear()
                    function.__kwdefaults__.update(by_keyword or {})

    def _note(self, name: str) -> None:
        self.changes.append(f"{name}: expected it as before, but it was replaced")


def _guarded_objects() -> Iterator[tuple[str, Any]]:
    """Modules, classes and tables by name, whose functions and constants measure and judge."""
    yield from ((one.__name__, one) for one in _MODULES)
    yield "torch.Tensor", torch.Tensor
    yield "torch.cuda.Event", torch.cuda.Event
    for name, module in list(sys.modules.items()):
        package, _, rest = name.partition(".")
        if package == _OWN and not rest.startswith(_UNTRUSTED_PACKAGES):
            yield name, module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{value.__name__}", value
    cells: Any = sys.modules.get(f"{_OWN}.contract.cells")
    if cells is None:
        return
    yield cells.__name__, cells._cells
    yield from ((f"{cells.__name__}.{name}", cell) for name, cell in cells._cells.items())


def _names(place: Any) -> Mapping[str, Any]:
    return place if isinstance(place, dict) else vars(place)


def _replaced(place_name: str, place: Any, before: dict[str, Any]) -> list[str]:
    """Names that stand for another function or constant, or in a class hide an inherited one."""
    after = dict(_names(place))
    if _are_same(after, before):
        return []
    names = [
        name for name, value in before.items() if after.get(name) is not value and _is_of_use(place, value, after.get(name))
    ]
    if isinstance(place, type):
        names += [name for name in after.keys() - before.keys() if any(name in vars(base) for base in place.__mro__[1:])]
    is_torchs_place = place_name.partition(".")[0] == "torch"
    may_be_torchs = (name for name in names if is_torchs_place or name == _DISPATCHING)
    allowed = {name for name in may_be_torchs if _is_torchs(after.get(name))}
    return [name for name in names if name not in allowed]


def _is_of_use(place: Any, before: Any, after: Any) -> bool:
    """Whether it is a function, or one of the harness's own constants."""
    if callable(before) or isinstance(before, (property, staticmethod, classmethod)):
        return True
    is_own = getattr(place, "__module__", getattr(place, "__name__", _OWN)).partition(".")[0] == _OWN
    return is_own and isinstance(before, _CONSTANTS) and (type(after) is not type(before) or after != before)


def _put_back(place: Any, name: str, before: dict[str, Any]) -> None:
    if isinstance(place, dict):
        place[name] = before[name]
    elif name not in before:
        delattr(place, name)
    elif isinstance(place, (type, ModuleType)):
        setattr(place, name, before[name])
    else:
        object.__setattr__(place, name, before[name])  # frozen


_known: dict[int, tuple[Any, Mapping[str, Any], tuple[FunctionType, ...]]] = {}  # by place


def _functions_of(place: Any, names: dict[str, Any]) -> tuple[FunctionType, ...]:
    """Returns a place's functions, cached until one of its names stands for another value."""
    known = _known.get(id(place))
    if known is None or known[0] is not place or not _are_same(known[1], names):
        known = _known[id(place)] = (place, names, tuple(_functions(names.values())))
    return known[2]


def _are_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether they have the same names, in the same order, for the same values."""
    return len(one) == len(other) and all(map(operator.is_, one.values(), other.values())) and list(one) == list(other)


def _functions(values: Iterable[Any]) -> Iterator[FunctionType]:
    """Yields the functions among `values` that are written in Python, those of methods and properties too."""
    for value in values:
        kind = type(value)
        if kind is FunctionType:
            yield value
        if kind not in _WITHOUT_FUNCTIONS:
            for name in ("__wrapped__",) if kind is FunctionType else ("__func__", "fget", "__wrapped__"):
                if isinstance(one := getattr(value, name, None), FunctionType):
                    yield one


_PARTS = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")


def _has_parts(function: FunctionType, parts: tuple[Any, ...], by_keyword: dict[str, Any] | None) -> bool:
    """Whether its code and default values are these; those by keyword one by one, as their dictionary can be written to."""
    code, defaults, keywords = parts
    if function.__code__ is not code or function.__defaults__ is not defaults or function.__kwdefaults__ is not keywords:
        return False
    return _are_same(keywords or {}, by_keyword or {})


def _is_torchs(value: Any) -> bool:
    """torch replaces some of its own functions when more of it is imported, and its modes' methods: by those of its modules."""
    code, names = getattr(value, "__code__", None), getattr(value, "__globals__", None)
    if code is None or names is None:
        return False
    return code.co_filename.startswith(_TORCH) and _is_of_its_module(names, code.co_filename)


def _is_of_its_module(names: Mapping[str, Any], file: str) -> bool:
    """Whether code with these globals is a loaded module's, not what `exec` ran under its name."""
    module = sys.modules.get(names.get("__name__", ""))
    return module is not None and vars(module) is names and getattr(module, "__file__", None) == file


class IntrospectionGuard:
    """Within it, what an implementation's code asks for beyond its arguments is noted.

    source: its module, or the `__init__.py` of its package.
    """

    def __init__(self, source: Path):
        self.accesses: list[str] = []
        self._owns = cache(lambda file: owns(source, Path(file)))

    def __enter__(self) -> IntrospectionGuard:
        _install()
        _asking.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        _asking.remove(self)

    def owns(self, frame: FrameType) -> bool:
        """Whether its code is the implementation's."""
        return self._owns(frame.f_code.co_filename)

    def note(self, what: str) -> None:
        if what not in self.accesses:
            self.accesses.append(what)


_asking: list[IntrospectionGuard] = []
_this_thread = threading.local()


def record_access(what: str) -> None:
    """Called by what an implementation must not call: notes it where one has, however far up the stack."""
    if not _asking:
        return
    frame: FrameType | None = _frame(1)
    while frame is not None:
        for one in _asking:
            if one.owns(frame):
                one.note(what)
        frame = frame.f_back


@cache
def _install() -> None:
    """Once: an audit hook cannot be taken away."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _asking or getattr(_this_thread, "is_looking", False):
        return
    is_attribute = event == "object.__getattr__" and arguments[1] in _ATTRIBUTES
    if not (is_attribute or event in _FRAMES or event in _OBJECTS):
        return
    frame: FrameType | None = _frame(1)
    while not is_attribute and frame is not None and _asks_for_another(frame):
        frame = frame.f_back
    for one in _asking:
        if frame is not None and one.owns(frame):
            one.note(arguments[1] if is_attribute else event)


def _asks_for_another(frame: FrameType) -> bool:
    """Whether its code asks for whoever called it: of some modules, and of none but `exec`."""
    file = frame.f_code.co_filename
    return file in _ON_BEHALF or (not any(one.owns(frame) for one in _asking) and not _is_of_its_module(frame.f_globals, file))


def _frame(depth: int) -> FrameType:
    """Returns the frame `depth` levels above the caller; the audit hook ignores this request."""
    _this_thread.is_looking = True
    try:
        return sys._getframe(depth + 1)
    finally:
        _this_thread.is_looking = False
