"""Places for workers on the nodes of a Ray cluster: a GPU each, a core each for proofs on a CPU, a host each for times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Of a worker that proves rows: torch and a case of the largest sets.
_BYTES_EACH = 2 * 2**30


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
    """The places of the nodes that live, as ray.nodes() describes them: by node, the first place of each node first."""
    found = [place for node in nodes if node["Alive"] for place in _of_node(node, on_gpu, is_timed)]
    return sorted(found, key=lambda place: place.number)


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
