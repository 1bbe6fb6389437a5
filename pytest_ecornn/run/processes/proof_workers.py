"""Proves drawn cases and properties in processes beside this one, ahead of their turn: their rows are handed on in order.

A proof is mostly Python and compilers of one thread each, so cores are idle while one process does all of it. A row that a
worker loses, with its process or for lack of memory, is proven here. All workers have ended before anything is timed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.options import run_seed
from pytest_ecornn.run.processes.process import WORKER_PIPE, worker_input
from pytest_ecornn.system import machine, memory

if TYPE_CHECKING:
    from pytest_ecornn.run.items.items import CheckItem
    from pytest_ecornn.run.session import RunSession

Key = tuple[str, str, str]  # `Row.key`

_KINDS, TIMED_KINDS = ("drawn", "properties"), ("benchmark", "control")  # of rows
# By default: workers at most, cores and free memory of a GPU and of the host for each, and rows that make one worth its start.
_MAX_WORKERS, _CORES_EACH, _HOST_BYTES_EACH = 12, 4 / 3, 4 * 2**30
_GPU_BYTES_EACH, _ROWS_EACH = 3 * 2**30, 5
_SECONDS_TO_EXIT = 5.0


class Setup(NamedTuple):
    """First message to a worker. given: `worker_input`. threads: of torch on a CPU. devices: to be tried first."""

    given: dict[str, Any]
    threads: int
    devices: tuple[str, ...]


class Proof(NamedTuple):
    """A worker's answer: the row, None where it was lost, and what pytest captured meanwhile."""

    row: dict[str, Any] | None
    stdout: str = ""
    stderr: str = ""
    warnings: tuple[tuple[str, str, str, int], ...] = ()  # category, text, file, line

    def replay(self) -> Row | None:
        """The row; its output and warnings become those of the test that asks for it."""
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for category, text, file, line in self.warnings:
            kind = getattr(__import__("builtins"), category, UserWarning)
            warnings.warn_explicit(text, kind, file, line)
        return None if self.row is None else Row.from_dict(self.row)


@dataclass
class _Worker:
    """key: of the row that it is at, or is to begin with; None where it has nothing to do."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    is_ready: bool = False  # it has collected the items
    key: Key | None = None

    def wait(self) -> None:
        """Waits for the worker to exit, as it does once its pipe is closed. Kills it after `_SECONDS_TO_EXIT`."""
        try:
            self.process.wait(_SECONDS_TO_EXIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class ProofWorkers:
    """The workers of one run. Without any, `row` always returns None."""

    _workers: list[_Worker] = field(default_factory=list)
    _ending: list[_Worker] = field(default_factory=list)
    _pending: deque[Key] = field(default_factory=deque)
    _proofs: dict[Key, Proof] = field(default_factory=dict)

    def start(self, keys: Iterable[Key], count: int, config: pytest.Config, setup: Setup) -> None:
        """Starts `count` workers, which collect the same items as this process, to prove those of the keys."""
        self._pending.extend(keys)
        self._workers = [_start(config, setup) for _ in range(count)]
        for worker in list(self._workers):
            self._give(worker)

    def row(self, key: Key) -> Row | None:
        """The row of that key from a worker, waited for; None where this process is to prove it."""
        self._exchange(0.0)
        while key in self._pending or any(worker.key == key for worker in self._workers):
            if not self._workers:
                self._pending.remove(key)
                return None
            self._exchange(None)
        proof = self._proofs.pop(key, None)
        return None if proof is None else proof.replay()

    def _exchange(self, timeout: float | None) -> None:
        """Takes in what workers have to say, waiting for it so long, and gives each that is idle the next row or its leave."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), timeout):
            assert isinstance(pipe, Connection)
            self._receive(pipes[pipe])
        for worker in [worker for worker in self._workers if worker.key is None]:
            self._give(worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):  # it has died, and its row with it
            self._remove(worker)
            return
        if not worker.is_ready:
            worker.is_ready = True
        elif worker.key is not None:
            self._proofs[worker.key], worker.key = answer, None

    def _give(self, worker: _Worker) -> None:
        """The next row, or its leave where there is none."""
        try:
            if self._pending:
                worker.pipe.send(self._pending[0])
                worker.key = self._pending.popleft()
                return
        except OSError:
            pass
        self._remove(worker)

    def _remove(self, worker: _Worker) -> None:
        worker.pipe.close()
        self._workers.remove(worker)
        self._ending.append(worker)

    def stop(self) -> None:
        """Ends all workers, whatever they are at."""
        self._pending.clear()
        for worker in list(self._workers):
            worker.process.kill()
            self._remove(worker)
        while self._ending:
            self._ending.pop().wait()


