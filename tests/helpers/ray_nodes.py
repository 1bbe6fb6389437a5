"""A Ray cluster of several nodes on this machine, a core each, which ends with the process that started it.

As a program it holds the cluster. Its standard input says what happens: a line `add` or `kill`, and its end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

_STORE_BYTES = 80 * 2**20
# A killed node is noticed in two seconds, not in half a minute.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "2",
    "RAY_worker_niceness": "0",  # at Ray's 15 they get little of a core beside other tests
}  # fmt: skip


class RayNodes:
    """Nodes that run rows, beside a head that runs none."""

    def __init__(self, count: int):
        command = [sys.executable, __file__, str(count)]
        environment = {**os.environ, **_SETTINGS}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.address = self._answer()

    def add(self) -> None:
        """Adds a node, in place of one that was killed."""
        self._do("add")

    def kill(self) -> None:
        """Kills the oldest node and all that runs there, without notice."""
        self._do("kill")

    def _do(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        assert self._answer() == order

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, self._process.communicate()[1][-2000:]
        return line

    def shut_down(self) -> None:
        self._process.communicate(timeout=60)


@contextlib.contextmanager
def ray_nodes(count: int) -> Iterator[RayNodes]:
    nodes = RayNodes(count)
    try:
        yield nodes
    finally:
        nodes.shut_down()


def _hold(count: int, folder: str) -> None:
    """Each node has a folder of its own, as on a host of its own: nodes of one folder take each other's code away."""
    from ray.cluster_utils import Cluster

    def add() -> Any:
        own = tempfile.mkdtemp(dir=folder)
        return cluster.add_node(wait=False, num_cpus=1, object_store_memory=_STORE_BYTES, temp_dir=own)

    head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [add() for _ in range(count)]
        cluster.wait_for_nodes()
        print(cluster.address, flush=True)
        for order in map(str.strip, sys.stdin):
            if order == "add":
                nodes.append(add())
                cluster.wait_for_nodes()
            else:
                cluster.remove_node(nodes.pop(0), allow_graceful=False)
            print(order, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as _folder:
        _hold(int(sys.argv[1]), _folder)
