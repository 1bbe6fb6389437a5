"""Places for workers on a cluster's nodes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ecornn.run.cluster.ray_cluster import places

GIB = 2**30


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"memory": 64 * GIB, **resources}}


@pytest.mark.parametrize(
    ("on_gpu", "is_timed", "expected"),
    [
        (True, True, [("a", 0, 0.0, 1), ("a", 0, 0.0, 1)]),
        (False, True, [("a", 4.0, 4.0, 0), ("b", 2.0, 2.0, 0)]),
        (False, False, [("a", 1.0, 1.0, 0)] * 4 + [("b", 1.0, 1.0, 0)] * 2),
    ],
)
def test_a_place_for_each_gpu_or_else_each_core_or_where_times_are_taken_each_host(
    on_gpu: bool, is_timed: bool, expected: list[tuple[str, float, float, int]]
) -> None:
    found = places([node("a", CPU=4, GPU=2), node("b", CPU=2), node("gone", alive=False, CPU=8, GPU=8)], on_gpu, is_timed)
    assert sorted((place.node, place.cpus, place.gpus) for place in found) == sorted(
        (name, cpus, gpus) for name, _, cpus, gpus in expected
    )
    assert all(place.sharers == sum(other.node == place.node for other in found) for place in found)


def test_each_host_has_its_first_worker_before_any_has_its_second() -> None:
    found = places([node("a", CPU=2), node("b", CPU=2)], False, False)
    assert [(place.node, place.number) for place in found] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_workers_share_the_memory_and_are_fewer_where_it_is_small() -> None:
    found = places([node("a", CPU=16, memory=7 * GIB)], False, False)
    assert [place.memory for place in found] == [7 * GIB // 3] * 3
    assert len(places([node("a", CPU=16, memory=GIB)], False, False)) == 1


def test_a_node_without_a_core_or_a_gpu_has_no_place() -> None:
    assert places([node("head", CPU=0)], False, False) == []
    assert places([node("head", CPU=0)], False, True) == []
    assert places([node("a", CPU=8)], True, True) == []