def _start(config: pytest.Config, setup: Setup) -> _Worker:
    """A process that runs pytest with the same arguments, modules found where this process finds them."""
    ours, theirs = Pipe()
    code = f"import sys; sys.path[:] = {sys.path!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *config.invocation_params.args, "-p", "pytest_ecornn.run.processes.proof_worker"]
    process = subprocess.Popen(
        command, cwd=config.invocation_params.dir, env={**os.environ, WORKER_PIPE: str(theirs.fileno())},
        pass_fds=[theirs.fileno()], start_new_session=True,  # Ctrl-C is ours to heed
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()
    ours.send(setup)
    return _Worker(process, ours)


class Starting:
    """pytest's hooks that start the workers once it is known which rows there are, and end them with the run."""

    def __init__(self, session: RunSession):
        self._session, self._proof_workers, self._count = session, session.proof_workers, session.options.proof_workers

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        cases = {key: device for item in session.items for key, device in provable(item)}
        cases = {key: device for key, device in cases.items() if key not in self._session.finished}
        devices = tuple(sorted({device for device in cases.values() if device.startswith("cuda")}))
        count = default_count(len(cases), devices) if self._count is None else min(self._count, len(cases))
        if count:
            threads = max(1, machine.usable_cores() // (count + 1))
            given: dict[str, Any] = {"ecornn_shared": self._session.shared_folder, "ecornn_run": self._session.lock.run}
            run_seed.pass_on(session.config, given)
            worker_setup = Setup(given, threads, devices)
            self._proof_workers.start(cases, count, session.config, worker_setup)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Leaves a row that is timed alone on the machine, in whatever order rows come."""
        if any(one.kind in TIMED_KINDS for one in _items(item)):
            self._proof_workers.stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._proof_workers.stop()


def default_count(rows: int, devices: tuple[str, ...]) -> int:
    """How many workers prove so many rows: none without a GPU, whose times would not profit, else what there is room for."""
    if not devices or not torch.cuda.is_available():
        return 0
    free = min(torch.cuda.mem_get_info(device)[0] for device in devices)
    count = min(most_workers(free), rows // _ROWS_EACH)
    return count if count > 1 else 0  # one alone would do what this process can


def most_workers(gpu_bytes: int, gpus: int = 1) -> int:
    """Returns for how many workers each of several GPUs of so many bytes, and its share of the host, have room."""
    on_host = (memory.available_bytes() or 0) // _HOST_BYTES_EACH // gpus
    on_cores = int(machine.usable_cores() / _CORES_EACH) // gpus
    return min(_MAX_WORKERS, on_cores, on_host, gpu_bytes // _GPU_BYTES_EACH)


def provable(item: pytest.Item) -> Iterator[tuple[Key, str]]:
    """The key and the device of the row that a test proves of drawn cases."""
    for one in _items(item):
        if one.kind in _KINDS and not getattr(one, "is_fixed", False):
            yield one.empty_row().key, one.case.device


def _items(item: pytest.Item) -> list[CheckItem]:
    """The items that a test of ours runs; empty for other tests."""
    from pytest_ecornn.run.items.items import CheckItem

    given = getattr(item, "callspec", None)
    return [one for one in given.params.values() if isinstance(one, CheckItem)] if given else []


def is_possible(config: pytest.Config) -> bool:
    """Whether another process can collect what this one does, and is not asked for by other means."""
    setting = config.option
    is_spread = bool(worker_input(config)) or getattr(setting, "dist", "no") != "no"
    is_watched = setting.collectonly or setting.usepdb or setting.trace
    return sys.platform != "win32" and not (is_spread or is_watched or config.invocation_params.plugins)
