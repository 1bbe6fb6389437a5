"""Kernels are compiled beside the calls that will run them, by threads of this process."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Protocol


class KernelSource(Hashable, Protocol):
    """What a kernel is compiled from: equal ones make the same kernel."""

    @property
    def is_compiled(self) -> bool:
        """Whether its machine code lies in the cache folder, or in this process."""

    def compile(self) -> None:
        """Returns when the kernel is compiled. Raises the compiler's error."""


class CompileThreads:
    """Threads that compile kernels into the cache folder beside the caller, and end when nothing is left to compile.

    NVRTC needs neither the device nor Python's lock, so a CUDA graph may be captured meanwhile. Numba holds Python's lock.
    """

    def __init__(self, threads: int):
        self._max_threads, self._running = threads, 0
        self._queue: deque[KernelSource] = deque()
        self._unfinished: set[KernelSource] = set()
        self._finished: set[KernelSource] = set()
        self._changed = threading.Condition()

    def compile(self, codes: Iterable[KernelSource]) -> None:
        """Compiles kernels at once. Returns when all are finished, whether they could be compiled or not."""
        codes = [*codes]
        self.add(codes)
        self.wait(codes)

    def add(self, codes: Iterable[KernelSource]) -> None:
        """Begins to compile what the cache folder lacks."""
        unknown = [code for code in dict.fromkeys(codes) if code not in self._unfinished and code not in self._finished]
        missing = [code for code in unknown if not code.is_compiled]
        with self._changed:
            self._finished.update(unknown)
            self._finished.difference_update(missing)
            self._queue.extend(missing)
            self._unfinished.update(missing)
            starting = min(self._max_threads - self._running, len(self._queue))
            self._running += starting
        for _ in range(starting):
            threading.Thread(target=self._run, name="pytest_ecornn compile").start()

    def is_compiling(self, codes: Iterable[KernelSource]) -> bool:
        """Whether some of them are not finished."""
        return not self._unfinished.isdisjoint(codes)

    @property
    def is_busy(self) -> bool:
        return bool(self._unfinished)

    def wait(self, codes: Iterable[KernelSource]) -> None:
        """Returns when none of them is being compiled."""
        awaited = set(codes)
        with self._changed:
            self._changed.wait_for(lambda: self._unfinished.isdisjoint(awaited))

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue or not threading.main_thread().is_alive():  # the process ends: it waits for one at most
                    self._running -= 1
                    self._unfinished.difference_update(self._queue)
                    self._queue.clear()
                    self._changed.notify_all()
                    return
                code = self._queue.popleft()
            with suppress(Exception):  # the call that launches the kernel compiles it again, and raises
                code.compile()
            with self._changed:
                self._unfinished.discard(code)
                self._finished.add(code)
                self._changed.notify_all()


def compile_threads() -> CompileThreads:
    """The threads of this process: as many as half the cores, at most eight."""
    return _threads_of(os.getpid())


@lru_cache(maxsize=1)
def _threads_of(process: int) -> CompileThreads:  # a forked process has no threads of its parent
    return CompileThreads(max(1, min(8, (os.cpu_count() or 1) // 2)))
