"""pytest-xdist's workers on the hosts of a cluster: made, addressed, and their crash reports brought here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import execnet
import pytest
from execnet import gateway_bootstrap
from ray.exceptions import RayActorError
from xdist.workermanage import Marker, NodeManager, WorkerController

from pytest_ecornn.run.cluster.actor_io import ActorIO
from pytest_ecornn.run.cluster.ray_cluster import Host
from pytest_ecornn.run.cluster.travel import Travel, translate
from pytest_ecornn.run.cluster.worker_host import Ending

PutEvent = Callable[[tuple[str, dict[str, Any]]], None]


def host_of(node: Any) -> Host:
    """The host of a worker."""
    host: Host = node.gateway.spec.ray_host
    return host


def is_host_lost(node: Any) -> bool:
    """Whether the worker has ended because its host did."""
    return bool(node.gateway._io.is_host_lost)


class ClusterWorkers(NodeManager):  # type: ignore[misc]
    """pytest-xdist's, with gateways by Ray actors. shared: the run's folder here. files: what each host's is to hold."""

    def __init__(self, config: pytest.Config, hosts: Iterable[Host], travel: Travel, shared: Path, files: dict[str, bytes]):
        super().__init__(config, specs=[])
        self.travel, self._shared, self._files = travel, shared, files
        self.specs = [self.spec_of(host) for host in hosts]

    def spec_of(self, host: Host) -> Any:
        """A new worker's. pytest-xdist copies it for the next worker of the same host."""
        spec: Any = execnet.XSpec("execmodel=main_thread_only//popen")
        spec.ray_host = host
        self.group.allocate_id(spec)
        return spec

    def setup_nodes(self, putevent: PutEvent) -> list[WorkerController]:
        self.config.hook.pytest_xdist_setupnodes(config=self.config, specs=self.specs)
        nodes = (self.setup_node(spec, putevent) for spec in self.specs)
        return [node for node in nodes if node is not None]

    def setup_node(self, spec: Any, putevent: PutEvent) -> WorkerController | None:
        """A worker that starts; None where its host is lost."""
        host: Host = spec.ray_host
        try:
            host.ask("start", spec.id, self.travel.started_in, self.travel.variables(host.folders), self._files)
        except RayActorError:
            return None
        io = ActorIO(host.actor, spec.id, self.group.execmodel, lambda ending: self._keep(ending, host))
        try:
            gateway: Any = gateway_bootstrap.bootstrap(io, spec)
            self.group._register(gateway)
            self.config.hook.pytest_xdist_newgateway(gateway=gateway)
            node = gateway.node = ClusterWorker(self, gateway, self.config, putevent)
            node.setup()
        except (EOFError, OSError):
            if not io.is_host_lost:
                raise
            return None
        return node

    def _keep(self, ending: Ending, host: Host) -> None:
        """Stores a crash report where the controller looks for it, with the paths of this host."""
        for name, text in ending.files.items():
            (self._shared / name).write_text(translate(text, host.folders, self.travel.here))


class ClusterWorker(WorkerController):  # type: ignore[misc]
    """pytest-xdist's, started with the paths of its own host."""

    def setup(self) -> None:
        """Starts pytest there as pytest-xdist does on another host, but without rsync."""
        self.gateway._rinfo()
        travel: Travel = self.nodemanager.travel
        folders = host_of(self).folders
        arguments = [translate(str(one), travel.here, folders) for one in self.config.invocation_params.args]
        self.config.hook.pytest_configure_node(node=self)
        self.channel = self.gateway.remote_exec(self.config.hook.pytest_xdist_getremotemodule())
        self.channel.send((self.workerinput, arguments, {}, None))
        self.channel.setcallback(self.process_from_remote, endmarker=Marker.END)
