"""pytest-xdist's workers on the hosts of a cluster: made, addressed, and their crash reports brought here."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import execnet
import pytest
import ray
from execnet import gateway_bootstrap
from ray.exceptions import RayActorError, RayError
from xdist.workermanage import Marker, NodeManager, WorkerController

from pytest_ecornn.run.cluster.ray_cluster import Host
from pytest_ecornn.run.cluster.travel import Travel, translate
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
        arguments = [translate(str(argument), travel.here, folders) for argument in self.config.invocation_params.args]
        self.config.hook.pytest_configure_node(node=self)
        self.channel = self.gateway.remote_exec(self.config.hook.pytest_xdist_getremotemodule())
        self.channel.send((self.workerinput, arguments, {}, None))
        self.channel.setcallback(self.process_from_remote, endmarker=Marker.END)
