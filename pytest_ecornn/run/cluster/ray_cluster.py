"""A Ray cluster as a run uses it: connected to, its hosts started and kept an account of."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pytest_ecornn
from pytest_ecornn.run.cluster.travel import Folders, Travel
from pytest_ecornn.run.cluster.worker_host import MAX_CALLS, HostInfo, WorkerHost
from pytest_ecornn.system import machine

# Read when Ray is imported. A question after the end of a run must not start a cluster.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
import ray
import ray._private.worker as ray_worker
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_CONNECT_SECONDS = 5.0
_START_SECONDS, _MORE_SECONDS = 120.0, 20.0  # until the first host runs, and from then on until all do
_ANSWER_SECONDS = 60.0
_CLIENT = "ray://"
_TOKEN_HINT = "; is RAY_AUTH_MODE (token or disabled) the cluster's?"
_OF_THE_CHECKOUT = ("commit", "dirty", "benchmark_commit_info")  # in a fingerprint; no repository travels
_BYTES_EACH = 2 * 2**30  # of a worker that proves rows: torch and a case of the largest sets
_LOCAL_STORE_BYTES = 100 * 2**20  # hardly anything is put there


@dataclass(frozen=True)
class Place:
    """Room for one worker. cpus, gpus: what Ray keeps for it. sharers: places of its node. memory: its share, in bytes."""

    node: str
    number: int
    cpus: float
    gpus: int
    sharers: int
    memory: int


def places(nodes: Iterable[Mapping[str, Any]], on_gpu: bool, is_timed: bool) -> list[Place]:
    """The places of the nodes that live, as ray.nodes() describes them, the first place of each node first.

    A place is a GPU; for proofs on a CPU a core; for times on a CPU a host.
    """
    every = [place for node in nodes if node["Alive"] for place in _of_node(node, on_gpu, is_timed)]
    return sorted(every, key=lambda place: place.number)


def _of_node(node: Mapping[str, Any], on_gpu: bool, is_timed: bool) -> list[Place]:
    resources = node["Resources"]
    cpus, memory = int(resources.get("CPU", 0)), int(resources.get("memory", 0))
    if on_gpu:
        count, cpus_each = int(resources.get("GPU", 0)), 0.0
    elif is_timed:  # no other work of Ray's beside it
        count, cpus_each = min(1, cpus), float(cpus)
    else:
        count, cpus_each = min(cpus, max(1, memory // _BYTES_EACH)), 1.0
    return [Place(node["NodeID"], i, cpus_each, int(on_gpu), count, memory // count) for i in range(count)]


@dataclass(frozen=True)
class Host:
    """An actor that runs, and the place that it holds."""

    actor: Any
    place: Place
    info: HostInfo

    @property
    def folders(self) -> Folders:
        return Folders(self.info.root, self.info.package, self.info.implementations, self.info.suites)

    def ask(self, method: str, *arguments: object) -> Any:
        """The answer of the actor's method. Raises RayError where the host is lost or does not answer within a minute."""
        return ray.get(getattr(self.actor, method).remote(*arguments), timeout=_ANSWER_SECONDS)


