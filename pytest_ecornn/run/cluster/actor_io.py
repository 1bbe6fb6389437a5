"""execnet's connection to a worker on another host: bytes that a Ray actor hands on."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from pytest_ecornn.run.cluster.worker_host import Ending, Output

_MAX_WRITES = 64  # on their way


class ActorIO:
    """A connection as execnet uses it. name: the worker's. on_end: called with its ending before its end is read.

    is_host_lost: whether the actor ended and not its worker alone.
    """

    def __init__(self, actor: Any, name: str, execmodel: Any, on_end: Callable[[Ending], None]):
        self.execmodel = execmodel
        self.is_host_lost = False
        self._actor, self._name, self._on_end = actor, name, on_end
        self._buffer, self._lock = bytearray(), threading.Lock()
        self._number, self._writes = 0, deque[Any]()
        self._status: int | None = None
        self._reading = actor.read.remote(name)

    def read(self, numbytes: int) -> bytes:
        """The next bytes. Raises EOFError where the worker or its host has ended."""
        while len(self._buffer) < numbytes:
            self._receive()
        data = bytes(self._buffer[:numbytes])
        del self._buffer[:numbytes]
        return data

    def _receive(self) -> None:
        if self.is_host_lost:
            raise EOFError("the host is lost")
        output: Output = self._answer(self._reading)
        if output.error:
            sys.stderr.write(output.error.decode(errors="replace"))
            sys.stderr.flush()
        self._buffer += output.out
        if output.is_ended:
            ending: Ending = self._answer(self._actor.ending.remote(self._name))
            self._status = ending.status
            self._on_end(ending)
            raise EOFError("the worker has ended")
        self._reading = self._actor.read.remote(self._name)

    def _answer(self, reference: Any) -> Any:
        """Raises EOFError where the actor does not answer any more."""
        try:
            return ray.get(reference)
        except RayError as error:
            self.is_host_lost = True
            raise EOFError("the host is lost") from error

    def write(self, data: bytes | None) -> None:
        """Sends the bytes; None closes the worker's input. Raises OSError where the host is lost."""
        with self._lock:
            self._writes.append(self._actor.write.remote(self._name, self._number, data))
            self._number += 1
            if len(self._writes) <= _MAX_WRITES:
                return
            try:
                ray.get(self._writes.popleft())
            except RayError as error:
                raise OSError("the host is lost") from error

    def close_write(self) -> None:
        self.write(None)

    def close_read(self) -> None:
        """Nothing to close: the actor goes on."""

    @property
    def popen(self) -> ActorIO:
        """The worker's process, as far as its status is asked for."""
        return self

    def wait(self, timeout: float = 0.0) -> int | None:
        """The worker's exit status, once its end has been read; None where its host is lost."""
        return self._status

    def kill(self) -> None:
        if not self.is_host_lost:
            self._actor.kill.remote(self._name)
