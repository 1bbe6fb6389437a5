"""Registers the hooks of a run's processes: of the one that hands out rows to workers of pytest-xdist, and of such a worker."""

from __future__ import annotations

import pytest

from pytest_ecornn.run.process import worker_input
from pytest_ecornn.run.processes.controller import XdistController
from pytest_ecornn.run.processes.gpu_workers import GpuWorkers, uses_gpus
from pytest_ecornn.run.processes.worker import Worker, WorkerLimits
from pytest_ecornn.run.session import RunSession


def register(config: pytest.Config, session: RunSession) -> None:
    """Rows that are isolated or on a GPU cost their worker at most: another takes its place."""
    if hasattr(config, "workerinput"):
        if "ecornn_fatal" in worker_input(config):  # of a controller that judges dead workers
            worker = Worker(config, session)
            config.pluginmanager.register(worker, "ecornn-worker")
            if session.options.isolate:
                config.pluginmanager.register(WorkerLimits(config, session, worker.stack), "ecornn-worker-limits")
        return
    on_gpus = uses_gpus(session.devices)
    is_handed_out = session.options.isolate or (on_gpus and getattr(config.option, "dist", "no") == "load")
    if config.option.collectonly or not is_handed_out:
        return
    controller = XdistController(session)
    config.pluginmanager.register(controller, "ecornn-controller")
    if on_gpus:
        config.pluginmanager.register(GpuWorkers(session.devices, controller), "ecornn-gpu-workers")
