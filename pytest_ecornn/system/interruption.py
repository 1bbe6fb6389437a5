"""SIGTERM ends a run as Ctrl-C does, with a report; a KeyboardInterrupt that code raises does not."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import pytest


def handler(config: pytest.Config) -> Any:
    """Returns a signal handler that raises KeyboardInterrupt; under pytest-xdist it queues an event that raises it.

    An exception raised anywhere would sometimes hit the queue's lock released but not yet waited for, and be lost.
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


class RaisedInterrupt(Exception):
    """KeyboardInterrupt that code raised, and no signal."""


@contextmanager
def raised_as_error() -> Iterator[None]:
    """Raises RaisedInterrupt in place of a KeyboardInterrupt that no signal has caused.

    Raises KeyboardInterrupt at its end where a signal's own was lost: in a callback of the garbage collector, say.
    """
    with _recorded_signals() as (delivered, signals):
        try:
            yield
            if signals:
                raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            if delivered:
                raise
            own = RaisedInterrupt("code raised KeyboardInterrupt, and nobody pressed Ctrl-C")
            raise own.with_traceback(error.__traceback__) from None


@contextmanager
def _recorded_signals() -> Iterator[tuple[list[int], list[int]]]:
    """Yields the numbers of the signals delivered within it that end a run, and of those that raised KeyboardInterrupt.

    Python delivers them to the main thread alone.
    """
    delivered: list[int] = []
    signals: list[int] = []

    def recording(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
        def record(number: int, frame: FrameType | None) -> None:
            delivered.append(number)
            try:
                handler(number, frame)
            except KeyboardInterrupt:
                signals.append(number)
                raise

        return record

    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, recording(handler))
    try:
        yield delivered, signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
