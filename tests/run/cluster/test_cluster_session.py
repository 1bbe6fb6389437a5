"""Judgement of workers that were lost with their hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ecornn.run.cluster.cluster_session import ClusterController
from pytest_ecornn.run.cluster.ray_cluster import Place
from pytest_ecornn.run.cluster.worker_host import HostInfo
from pytest_ecornn.verification.verification import rerun_command
from tests.helpers import samples

NODE = f"suites/test_benchmark.py::test_benchmark[mine-{samples.CASE}]"


def lost_node(cores: int = 8, gpus: int = 0, sharers: int = 2) -> Any:
    place = Place("a", 0, 1.0, gpus, sharers, 2**30)
    host = SimpleNamespace(place=place, info=HostInfo("0", "a", cores, "/tmp/there", "/code", "/package", "/own", "/suites"))
    spec, io = SimpleNamespace(ray_host=host), SimpleNamespace(is_host_lost=True, popen=None)
    return SimpleNamespace(gateway=SimpleNamespace(id="gw0", spec=spec, _io=io), workerinput={"workercount": 5})


@pytest.fixture
def controller(tmp_path: Any) -> ClusterController:
    options = SimpleNamespace(timeout=5.0, memory_bytes=None, bench=False)
    implementation = SimpleNamespace(name="mine", path=tmp_path / "mine.py")
    item = SimpleNamespace(
        implementation=implementation,
        case=samples.CASE,
        rerun=lambda case, timed: rerun_command("mine", [case], is_timed=timed),
    )
    session = SimpleNamespace(shared_folder=tmp_path, options=options, implementations={}, item=lambda nodeid: item)
    return ClusterController(session)  # type: ignore[arg-type]


def test_a_row_is_run_again_until_it_has_lost_three_hosts(controller: ClusterController) -> None:
    for _ in range(2):
        controller.pytest_runtest_logstart(NODE)
        assert not controller.is_culprit(lost_node(), NODE)
        assert controller.should_rerun(NODE)
    controller.pytest_runtest_logstart(NODE)
    assert controller.is_culprit(lost_node(), NODE)
    assert f"mine on {samples.CASE}: was lost with its host 3 times" in controller._lost[NODE]


def test_lost_hosts_do_not_count_as_workers_that_die_idle(controller: ClusterController) -> None:
    for _ in range(9):
        controller.pytest_testnodedown(lost_node(), "Not properly terminated")
    assert controller._idle_deaths == 0


@pytest.mark.parametrize(
    ("is_timed", "gpus", "sharers", "expected"), [(False, 0, 2, 8), (True, 0, 1, 1), (True, 1, 4, 4), (False, 1, 4, 4)]
)
def test_a_worker_takes_its_share_of_the_cores_and_files_of_its_own_host(
    controller: ClusterController, is_timed: bool, gpus: int, sharers: int, expected: int
) -> None:
    controller._session.options.bench = is_timed  # type: ignore[misc]
    node = lost_node(gpus=gpus, sharers=sharers)
    controller.pytest_configure_node(node)
    given = node.workerinput
    assert (given["workercount"], given["ecornn_shared"], given["ecornn_memory"]) == (expected, "/tmp/there", 2**30)
