"""The Ray actor of one place: it runs pytest-xdist's workers on its host, one after the other, and hands on their bytes.

It imports neither torch nor pytest, so its process stays small.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import pytest_ecornn
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE, SUITES
from pytest_ecornn.system.scratch import Scratch

MAX_CALLS = 8  # at once: a long read, a write, and questions
_CHUNK_BYTES = 64 * 1024  # below what Ray puts into its object store
_POLL_SECONDS, _GATHER_SECONDS = 20.0, 0.002
_KILLED_SECONDS = 2.0
_KILLS = (-9, -15)
_LAST_ERROR_SECONDS = 0.5  # for what a worker wrote before its end
_MAX_ERROR_CHARS = 300
_BOOTSTRAP = "import sys;exec(eval(sys.stdin.readline()))"  # execnet's
_FINGERPRINT = (
    "import json, pathlib; from pytest_ecornn.system import machine; print(json.dumps(machine.fingerprint(pathlib.Path.cwd())))"
)
_SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")


class HostInfo(NamedTuple):
    """version: the package's. shared: a folder for the files of its workers. The rest: where the code lies."""

    version: str
    name: str
    cores: int
    shared: str
    root: str
    package: str
    implementations: str
    suites: str


class Output(NamedTuple):
    """Bytes of a worker's standard output and error; is_ended when there will be no more."""

    out: bytes
    error: bytes
    is_ended: bool


class Ending(NamedTuple):
    """status: a worker's exit status. files: its crash report, by name."""

    status: int | None
    files: dict[str, str]


class WorkerHost:
    """Holds workers by name: one that runs, and those that have ended and are still read."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._workers: dict[str, _Worker] = {}

    def describe(self) -> HostInfo:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        folders = (os.getcwd(), str(PACKAGE), str(IMPLEMENTATIONS), str(SUITES))
        return HostInfo(pytest_ecornn.__version__, os.uname().nodename, cores, str(self._scratch.path), *folders)

    def fingerprint(self, variables: Mapping[str, str]) -> str:
        """The machine as a worker would see it, in JSON. Raises RuntimeError where a worker could not run here."""
        command = [sys.executable, "-c", _FINGERPRINT]
        done = subprocess.run(command, env=_environment(variables), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(" ".join(done.stderr.split())[-_MAX_ERROR_CHARS:])
        return done.stdout.strip().rpartition("\n")[2]

    def start(self, worker: str, folder: str, variables: Mapping[str, str], files: Mapping[str, bytes]) -> None:
        """Starts a worker in the folder, relative to the root. files: what its shared folder is to hold, by name."""
        for name, content in files.items():
            (self._scratch.path / name).write_bytes(content)
        self._workers[worker] = _Worker(Path(folder), _environment(variables))

    def read(self, worker: str) -> Output:
        """Output of the worker since the last read, once there is any; empty after 20 s without."""
        return self._workers[worker].read()

    def write(self, worker: str, number: int, data: bytes | None) -> None:
        """Writes to the worker in the order of the numbers; None closes its input."""
        self._workers[worker].write(number, data)

    def ending(self, worker: str) -> Ending:
        """The end of the worker. One that was killed may have been so with its host, which then does not answer."""
        status = self._workers[worker].wait()
        if status in _KILLS:
            time.sleep(_KILLED_SECONDS)
        reports = [self._scratch.path / f"{worker}.json", self._scratch.path / f"{worker}.stack"]
        return Ending(status, {path.name: path.read_text(errors="replace") for path in reports if path.exists()})

    def kill(self, worker: str) -> None:
        self._workers[worker].process.kill()

    def ceilings(self) -> dict[str, str]:
        """Files of the ceilings that were measured here, by name."""
        return {path.name: path.read_text() for path in self._scratch.path.glob("ceilings-*.json")}

    def close(self) -> None:
        """Ends the workers and removes their files."""
        for worker in self._workers.values():
            worker.close()
        self._scratch.remove()


class _Worker:
    """A process and what it has written that nobody has read."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        pipe = subprocess.PIPE
        command = [sys.executable, "-u", "-c", _BOOTSTRAP]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        self._out, self._error, self._is_open = bytearray(), bytearray(), True
        self._changed, self._writing = threading.Condition(), threading.Lock()
        self._unwritten: dict[int, bytes | None] = {}
        self._next = 0
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._collectors = (
            threading.Thread(target=self._collect_output, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._collect, args=(self.process.stderr, self._error), daemon=True),
        )
        for collector in self._collectors:
            collector.start()

    def _collect_output(self, stream: IO[bytes]) -> None:
        """Its end is the worker's: processes that a row has left behind may keep the standard error open."""
        self._collect(stream, self._out)
        self._collectors[1].join(_LAST_ERROR_SECONDS)
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def _collect(self, stream: IO[bytes], into: bytearray) -> None:
        while data := os.read(stream.fileno(), _CHUNK_BYTES):
            with self._changed:
                into += data
                self._changed.notify_all()

    def read(self) -> Output:
        with self._changed:
            if not self._changed.wait_for(lambda: self._out or self._error or not self._is_open, _POLL_SECONDS):
                return Output(b"", b"", False)
            self._changed.wait(_GATHER_SECONDS)
            out, error = bytes(self._out[:_CHUNK_BYTES]), bytes(self._error[:_CHUNK_BYTES])
            del self._out[: len(out)], self._error[: len(error)]
            return Output(out, error, not (self._is_open or self._out or self._error))

    def write(self, number: int, data: bytes | None) -> None:
        """Ray may bring what was sent first last."""
        with self._writing, suppress(OSError, ValueError):  # a worker that has ended reads no more
            self._unwritten[number] = data
            while self._next in self._unwritten:
                part = self._unwritten.pop(self._next)
                self._next += 1
                self._write(part)

    def _write(self, data: bytes | None) -> None:
        assert self.process.stdin is not None
        if data is None:
            self.process.stdin.close()
            return
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(_KILLED_SECONDS)
        return None

    def close(self) -> None:
        """Ends the process. What it has started may hold its standard error open for longer."""
        self.process.kill()
        self.process.wait()
        for collector in self._collectors:
            collector.join(_KILLED_SECONDS)
        for stream, collector in zip((self.process.stdout, self.process.stderr), self._collectors, strict=True):
            if stream is not None and not collector.is_alive():
                stream.close()
        self.write(self._next, None)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This host's, without what Ray sets for its own, and with the run's; search paths of both."""
    own = {name: value for name, value in os.environ.items() if name not in _SET_BY_RAY}
    paths = [path for path in (variables.get("PYTHONPATH"), own.get("PYTHONPATH")) if path]
    return {**own, **variables, "PYTHONPATH": os.pathsep.join(paths)}
