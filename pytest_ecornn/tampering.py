"""What an implementation keeps its hands off: the functions that it is judged by, and what shows it more than its arguments.

A stack frame or a list of all objects shows which call is kept and what the next ones will be given, so an audit hook notes
who asks for one; so does what tells the expected result. Code counts as the implementation's where it stands in its file or in
one beside it whose name begins with _. Within one process nothing is out of reach: this makes it an effort, and seen.
"""

from __future__ import annotations

import gc
import inspect
import os
import secrets
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

_FRAMES = {"sys._getframe", "sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile"}
_OBJECTS = {"gc.get_objects", "gc.get_referrers", "gc.get_referents"}
_ATTRIBUTES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
_ON_BEHALF = {inspect.__file__, traceback.__file__}  # ask for whoever calls them
_TORCH = os.path.dirname(torch.__file__)
_OWN = __name__.partition(".")[0]
_NOT_JUDGING = ("implementations", "selfcheck.mutants", "selfcheck.exploits", "selfcheck._correct_layers", "suites")


class Tools:
    """Within it, functions of the harness and of torch that were replaced are noted, and put back when it ends."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    def __enter__(self) -> Tools:
        self._before = [(name, place, dict(vars(place))) for name, place in _places()]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        for place_name, place, before in self._before:
            for name in _replaced(place, before):
                self.changes.append(f"{place_name}.{name}: expected it as before, but it was replaced")
                if name in before:
                    setattr(place, name, before[name])
                else:
                    delattr(place, name)


def _places() -> Iterator[tuple[str, Any]]:
    """Modules and classes by name, whose functions measure and judge."""
    yield from ((one.__name__, one) for one in (secrets, gc, torch, torch.autograd))
    yield "torch.Tensor", torch.Tensor
    for name, module in list(sys.modules.items()):
        package, _, rest = name.partition(".")
        if package == _OWN and not rest.startswith(_NOT_JUDGING):
            yield name, module
            for one in list(vars(module).values()):
                if isinstance(one, type) and one.__module__ == name:
                    yield f"{name}.{one.__name__}", one


def _replaced(place: Any, before: dict[str, Any]) -> list[str]:
    """Names that stand for another function, or in a class hide an inherited one."""
    after = dict(vars(place))
    names = [name for name, value in before.items() if after.get(name) is not value and callable(value)]
    if isinstance(place, type):
        names += [name for name in after.keys() - before.keys() if any(name in vars(base) for base in place.__mro__[1:])]
    return [name for name in names if not _is_torchs(after.get(name))]


def _is_torchs(value: Any) -> bool:
    """torch replaces some of its own functions when more of it is imported."""
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(_TORCH)


class Asking:
    """Within it, what the code in `file` asks for beyond its arguments is noted."""

    def __init__(self, file: Path):
        self.found: list[str] = []
        self._file, self._folder = str(file), str(file.parent)

    def __enter__(self) -> Asking:
        _install()
        _asking.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        _asking.remove(self)

    def owns(self, frame: FrameType) -> bool:
        """Whether its code is the implementation's."""
        file = frame.f_code.co_filename
        return file == self._file or (os.path.dirname(file) == self._folder and os.path.basename(file).startswith("_"))

    def note(self, what: str) -> None:
        if what not in self.found:
            self.found.append(what)


_asking: list[Asking] = []
_this_thread = threading.local()


def tells(what: str) -> None:
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
    while not is_attribute and frame is not None and frame.f_code.co_filename in _ON_BEHALF:
        frame = frame.f_back
    for one in _asking:
        if frame is not None and one.owns(frame):
            one.note(arguments[1] if is_attribute else event)


def _frame(depth: int) -> FrameType:
    """Of the caller's caller, and so on, without asking about that in turn."""
    _this_thread.is_looking = True
    try:
        return sys._getframe(depth + 1)
    finally:
        _this_thread.is_looking = False
