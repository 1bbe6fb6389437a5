"""Workers of pytest-xdist on a host with several GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from execnet.xspec import XSpec

from pytest_ecornn.run.processes import gpu_workers
from pytest_ecornn.run.processes.gpu_workers import GpuWorkers, auto_worker_count
from pytest_ecornn.run.processes.xdist_setup import configure_gpu_run
from pytest_ecornn.system import machine, memory

NO_CONTROLLER: Any = None


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_workers, "gpus_of_one_kind", lambda: ["0", "GPU-b"])
    monkeypatch.setattr(machine, "usable_cores", lambda: 32)
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**38)
    monkeypatch.setattr(gpu_workers, "gpu_bytes", lambda: 80 * 2**30)


def given(devices: list[str], *specs: str) -> list[tuple[str, str] | None]:
    """The GPU and the share that each worker is started with; None of one without."""
    made = [XSpec(spec) for spec in specs]
    GpuWorkers(devices, NO_CONTROLLER).pytest_xdist_setupnodes(made)
    return [(one.env["CUDA_VISIBLE_DEVICES"], one.env["PYTEST_ECORNN_GPU"]) if one.env else None for one in made]


def test_each_worker_has_a_gpu() -> None:
    assert given(["cuda"], "popen", "popen") == [("0", "1/2"), ("GPU-b", "2/2")]
    assert given(["cuda"], *["popen"] * 4) == [("0", "1/2"), ("GPU-b", "2/2")] * 2


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cuda"], ["cuda:1"], []])
def test_cases_that_need_more_than_any_gpu_leave_workers_as_they_are(devices: list[str]) -> None:
    assert given(devices, "popen", "popen") == [None, None]


def test_one_worker_has_the_machine() -> None:
    assert given(["cuda"], "popen") == [None]


def test_workers_elsewhere_have_no_gpu_of_this_host() -> None:
    assert given(["cuda"], "popen", "ssh=other", "popen") == [("0", "1/2"), None, ("GPU-b", "2/2")]


def test_workers_of_a_cluster_have_the_gpus_that_it_gives_them() -> None:
    made = [XSpec("popen//ray_host=a"), XSpec("popen//ray_host=b")]
    GpuWorkers(["cuda"], NO_CONTROLLER).pytest_xdist_setupnodes(made)
    assert [one.env for one in made] == [{}, {}]


def test_some_workers_of_each_gpu_are_started_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto_worker_count(["cuda"]) == 24
    monkeypatch.setattr(machine, "usable_cores", lambda: 16)
    assert auto_worker_count(["cuda"]) == 12
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**35)
    assert auto_worker_count(["cuda"]) == 8
    monkeypatch.setattr(gpu_workers, "gpu_bytes", lambda: 8 * 2**30)
    assert auto_worker_count(["cuda"]) == 4
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    assert auto_worker_count(["cuda"]) == 2


def test_one_gpu_has_no_more_workers_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_workers, "gpus_of_one_kind", lambda: ["0"])
    assert auto_worker_count(["cuda"]) == 12


def test_elsewhere_xdist_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto_worker_count(["cpu"]) is None
    monkeypatch.setattr(gpu_workers, "gpus_of_one_kind", list)
    assert auto_worker_count(["cuda"]) is None


@pytest.mark.parametrize("devices", [["cuda:1"], ["cpu", "cuda"]])
def test_cases_of_one_gpu_or_of_the_cpu_too_have_the_workers_of_one_gpu(devices: list[str]) -> None:
    assert auto_worker_count(devices) == 12


def configuration(devices: tuple[str, ...] = ("cuda",), **options: Any) -> Any:
    """What `configure_gpu_run` sees of pytest's."""
    core = {"usepdb": False, "trace": False, "collectonly": False, "maxworkerrestart": None}
    option = SimpleNamespace(**{"numprocesses": None, "dist": "no", "tx": [], "distload": False, **core, **options})
    given = {"--ecornn-device": devices, "--ecornn-case": options.get("case", [])}
    invocation = SimpleNamespace(plugins=options.get("plugins"))
    has_xdist = SimpleNamespace(hasplugin=lambda name: options.get("has_xdist", True))
    source = options.get("source", pytest.Config.ArgsSource.TESTPATHS)
    return SimpleNamespace(
        option=option, getoption=given.get, pluginmanager=has_xdist, args_source=source, invocation_params=invocation
    )


@pytest.mark.parametrize("devices", [("cuda",), ("cuda:1",), ("cpu", "cuda")])
def test_a_run_on_a_gpu_has_workers_by_default(devices: tuple[str, ...]) -> None:
    config = configuration(devices)
    configure_gpu_run(config)
    assert config.option.numprocesses == auto_worker_count(devices)
    assert int(config.option.maxworkerrestart) > 1e6


@pytest.mark.parametrize(
    "options",
    [
        {"numprocesses": 0},
        {"numprocesses": 3},
        {"dist": "loadgroup"},
        {"tx": ["popen"]},
        {"distload": True},
        {"usepdb": True},
        {"trace": True},
        {"collectonly": True},
        {"case": ["gru-T4-B2-H8"]},
        {"keyword": "lstm"},
        {"lf": True},
        {"plugins": [object()]},
        {"source": pytest.Config.ArgsSource.ARGS},
        {"benchmark_json": "times.json"},
        {"benchmark_only": True},
        {"has_xdist": False},
    ],
)
def test_what_the_user_has_chosen_stays(options: dict[str, Any]) -> None:
    config = configuration(**options)
    configure_gpu_run(config)
    assert config.option.numprocesses == options.get("numprocesses")


def test_a_worker_of_a_run_on_a_gpu_starts_none() -> None:
    config = configuration()
    config.workerinput = {"workerid": "gw0"}
    configure_gpu_run(config)
    assert config.option.numprocesses is None


def test_one_process_does_what_one_worker_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_workers, "gpus_of_one_kind", lambda: ["0"])
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    config = configuration()
    configure_gpu_run(config)
    assert config.option.numprocesses is None
