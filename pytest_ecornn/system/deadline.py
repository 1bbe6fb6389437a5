"""Ends this process when a row takes too long. Time for which it waits for the machine does not count."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

# Python's timer cannot run while native code keeps the interpreter's lock; after so much longer faulthandler ends the process.
GRACE_SECONDS = 2.0


class Timeout:
    """Time limit for one row after the other. When it expires, it writes the stacks of all threads to the file `stack`."""

    def __init__(self, stack: IO[str]):
        self._file = stack
        self._timer: threading.Timer | None = None
        self._left = self._since = 0.0
        self._end: Callable[[], object] = lambda: None

    def start(self, seconds: float, end: Callable[[], object]) -> None:
        """`end` is called, by another thread, after so many seconds; it ought not to return."""
        self._left, self._end = seconds, end
        self._run()

    def stop(self) -> None:
        if self._timer is not None:
            faulthandler.cancel_dump_traceback_later()
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        is_running = self._timer is not None
        self.stop()
        self._left -= time.monotonic() - self._since
        try:
            yield
        finally:
            if is_running:
                self._run()

    def _run(self) -> None:
        self._since = time.monotonic()
        left = max(self._left, 0.0)
        self._timer = threading.Timer(left, self._expire)
        self._timer.daemon = True
        self._timer.start()
        faulthandler.dump_traceback_later(left + GRACE_SECONDS, exit=True, file=self._file)

    def _expire(self) -> None:
        self._file.write("Timeout (as faulthandler calls it)\n")
        self._file.flush()
        faulthandler.dump_traceback(self._file)
        self._end()
