"""SIGTERM: KeyboardInterrupt; where rows are handed out to workers, when the next event is due, whatever the signal finds."""

from __future__ import annotations

import gc
import queue
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ecornn.system import interruption


def config(distributed: Any) -> Any:
    return SimpleNamespace(pluginmanager=SimpleNamespace(getplugin={"dsession": distributed}.get))


def test_in_one_process_it_is_raised_at_once() -> None:
    assert interruption.handler(config(None)) is signal.default_int_handler


@pytest.mark.parametrize("number", range(20))
def test_while_rows_are_handed_out_it_is_an_event(number: int) -> None:
    distributed = SimpleNamespace(queue=queue.Queue())
    before = signal.signal(signal.SIGTERM, interruption.handler(config(distributed)))
    timer = threading.Timer(number / 5_000, signal.pthread_kill, (threading.main_thread().ident, signal.SIGTERM))
    timer.start()
    try:
        while True:
            try:
                event, _ = distributed.queue.get(timeout=1e-4)  # as pytest-xdist does, more often
                break
            except queue.Empty:
                continue
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(KeyboardInterrupt):
        getattr(distributed, f"worker_{event}")()


def test_an_interrupt_that_a_callback_of_the_collector_lost_is_raised_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def interrupt(phase: str, info: dict[str, int]) -> None:
        signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), interruption.raised_as_error():
            gc.collect()
    finally:
        gc.callbacks.remove(interrupt)
    assert {one.exc_type for one in lost} == {KeyboardInterrupt}
