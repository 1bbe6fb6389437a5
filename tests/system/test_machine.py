"""The fingerprint: complete, publishable, ready for JSON; and what makes two of them incomparable."""

from __future__ import annotations

import copy
import getpass
import json
import platform
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_ecornn.system import machine


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return machine.fingerprint(tmp_path_factory.mktemp("no-repository"))


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--initial-branch", "alice/work")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "remote", "add", "origin", "https://alice@example.org/group/layers.git")
    return tmp_path


def test_fingerprint_survives_json_and_says_what_the_times_depend_on(here: dict[str, Any]) -> None:
    assert json.loads(json.dumps(here)) == here
    assert here["cpu"]
    assert here["cores"] >= 1
    assert here["threads"]["torch"] == torch.get_num_threads()
    assert torch.__version__.startswith(here["packages"]["torch"])
    assert set(here["packages"]) == {"torch", "numpy", "numba", "pytest", "pytest-benchmark", "hypothesis", "cupy"}


def test_no_user_host_or_path_is_in_it(here: dict[str, Any], repository: Path) -> None:
    for found in (here, machine.fingerprint(repository)):
        text = json.dumps(found)
        assert found["benchmark_machine_info"]["node"] == ""
        assert "alice" not in text
        assert str(repository) not in text
        assert not any(isinstance(value, str) and value.startswith("/") for value in _leaves(found))
        names = {platform.node(), getpass.getuser()}
        assert names.isdisjoint(str(value) for value in _leaves(found))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    return [leaf for one in value for leaf in _leaves(one)] if isinstance(value, list) else [value]


def test_outside_a_repository_there_is_no_commit(here: dict[str, Any]) -> None:
    assert here["commit"] is None
    assert here["dirty"] is None
    assert here["benchmark_commit_info"]["id"] == "unversioned"


def test_commit_and_its_changes_are_seen(repository: Path) -> None:
    clean = machine.fingerprint(repository)
    (repository / "untracked").write_text("a report, say")
    assert machine.fingerprint(repository)["dirty"] is False
    (repository / "reports").mkdir()
    (repository / "reports/report.md").write_text("one")
    git(repository, "add", "reports")
    git(repository, "commit", "-m", "second")
    clean = machine.fingerprint(repository)
    (repository / "reports/report.md").write_text("measured anew")
    assert machine.fingerprint(repository)["dirty"] is False
    (repository / "file").write_text("two")
    dirty = machine.fingerprint(repository)
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], dirty["dirty"]) == (False, True)
    info = dirty["benchmark_commit_info"]
    assert (info["id"], info["dirty"], info["project"]) == (clean["commit"], True, "layers")
    assert machine.same_machine(clean, dirty) == ["dirty: False and True"]


def test_a_repository_without_a_commit_and_a_system_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    assert machine.fingerprint(tmp_path)["commit"] is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.fingerprint(tmp_path)["commit"] is None


def test_benchmark_info_has_the_fields_that_pytest_benchmark_writes(here: dict[str, Any]) -> None:
    from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info
    from pytest_benchmark.utils import get_commit_info

    assert set(here["benchmark_machine_info"]) == set(pytest_benchmark_generate_machine_info())
    assert set(here["benchmark_commit_info"]) == set(get_commit_info()) - {"error"}


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (["cpu"], "Other", "cpu: "),
        (["cores"], 96, "cores: "),
        (["packages", "torch"], "1.0", "torch: "),
        (["packages", "cupy"], "14.0", "cupy: "),
        (["threads", "torch"], 77, "threads: "),
        (["commit"], "abc", "commit: "),
        (["gpu"], {"names": ["A"]}, "gpu: "),
        (["packages", "pytest"], "1.0", ""),
        (["benchmark_machine_info", "cpu", "hz_actual"], [1, 0], ""),
    ],
)
def test_differences_that_matter_are_named_and_others_make_none(
    here: dict[str, Any], path: list[str], value: Any, expected: str
) -> None:
    other = copy.deepcopy(here)
    inner = other
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    differences = machine.same_machine(here, other)
    assert [one.partition(": ")[0] + ": " for one in differences] == [expected] * bool(expected)


def test_numba_threads_follow_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    assert machine.fingerprint(tmp_path)["threads"]["numba"] == 1


def test_unreadable_caches_and_cpu_are_unknown_not_fatal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_read", lambda path: None)
    found = machine.fingerprint(tmp_path)
    assert (found["virtualised"], found["governor"], found["caches"]) == (None, None, {})
    assert machine.last_level_cache_bytes() == 0


def test_a_worker_has_its_share_of_the_cores() -> None:
    before, cores = torch.get_num_threads(), machine.usable_cores()
    try:
        for workers, shares, threads in ((cores, {}, 1), (1, {}, cores), (4, {"shares": 2}, max(1, cores // 2))):
            machine.limit_threads_per_worker(SimpleNamespace(workerinput={"workercount": workers}), **shares)
            assert torch.get_num_threads() == threads
        torch.set_num_threads(1)
        machine.limit_threads_per_worker(SimpleNamespace())
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
CPU implementer\t: 0x41
CPU part\t: 0xd40
processor\t: 1
CPU implementer\t: 0x41
CPU part\t: 0xd4f
processor\t: 2
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
X86 = "processor\t: 0\nmodel name\t: AMD EPYC 7R13 Processor\n"
MAC = None  # has no /proc/cpuinfo


@pytest.mark.parametrize(
    ("cpuinfo", "brand", "processor", "name"),
    [
        (X86, "another", "x86_64", "AMD EPYC 7R13 Processor"),
        (ARM, "Neoverse-V1", "", "Neoverse-V1 (implementer 0x41 part 0xd40, implementer 0x41 part 0xd4f)"),
        (ARM, None, "", "aarch64 (implementer 0x41 part 0xd40, implementer 0x41 part 0xd4f)"),
        (MAC, "Apple M2 Pro", "arm", "Apple M2 Pro"),
        (MAC, None, "arm", "arm"),
        (MAC, None, "", "aarch64"),
    ],
)
def test_a_processor_has_a_name_where_linux_gives_none(
    cpuinfo: str | None, brand: str | None, processor: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brand is py-cpuinfo's: by lscpu on ARM, by sysctl on macOS."""
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_benchmark_machine_info", lambda: {"cpu": {"brand_raw": brand} if brand else {}})
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert machine.fingerprint(tmp_path)["cpu"] == name
