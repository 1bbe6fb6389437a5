"""Keeps an implementation from ending the process that judges it: Python's os._exit and os.exec* raise where it runs.

An end by native code is out of reach within one process; `--ecornn-isolate` makes it cost one row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, NoReturn

# os.execl, os.execvp and the like call these.
_NAMES = ("_exit", "execv", "execve")
# What ends this process on its user's behalf: a row that takes too long, a worker that has lost its controller.
_ENTITLED = {"execnet", "pytest_timeout", "xdist"}
_PLACES: tuple[ModuleType, ...] = (os, sys.modules[os.name])
_REAL: dict[str, Callable[..., NoReturn]] = {name: getattr(os, name) for name in _NAMES}


class ProcessExit(SystemExit):
    """Raised by os._exit and os.exec* in their place."""


class ExitGuard:
    """Within it, os._exit and os.exec* raise ProcessExit in this process; `calls` lists them, also where that is caught.

    Children by fork end as ever. A function that is fetched within it, say by a thread that outlasts it, stays guarded.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __enter__(self) -> ExitGuard:
        self.process = os.getpid()
        _active.append(self)
        _set(_GUARDED)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        _active.remove(self)
        if not _active:
            _set(_REAL)


_active: list[ExitGuard] = []
_OWN_PROCESS = os.getpid()


def _make_guard(name: str) -> Callable[..., NoReturn]:
    def call(*arguments: Any) -> NoReturn:
        caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if caller in _ENTITLED or os.getpid() != (_active[-1].process if _active else _OWN_PROCESS):
            _REAL[name](*arguments)
        text = f"os.{name}({', '.join(map(repr, arguments[:1]))})"
        if _active:
            _active[-1].calls.append(text)
        raise ProcessExit(f"{text} was called, which would have ended the run")

    return call


_GUARDED = {name: _make_guard(name) for name in _NAMES}


def _set(functions: dict[str, Callable[..., NoReturn]]) -> None:
    for position in _PLACES:
        for name, function in functions.items():
            setattr(position, name, function)
