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


FIRST, SECOND = ("0", "1/2"), ("GPU-b", "2/2")


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (["popen", "popen"], [FIRST, SECOND]),
        (["popen"] * 4, [FIRST, SECOND] * 2),
        (["popen"], [None]),
        (["popen", "ssh=other", "popen"], [FIRST, None, SECOND]),
        (["popen//ray_host=a", "popen//ray_host=b"], [None, None]),
    ],
    ids=["two", "four", "one has the machine", "elsewhere", "a cluster gives them theirs"],
)
def test_each_worker_has_a_gpu(specs: list[str], expected: list[Any]) -> None:
    assert given(["cuda"], *specs) == expected


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cuda"], ["cuda:1"], []])
def test_cases_that_need_more_than_any_gpu_leave_workers_as_they_are(devices: list[str]) -> None:
    assert given(devices, "popen", "popen") == [None, None]


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


@pytest.mark.parametrize(
    ("devices", "gpus", "count"),
    [
        (["cuda"], ["0"], 12),
        (["cuda:1"], ["0", "GPU-b"], 12),
        (["cpu", "cuda"], ["0", "GPU-b"], 12),
        (["cpu"], ["0", "GPU-b"], None),
        (["cuda"], [], None),
    ],
    ids=["one GPU", "cases of one GPU", "cases of the CPU too", "xdist decides on a CPU", "and without a GPU"],
)
def test_one_gpu_has_the_workers_of_its_share(
    devices: list[str], gpus: list[str], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_workers, "gpus_of_one_kind", lambda: gpus)
    assert auto_worker_count(devices) == count


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


def test_a_worker_of_a_run_on_a_gpu_starts_none_and_says_nothing_of_pytest_benchmark() -> None:
    config = configuration()
    config.workerinput = {"workerid": "gw0"}
    configure_gpu_run(config)
    assert config.option.numprocesses is None
    assert config.option.benchmark_disable


def test_one_process_does_what_one_worker_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_workers, "gpus_of_one_kind", lambda: ["0"])
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    configure_gpu_run(config := configuration())
    assert config.option.numprocesses is None
