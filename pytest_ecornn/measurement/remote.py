"""A layer that another process times, in turn with this one's: of another revision, whose operators cannot be loaded twice.

That process draws contents of its own, reads its own clock and watches its own threads. It rests between its blocks.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.system import child_processes, faults
from pytest_ecornn.system.error_line import error_line

_END_SECONDS = 2.0  # for its exit status, once it has closed the connection


class RemoteError(Exception):
    """One line: what the process has raised, how it ended, or that it did not answer."""


class RemoteProcess:
    """Answers a request, a line of JSON, by another. `build` starts it, and anew after an error, which ends it.

    seconds: that an answer may take.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], seconds: float):
        self._command, self._environment, self._seconds = command, environment, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._built: tuple[str, ...] = ()
        self._errors = dict[tuple[str, ...], str]()  # by what was built

    def build(self, *layer: str) -> str:
        """Builds and verifies a layer in place of the last one. Returns why there is none, or its error since; else nothing."""
        self._built = layer
        if layer in self._errors:
            return self._errors[layer]
        try:
            if self._process is None:
                self._start()
            return str(self.ask("build", *layer))
        except OSError as error:  # no sockets as standard streams: Windows
            return f"its process cannot be started: {error_line(error)}"
        except RemoteError as error:
            return str(error)

    def ask(self, *request: Any) -> Any:
        """Raises RemoteError."""
        line = ""
        try:
            self._socket.sendall(f"{json.dumps(request)}\n".encode())
            line = self._answers.readline()
        except OSError:  # it has ended, or takes too long
            pass
        except BaseException:  # its answer would be taken for the next one's
            self.close()
            raise
        error, answer = json.loads(line) if line.endswith("\n") else (self._end(), None)
        if error:
            self._errors[self._built] = error
            self.close()
            raise RemoteError(error)
        return answer

    def _start(self) -> None:
        self._socket, others = socket.socketpair()
        self._socket.settimeout(self._seconds)
        self._answers, stream = self._socket.makefile(), others.fileno()
        with others:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=stream, stdout=stream, stderr=subprocess.DEVNULL
            )
        child_processes.of_run.add(self._process.pid)

    def _end(self) -> str:
        assert self._process is not None
        try:
            return f"its process {faults.exit_reason(self._process.wait(_END_SECONDS))}"
        except subprocess.TimeoutExpired:
            return f"its process did not answer within {self._seconds:g} s"

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._answers.close()
            self._socket.close()
            child_processes.of_run.discard(self._process.pid)
            self._process = None


@dataclass(eq=False)
class RemoteArm:
    """Takes turns as an arm does; its blocks are those of another process's arm: "called" or "replayed".

    lost, delayed: the shares of its last block's time that its threads waited, as `WatchedClock` there has seen them.
    """

    process: RemoteProcess
    name: str
    device: str
    is_training: bool
    arm: str = "called"
    calls: int = 1
    samples_us: list[float] = field(default_factory=list)
    lost: float = 0.0
    delayed: float = 0.0

    @property
    def candidate(self) -> Any:
        """Itself: of the layer nothing else is here."""
        return self

    def calibrate(self, clock: Timer) -> None:
        self.calls = self.process.ask("calibrate", self.arm)

    def block(self, clock: Timer, is_settled: bool) -> None:
        """Raises RemoteError."""
        sample_us, self.calls, self.lost, self.delayed = self.process.ask("block", self.arm, self.calls, is_settled)
        self.samples_us.append(sample_us)

    def fresh(self) -> RemoteArm:
        return replace(self, samples_us=[])

    def captured(self) -> tuple[list[RemoteArm], list[str]]:
        """The arm of its CUDA graphs; or none, and why."""
        missing = self.process.ask("capture")
        return [] if missing else [replace(self, arm="replayed", samples_us=[])], missing
