"""How old a report is: what changed in a made history since its commit, of the files that it is about."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.suites.published import staleness, stored
from pytest_ecornn.suites.published.common.parted import Report
from pytest_ecornn.suites.published.staleness import Staleness
from pytest_ecornn.system import machine

ONE, OTHER = "implementations/persistent_gpu/kernels/step.cu", "implementations/scan_gpu/scan.cu"
SHARED, CPU = "implementations/_cuda/include/mma.cuh", "implementations/scan_cpu.py"
SUITE, OTHER_SUITE = "suites/published/persistent_kernel_parts/steps.py", "suites/published/scan.py"
LAYER = "pytest_ecornn/nn/recurrent.py"
TEXT = "\n".join(f"line {number}" for number in range(40))


class Clone:
    """A repository with the sources above, and a report of its first commit."""

    def __init__(self, root: Path):
        self.root = root
        self._git("init", "--quiet")
        for path in (ONE, OTHER, SHARED, CPU, SUITE, OTHER_SUITE, LAYER, "implementations/persistent_gpu/notes.md"):
            self.write(path, f"{path}\n{TEXT}")
        self.first = self.commit()

    def _git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(self.root), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def commit(self) -> str:
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "some", "--allow-empty")
        return self._git("rev-parse", "HEAD")

    def report(self, name: str, *implementations: str, gpu: bool = True, **changed: Any) -> Path:
        """The report of a suite that names implementations; of a run where that is its name."""
        machine = {"commit": self.first, "gpu": {"names": ["NVIDIA H200"]} if gpu else None, **changed}
        rows = [{"implementation": one, "status": "passed"} for one in implementations]
        whole = {"run": {"machine": machine}} if name == staleness.RUN else {"machine": machine}
        path = self.root / "reports/card" / f"{name}.json"
        self.write(str(path.relative_to(self.root)), json.dumps({**whole, "rows": rows}))
        return path

    def age(self, path: Path) -> Staleness | None:
        return staleness.of_report(path, root=self.root)

    def changed(self, path: Path) -> tuple[set[str], set[str]]:
        age = self.age(path)
        assert age
        return set(age.kernels), set(age.suite)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_report_is_about_what_it_names_what_that_shares_and_its_suite(clone: Clone) -> None:
    path = clone.report("persistent_kernel", "persistent_gpu")
    for changed in (ONE, OTHER, SHARED, CPU, SUITE, OTHER_SUITE, LAYER, "implementations/persistent_gpu/notes.md"):
        clone.write(changed, "other")
    clone.write("implementations/persistent_gpu/new.py", "new")
    clone.commit()
    assert clone.changed(path) == ({ONE, SHARED, "implementations/persistent_gpu/new.py"}, {SUITE})
    said = f"measured at commit {clone.first[:7]}, 3 kernel files and 1 suite file changed since"
    assert str(clone.age(path)) == said


def test_nothing_that_it_is_about_has_changed(clone: Clone) -> None:
    path = clone.report("persistent_kernel", "persistent_gpu")
    for changed in (OTHER, CPU, OTHER_SUITE, LAYER):
        clone.write(changed, "other")
    clone.commit()
    age = clone.age(path)
    assert age
    assert not age.is_stale
    assert str(age) == f"measured at commit {clone.first[:7]}, no kernel file changed since"


def test_a_run_is_about_the_cases_of_its_sets(clone: Clone) -> None:
    own, other = (f"pytest_ecornn/cases/sets/{name}.csv" for name in ("persistent", "sparse"))
    for path in (own, other, ONE, OTHER):
        clone.write(path, "case")
    clone.commit()
    report = clone.report("report", "persistent_gpu")
    content = json.loads(report.read_text())
    content["run"]["settings"] = {"cases": "deepbench, persistent"}
    report.write_text(json.dumps(content))
    assert clone.changed(report) == ({ONE}, {own})


def test_what_only_moved_or_went_has_not_changed(clone: Clone) -> None:
    path = clone.report("persistent_kernel", "persistent_gpu")
    (clone.root / ONE).rename(clone.root / "implementations/persistent_gpu/moved.cu")
    (clone.root / SHARED).unlink()
    clone.commit()
    assert clone.changed(path) == (set(), set())


def test_a_choice_at_run_time_is_about_the_modules_too(clone: Clone) -> None:
    clone.write(LAYER, "other")
    clone.write("implementations/auto/__init__.py", "new")
    clone.commit()
    assert clone.changed(clone.report("host_time", "auto")) == ({LAYER, "implementations/auto/__init__.py"}, set())
    assert LAYER in clone.changed(clone.report("varying"))[0]  # names none: it is about all


def test_a_run_is_about_all_implementations_of_its_device_but_those_that_refused(clone: Clone) -> None:
    path = clone.report("report", "scan_gpu")
    text = json.loads(path.read_text())
    text["rows"].append({"implementation": "scan_cpu", "status": "skipped"})
    path.write_text(json.dumps(text))
    for changed in (ONE, OTHER, CPU, "suites/test_benchmark.py"):
        clone.write(changed, "other")
    clone.commit()
    assert clone.changed(path) == ({ONE, OTHER}, {"suites/test_benchmark.py"})
    assert clone.changed(clone.report("report", "scan_cpu", gpu=False))[0] == {CPU}


@pytest.mark.parametrize("commit", [None, "0" * 40, "HEAD", "--output=x", 3])
def test_of_a_commit_that_is_not_in_the_history_nothing_is_said(commit: object, clone: Clone) -> None:
    assert clone.age(clone.report("persistent_kernel", "persistent_gpu", commit=commit)) is None
    assert not (clone.root / "x").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"machine": 3}', '{"run": []}', "[" * 100_000])
def test_of_what_is_no_report_nothing_is_said(text: str, clone: Clone) -> None:
    clone.write("reports/card/scan.json", text)
    assert clone.age(clone.root / "reports/card/scan.json") is None
    assert clone.age(clone.root / "reports/none.json") is None


def test_rows_go_on_at_another_commit_where_their_sources_are_alike(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness.machine, "own_root", lambda: clone.root)
    then = machine.fingerprint(clone.root)
    path = clone.report("persistent_kernel")
    whole = {"schema_version": 1, "allocator": "", "ended": {}, "rows": {}, "seconds": 1.0, "of": "scan_cpu"}
    path.write_text(json.dumps({"machine": then, **whole}))

    def gone_on_with(**changed: Any) -> None:
        now = {**machine.fingerprint(clone.root), "dirty": False, **changed}
        stored.plan("persistent_kernel")._load_previous(path, Report(stored.plan("persistent_kernel"), now))

    clone.write(OTHER, "other")
    clone.commit()
    gone_on_with()
    with pytest.raises(ValueError, match=r"GPU \[\] and \['B'\]; dirty False and True$"):
        gone_on_with(gpu={"names": ["B"]}, dirty=True)
    clone.write(CPU, "other")
    clone.commit()
    with pytest.raises(ValueError, match=rf"commit {clone.first} and \w+ \(measured at .*1 kernel file changed since\)$"):
        gone_on_with()
