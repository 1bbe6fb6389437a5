"""SIGTERM ends a run as Ctrl-C does, with a report."""

from __future__ import annotations

import _thread
import signal
from types import FrameType
from typing import Any, NoReturn

import pytest


def handler(config: pytest.Config) -> Any:
    """What raises KeyboardInterrupt; where pytest-xdist hands out rows, from among the events that it takes from its queue.

    Raised wherever it may be, it would now and then find the queue's lock released but not yet waited for, and be lost.
    """
    distributed = config.pluginmanager.getplugin("dsession")
    if distributed is None:
        return signal.default_int_handler
    distributed.worker_interrupted = _interrupt

    def announce(number: int, frame: FrameType | None) -> None:
        _thread.start_new_thread(distributed.queue.put, (("interrupted", {}),))  # this thread may have the queue's lock

    return announce


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
