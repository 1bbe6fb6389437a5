"""State that all code shares and a layer must leave alone: random states, modes, precisions, thread counts.

`GlobalStateGuard` compares it before and after, and restores what has changed: one implementation's fault is not another's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from types import TracebackType
from typing import Any

import torch

from pytest_ecornn.system.own_threads import own_threads
from pytest_ecornn.verification.guards import overrides, process_settings, torch_settings
from pytest_ecornn.verification.guards.setting import GlobalSetting

_WINDOW_SECONDS, _MOST_WINDOWS = 0.015, 40
_QUIET_SHARE = 0.05  # of a window: on a busy machine a thread that wants a whole core gets a part of one


class Snapshot:
    """The values of settings at the time it is made."""

    def __init__(self, settings: Iterable[GlobalSetting]) -> None:
        self._modules = len(sys.modules)
        self._values = [(setting, setting.read()) for setting in settings]

    def changes(self) -> Iterator[tuple[GlobalSetting, Any, str]]:
        """Each setting that is another now, with the value that it had, and what was expected and what came."""
        has_imported = len(sys.modules) > self._modules
        for setting, before in self._values:
            if before is None:
                continue
            after = setting.read()
            if not setting.is_same(before, after) and not (has_imported and setting.is_of_import(before, after)):
                yield setting, before, setting.change(before, after)


class GlobalStateGuard:
    """Within it, changes of the settings are noted, and undone when it ends. `usual` ones, unless some are given.

    lasting: the changes that could not be undone.
    """

    def __init__(self, settings: Iterable[GlobalSetting] | None = None) -> None:
        self.changes: list[str] = []
        self.lasting: list[str] = []
        self._settings = settings

    def __enter__(self) -> GlobalStateGuard:
        self._snapshot = Snapshot(usual() if self._settings is None else self._settings)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        for setting, before, change in self._snapshot.changes():
            self.changes.append(change)
            try:
                setting.write(before)
            except (OSError, RuntimeError, ValueError):
                self.lasting.append(change)


def quick() -> Iterator[GlobalSetting]:
    """Settings that are read in a few microseconds each: what could change another row's time."""
    yield from torch_settings.QUICK
    yield from overrides.QUICK
    yield from process_settings.QUICK
    if torch.cuda.is_initialized():
        yield from torch_settings.quick_cuda_settings()


def usual() -> Iterator[GlobalSetting]:
    """The quick ones and random states."""
    yield from quick()
    yield from random_states()


def random_states() -> Iterator[GlobalSetting]:
    """The states of the random numbers that all share."""
    yield torch_settings.RANDOM_STATE
    yield from process_settings.RANDOM_STATES
    if torch.cuda.is_initialized():
        yield torch_settings.CUDA_RANDOM_STATES


def random_states_restored() -> GlobalStateGuard:
    """A guard for set-up, not calls: modules draw their weights when they are made, and imports seed generators."""
    return GlobalStateGuard(random_states())


def everything() -> Iterator[GlobalSetting]:
    """The usual ones and those that take long to read: for around a row."""
    of_cuda = torch_settings.slow_cuda_settings() if torch.cuda.is_initialized() else ()
    return chain(usual(), process_settings.slow_settings(), of_cuda)


def lasting() -> Iterator[GlobalSetting]:
    """All but random states: what no import may change."""
    names = {setting.name for setting in random_states()}
    return (setting for setting in everything() if setting.name not in names)


def live_threads() -> int:
    """How many the process has; where the system does not say, how many Python knows."""
    return len(own_threads()) or threading.active_count()


def has_busy_threads() -> bool:
    """Whether other threads keep a core busy for as long as they are looked at: pools spin for a while before they rest."""
    for _ in range(_MOST_WINDOWS):
        start, spent = time.monotonic(), time.process_time()
        time.sleep(_WINDOW_SECONDS)
        if time.process_time() - spent < _QUIET_SHARE * (time.monotonic() - start):
            return False
    return True
