"""pytest-xdist's session with workers on the hosts of a Ray cluster: a lost host costs time, a new one is put to work."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayError
from xdist.dsession import DSession, TerminalDistReporter

from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.results import formatting, journal
from pytest_ecornn.run import measured_ceilings
from pytest_ecornn.run.cluster.cluster_workers import ClusterWorkers, host_of, is_host_lost
from pytest_ecornn.run.cluster.ray_cluster import Host, RayCluster
from pytest_ecornn.run.cluster.travel import Travel
from pytest_ecornn.run.processes.controller import XdistController
from pytest_ecornn.run.processes.gpu_workers import uses_gpus
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.system.last_words import CrashReport

_POLL_SECONDS = 2.0  # between looks for free places
# Hosts that may be lost at one row: then it is the row that costs them, as by using up their memory.
_MAX_HOSTS_LOST = 3


class ClusterSession(DSession):  # type: ignore[misc]
    """shared: the run's folder here. files: what each host's is to hold, by name."""

    def __init__(self, config: pytest.Config, cluster: RayCluster, travel: Travel, shared: Path, files: dict[str, bytes]):
        super().__init__(config)
        self._cluster, self._travel, self._shared, self._files = cluster, travel, shared, files
        self._ended = threading.Event()
        self._recruiter = threading.Thread(target=self._recruit, daemon=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._report_on_terminal()
        hosts = list(self._cluster.hosts.values())
        self.nodemanager = ClusterWorkers(self.config, hosts, self._travel, self._shared, self._files)
        nodes = self.nodemanager.setup_nodes(putevent=self.queue.put)
        self._active_nodes.update(nodes)
        self._session = session
        self.config.option.tx = ["popen"] * len(nodes)  # the scheduler waits for so many
        started = [host_of(node) for node in nodes]
        for host in hosts:
            if host not in started:
                self._cluster.lose(host)
        self._recruiter.start()

    def _report_on_terminal(self) -> None:
        """Shows the progress of workers, as pytest-xdist does, which is configured after the terminal."""
        self.terminal = self.config.pluginmanager.getplugin("terminalreporter")
        if self.terminal:
            self.terminal.showfspath = False
            self.trdist = TerminalDistReporter(self.config)
            self.config.pluginmanager.register(self.trdist, "terminaldistreporter")

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        if self._recruiter.is_alive():
            self._recruiter.join()
        for host in list(self._cluster.hosts.values()):
            with contextlib.suppress(RayError):
                for name, text in host.ask("ceilings").items():  # for the report: of several hosts the highest
                    measured_ceilings.store(self._shared / name, Ceilings.from_dict(json.loads(text)))
        super().pytest_sessionfinish()

    def loop_once(self) -> None:
        """Handles one event. Rows of a lost host may find all other workers at their end, or no other host."""
        if not self._active_nodes:
            self._start_again()
        while not self._active_nodes:
            name, arguments = self.queue.get()
            getattr(self, f"worker_{name}")(**arguments)
        super().loop_once()

    def _start_again(self) -> None:
        """Starts a worker on each host, whose last one has ended."""
        assert self.nodemanager is not None
        for gateway in self.nodemanager.group:
            gateway.exit()
        for host in list(self._cluster.hosts.values()):
            self.worker_hostready(host)
        if not self._active_nodes:
            self.report_line("\nno host is left: waiting for one; Ctrl-C ends the run, --ecornn-resume goes on from there")

    def _clone_node(self, node: Any) -> Any:
        """A new worker where the host is alive; otherwise the host is given up, and its rows go to others."""
        if not is_host_lost(node) and (clone := super()._clone_node(node)) is not None:
            return clone
        host = host_of(node)
        self._cluster.lose(host)
        left = formatting.count(len(self._cluster.hosts), "worker")
        self.report_line(f"\nlost host {host.info.name} of worker {node.gateway.id}: its rows go to others; {left} left")
        self._stop_waiting_for(node)
        return None

    def _stop_waiting_for(self, node: Any) -> None:
        """Begins with fewer workers, where not all had collected."""
        if self.sched.collection is None:
            self.sched.node2collection.pop(node, None)
            self.sched.numnodes = max(1, self.sched.numnodes - 1)
            if self.sched.nodes and self.sched.collection_is_completed:
                self.sched.schedule()

    def worker_hostready(self, host: Host) -> None:
        """Puts a host to work that came later, or once more."""
        assert self.nodemanager is not None
        if host in map(host_of, self._active_nodes):
            return
        node = self.nodemanager.setup_node(self.nodemanager.spec_of(host), self.queue.put)
        if node is None:
            self._cluster.lose(host)
            return
        self._active_nodes.add(node)
        self.report_line(f"\nhost {host.info.name} goes on with worker {node.gateway.id}")

    def _recruit(self) -> None:
        """Looks for places that nothing holds, in a thread of its own, until the run ends."""
        while not self._ended.wait(_POLL_SECONDS):
            with contextlib.suppress(RayError, pytest.UsageError):
                for host in self._cluster.start_missing():
                    self.queue.put(("hostready", {"host": host}))


class ClusterController(XdistController):
    """pytest's hooks in the process that hands rows out to hosts. A worker that is lost with its host does not cost its row."""

    def __init__(self, session: RunSession):
        super().__init__(session)
        self._lost_at = Counter[str]()

    @pytest.hookimpl(trylast=True)
    def pytest_configure_node(self, node: Any) -> None:
        super().pytest_configure_node(node)
        host, options = host_of(node), self._session.options
        sharers = host.place.sharers if options.bench or host.place.gpus else max(host.place.sharers, host.info.cores)
        node.workerinput["workercount"] = sharers  # by which a worker divides its host's cores
        node.workerinput["ecornn_shared"] = host.info.shared
        node.workerinput["ecornn_memory"] = options.memory_bytes or host.place.memory

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if not is_host_lost(node):
            super().pytest_testnodedown(node, error)

    def is_culprit(self, node: Any, nodeid: str) -> bool:
        """Whether the row ended its worker. The third host that is lost at it is its fault."""
        if is_host_lost(node):
            self._lost_at[nodeid] += 1
            if self._lost_at[nodeid] < _MAX_HOSTS_LOST:
                return False
        return super().is_culprit(node, nodeid)

    def _exit_of(self, node: Any, left: CrashReport) -> str:
        if is_host_lost(node):
            return f"was lost with its host {formatting.count(_MAX_HOSTS_LOST, 'time')}"
        return super()._exit_of(node, left)


def register_cluster(config: pytest.Config, session: RunSession) -> None:
    """Registers the hooks of the process that hands out rows, once its hosts run. Raises UsageError where there are none."""
    options = session.options
    travel = Travel(config, options.report)
    cluster = RayCluster(config.getoption("--ecornn-ray"), travel, uses_gpus(session.devices), options.bench)
    config.add_cleanup(cluster.shut_down)
    session.host_machine = cluster.start()
    begun = options.report / journal.NAME
    files = {journal.NAME: begun.read_bytes()} if options.resume and begun.exists() else {}
    config.pluginmanager.register(ClusterController(session), "ecornn-controller")
    config.pluginmanager.register(ClusterSession(config, cluster, travel, session.shared_folder, files), "dsession")