class RayCluster:
    """Raises pytest.UsageError, in one line, where there is no such cluster."""

    def __init__(self, address: str, travel: Travel, on_gpu: bool, is_timed: bool):
        self._address, self._on_gpu, self._is_timed = address, on_gpu, is_timed
        self._travel, self._machine = travel, dict[str, Any]()
        self._unlike, self._failure = set[Place](), ""
        _check_reachable(address)
        ray_worker.print_to_stdstream = _drop  # logs of nodes that were lost
        local: dict[str, Any] = {"object_store_memory": _LOCAL_STORE_BYTES} if address == "local" else {}
        settings = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False, **local}
        try:
            with warnings.catch_warnings(action="ignore"), _quiet(), tempfile.TemporaryDirectory() as folder:
                ray.init(address=address, runtime_env=travel.runtime_env(Path(folder)), **settings)
        except Exception as error:
            raise usage_error(address, error, _TOKEN_HINT) from error
        self.hosts: dict[Place, Host] = {}

    def places(self) -> list[Place]:
        return places(ray.nodes(), self._on_gpu, self._is_timed)

    def start(self) -> dict[str, Any]:
        """Starts an actor in each place that is free now and returns the fingerprint of their machine.

        Raises pytest.UsageError where none can be had, or where times would be those of unlike machines.
        """
        wanted = self.places()
        if not wanted:
            needed = "a GPU" if self._on_gpu else "a core"
            raise self._error(f"expected a node with {needed}, got {self._resources()}")
        hosts = self._started(wanted, _START_SECONDS)
        if not hosts:
            reason = self._failure or f"none of {len(wanted)} places was free within {_START_SECONDS:g} s"
            raise self._error(f"expected a worker that starts, got: {reason}")
        self._machine, *others = self._fingerprints(hosts if self._is_timed else hosts[:1])
        for other in others:
            if differences := machine.same_machine(self._machine, other):
                raise self._error(f"times of unlike hosts cannot stand side by side ({'; '.join(differences)})")
        return {name: value for name, value in self._machine.items() if name not in _OF_THE_CHECKOUT}

    def start_missing(self) -> list[Host]:
        """Starts an actor in each place that has none and is free; where rows are timed, on machines like the others."""
        free = set(self.places()) - self.hosts.keys() - self._unlike
        hosts = self._started(sorted(free, key=lambda place: place.number), _MORE_SECONDS)
        if self._is_timed and hosts:
            for host, fingerprint in zip(hosts, self._fingerprints(hosts), strict=True):
                if machine.same_machine(self._machine, fingerprint):
                    self._unlike.add(self.hosts.pop(host.place).place)
                    ray.kill(host.actor)
        return [host for host in hosts if host.place in self.hosts]

    def _fingerprints(self, hosts: list[Host]) -> list[dict[str, Any]]:
        asked = [host.actor.fingerprint.remote(self._travel.variables(host.folders)) for host in hosts]
        try:
            return [json.loads(text) for text in ray.get(asked)]
        except RayError as error:
            raise usage_error(self._address, error) from error

    def lose(self, host: Host) -> None:
        """Gives up a host that does not answer; its place is free once more."""
        if self.hosts.pop(host.place, None) is not None:
            ray.kill(host.actor)

    def _started(self, wanted: Iterable[Place], seconds: float) -> list[Host]:
        actors = {_create(place): place for place in wanted}
        infos = {actor.describe.remote(): actor for actor in actors}
        ready, late = ray.wait(list(infos), num_returns=len(infos), timeout=_MORE_SECONDS) if infos else ([], [])
        if not ready and late:
            ready, late = ray.wait(list(infos), num_returns=1, timeout=seconds - _MORE_SECONDS)
        for reference in late:
            ray.kill(infos[reference])
        hosts = [self._host(infos[reference], actors[infos[reference]], reference) for reference in ready]
        return [host for host in hosts if host is not None]

    def _host(self, actor: Any, place: Place, reference: Any) -> Host | None:
        """The host; None where its node was lost meanwhile, or lacks what a worker needs."""
        try:
            info = HostInfo(*ray.get(reference))
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise usage_error(self._address, error) from error
        except RayError as error:
            self._failure = str(error).strip().rpartition("\n")[2].strip() + _TOKEN_HINT
            return None
        if info.version != pytest_ecornn.__version__:
            expected = f"pytest-ecornn {pytest_ecornn.__version__} on {info.name}"
            raise self._error(f"expected {expected}, got {info.version}")
        self.hosts[place] = Host(actor, place, info)
        return self.hosts[place]

    def _error(self, text: str) -> pytest.UsageError:
        return pytest.UsageError(f"--ecornn-ray {self._address}: {text}")

    def _resources(self) -> str:
        """The cluster's resources in words."""
        known = {name: ray.cluster_resources().get(name, 0) for name in ("CPU", "GPU")}
        return ", ".join(f"{count:g} {name}" for name, count in known.items())

    def shut_down(self) -> None:
        """Ends the actors, and the cluster where this process started it."""
        closing = [host.actor.close.remote() for host in self.hosts.values()]
        with contextlib.suppress(RayError, GetTimeoutError):
            ray.wait(closing, num_returns=len(closing), timeout=_CONNECT_SECONDS) if closing else None
        ray.shutdown()


def _create(place: Place) -> Any:
    strategy = NodeAffinitySchedulingStrategy(place.node, soft=False)
    options = {"num_cpus": place.cpus, "num_gpus": place.gpus, "scheduling_strategy": strategy}
    return ray.remote(WorkerHost).options(max_concurrency=MAX_CALLS, **options).remote()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drops what libraries write to the standard error meanwhile, past Python too: Ray tells each of its attempts."""
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _drop(data: object, ignore_prefix: bool) -> None:
    """Prints nothing: Ray has no setting for this."""


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    if address == "local":
        return
    try:
        server = address.removeprefix(_CLIENT) if address.startswith(_CLIENT) else canonicalize_bootstrap_address(address)
        if server is None:
            raise pytest.UsageError(f"--ecornn-ray {address}: expected a Ray cluster on this host, got none: ray start --head")
        name, _, port = server.rpartition(":")
        socket.create_connection((name.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except ValueError as error:
        expected = "auto, local, host:port or ray://host:port"
        raise pytest.UsageError(f"--ecornn-ray: expected {expected}, got {address!r}") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise pytest.UsageError(f"--ecornn-ray {address}: expected a Ray cluster there, got: {reason}") from error


def usage_error(address: str, error: Exception, hint: str = "") -> pytest.UsageError:
    """Ray's error in one line."""
    return pytest.UsageError(f"--ecornn-ray {address}: {' '.join(str(error).split()) or type(error).__name__}{hint}")
