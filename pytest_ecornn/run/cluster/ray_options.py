"""The option --ecornn-ray: what goes with it, and the plugins of a run on a cluster.

It is read before pytest-xdist reads its options, so neither torch nor Ray here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ecornn.run.processes import isolation

if TYPE_CHECKING:
    from pytest_ecornn.run.hooks.running import RunPlugin


def configure_options(config: pytest.Config) -> None:
    """Sets what pytest-xdist needs. Raises UsageError for what cannot go with a cluster."""
    isolation.require_plugins(config, "--ecornn-ray")
    if hasattr(config, "workerinput"):
        isolation.limit_rows(config)
        return
    if importlib.util.find_spec("ray") is None:
        raise pytest.UsageError("--ecornn-ray needs Ray: pip install 'pytest-ecornn[ray]'")
    if given := next(_given_beside(config), ""):
        raise pytest.UsageError(f"--ecornn-ray places workers itself: leave out {given}")
    if config.getoption("--ecornn-compare"):
        raise pytest.UsageError("--ecornn-ray: leave out --ecornn-compare, which measures rows again in this process")
    for device in config.getoption("--ecornn-device"):
        if device.startswith("cuda:"):
            raise pytest.UsageError(f"--ecornn-ray gives each worker one GPU: expected --ecornn-device cuda, got {device}")
    isolation.restart_workers(config)
    config.option.dist = "load"


def _given_beside(config: pytest.Config) -> Iterator[str]:
    """Options that place workers too, as given."""
    setting = config.option
    if setting.numprocesses is not None:
        yield f"-n {setting.numprocesses}"
    if setting.dist != "no":
        yield f"--dist {setting.dist}"
    if setting.tx:
        yield f"--tx {setting.tx[0]}"
    yield from (flag for flag, is_given in (("-d", setting.distload), ("--pdb", setting.usepdb)) if is_given)


def register_cluster(config: pytest.Config, running: RunPlugin) -> None:
    """Registers the hooks of the process that hands out rows, once its hosts run. Raises UsageError where there are none."""
    from pytest_ecornn.results import journal
    from pytest_ecornn.run.cluster.cluster_controller import ClusterController
    from pytest_ecornn.run.cluster.cluster_session import ClusterSession
    from pytest_ecornn.run.cluster.ray_cluster import RayCluster
    from pytest_ecornn.run.cluster.travel import Travel

    session, options = running.session, running.session.options
    travel = Travel(config, options.report)
    on_gpu = any(device.startswith("cuda") for device in session.devices)
    cluster = RayCluster(config.getoption("--ecornn-ray"), travel, on_gpu, options.bench)
    config.add_cleanup(cluster.shut_down)
    running.host_machine = cluster.start()
    begun = options.report / journal.NAME
    files = {journal.NAME: begun.read_bytes()} if options.resume and begun.exists() else {}
    config.pluginmanager.register(ClusterController(running), "ecornn-controller")
    config.pluginmanager.register(ClusterSession(config, cluster, travel, Path(session.shared_folder), files), "dsession")
