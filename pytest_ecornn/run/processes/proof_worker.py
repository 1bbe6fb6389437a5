"""A process of `proof_workers`: a pytest plugin that runs the items it is asked for, one at a time, and answers with rows."""

from __future__ import annotations

import os
import select
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from pytest_ecornn.run.processes.process import WORKER_PIPE, exit_now
from pytest_ecornn.run.processes.proof_workers import Proof, Setup, provable
from pytest_ecornn.system import faults


class ProofWorker:
    """Its pipe brings the setup first, then keys; back go an empty answer once all is collected, and a Proof for each key."""

    def __init__(self, pipe: Connection):
        self._pipe = pipe
        self.setup: Setup = pipe.recv()
        self._proof, self._warnings = Proof(None), list[tuple[str, str, str, int]]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Does not return: nothing that pytest writes at the end of a run is this process's to write."""
        threading.Thread(target=_exit_with, args=(self._pipe.fileno(),), daemon=True).start()
        torch.set_num_threads(self.setup.threads)
        for device in self.setup.devices:
            torch.zeros(1, device=device)
        items = {key: (item, device) for item in session.items for key, device in provable(item)}
        self._pipe.send(None)
        while True:
            self._answer(*items[self._pipe.recv()])

    def _answer(self, item: pytest.Item, device: str) -> None:
        """A row that has poisoned this process's CUDA context has failed; one that lacked memory may find it elsewhere."""
        self._proof, self._warnings = Proof(None), []
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        is_spoilt = item.config.pluginmanager.getplugin("ecornn-running").session.process.is_spoilt
        if not is_spoilt or faults.sticky_cuda_error(device):
            self._pipe.send(self._proof._replace(warnings=tuple(self._warnings)))
        if is_spoilt:
            exit_now(1)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "ecornn_row"):
            self._proof = Proof(report.ecornn_row, report.capstdout, report.capstderr)

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        one = warning_message
        self._warnings.append((one.category.__name__, str(one.message), one.filename, one.lineno))


def _exit_with(pipe: int) -> None:
    """Ends this process, whatever it is at, when the other end of the pipe is closed."""
    closed = select.poll()
    closed.register(pipe, 0)
    closed.poll()
    exit_now(1)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    worker = ProofWorker(Connection(int(os.environ.pop(WORKER_PIPE))))
    early_config.ecornn_worker = worker.setup.given  # type: ignore[attr-defined]
    early_config.pluginmanager.register(worker, "ecornn-proof-worker")
