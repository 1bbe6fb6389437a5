"""Implementations that take their process with them: each costs its own row, and what was measured is kept and said to be."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ecornn.results.journal import read
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.run.processes.controller import CrashAwareScheduling, XdistController, ignore_closed_channel
from pytest_ecornn.run.processes.xdist_setup import configure_isolation
from pytest_ecornn.system.last_words import CrashReport, CurrentWork
from pytest_ecornn.verification.verification import rerun_command
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign, environment

OTHER_CASE = "lstm-T5-B3-H8-float32"
CASES = ("--ecornn-case", samples.CASE, "--ecornn-case", OTHER_CASE)
# What each does on the one case, and how its row is to begin.
FAULTS = {
    "exits": ("import ctypes; ctypes.CDLL(None)._exit(3)", "exited (status 3)"),
    "hangs": ("import time; time.sleep(3600)", "did not finish within 12 s at hangs.py:"),
    "hoards": (
        "hoard = globals().setdefault('HOARD', [])\n                while True: hoard.append(torch.empty(2**25))",
        "ran out of memory: ",
    ),
    "poisons": (
        "torch.lost_context = 'CUDA error: an illegal memory access was encountered'\n"
        "                raise torch.AcceleratorError(torch.lost_context)",
        "CUDA context is poisoned: CUDA error: an illegal memory access was encountered",
    ),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "crashed (signal 11): Segmentation fault at segfaults.py:"),
}
# There is no GPU here: a context is lost when an implementation says so, and for as long as its process lives.
CONFTEST = """
import torch
from pytest_ecornn.system import faults
faults.sticky_cuda_error = lambda device: getattr(torch, "lost_context", "")
"""


FULL_DISK = """
from pytest_ecornn.results.journal import Journal
append = Journal._append

def full(self, data):
    if len(self.rows) > 2:
        raise OSError(28, "No space left on device")
    append(self, data)

Journal._append = full
"""


def faulty(code: str) -> str:
    """Right, save on one case."""
    before = "            outputs = []"
    return samples.RIGHT.replace(before, f"            if case.steps == 6:\n                {code}\n{before}", 1)


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    foreign = Foreign(tmp_path)
    (tmp_path / "kernels").mkdir()
    foreign.write("conftest.py", CONFTEST)
    return foreign


def test_five_faults_in_the_middle_of_a_run_cost_five_rows(foreign: Foreign) -> None:
    for name, (code, _) in FAULTS.items():
        foreign.write(f"kernels/{name}.py", faulty(code))
    foreign.write("kernels/a_right_one.py", samples.RIGHT)  # asks for its baseline's crash before the baseline itself does
    options = ["--ecornn-implementations", "kernels", "--ecornn-baseline", "torch_cpu", "--ecornn-baseline", "segfaults"]
    limits = ["--ecornn-isolate", "--ecornn-timeout", "12", "--ecornn-memory", "2"]
    done = foreign.run("--ecornn-bench", *options, *limits, *CASES, *QUICK, check=1)
    rows = foreign.rows()
    failed = {name: row["reason"] for name, row in rows.items() if row["status"] == "failed"}
    assert failed.keys() == {f"{name}-{samples.CASE}" for name in FAULTS}
    markdown = (foreign.path / "reports/local/report.md").read_text()
    for name, (_, words) in FAULTS.items():
        reason = f"{name} on {samples.CASE}: {words}"
        assert failed[f"{name}-{samples.CASE}"].startswith(reason)
        assert f"failed: {reason}" in done.stdout
        assert reason in markdown
        assert rows[f"{name}-{OTHER_CASE}"]["timing"]["time_us"] > 0
    for name in ("a_right_one", "sequential", "torch_cpu"):
        assert rows[f"{name}-{OTHER_CASE}"]["timing"]["time_us"] > 0
        assert rows[f"{name}-{samples.CASE}"]["timing"]["time_us"] > 0
        assert "not compared with segfaults: crashed (signal 11)" in rows[f"{name}-{samples.CASE}"]["notes"]
    assert len(rows) == 2 * (len(FAULTS) + 1 + sum(one.is_run_unnamed for one in discover([]).values()))
    assert "10 failed" in done.stdout  # each fault's row, and that of the case's properties


def test_without_isolation_a_poisoned_context_fails_what_follows_and_says_what_would_not(foreign: Foreign) -> None:
    foreign.write("kernels/leaves.py", faulty("raise SystemExit(4)"))  # which ends no process either
    foreign.write("kernels/poisons.py", faulty(FAULTS["poisons"][0]))
    options = ["--ecornn-implementations", "kernels", "--ecornn-case", samples.CASE]
    foreign.run("--ecornn-verify", *options, "-k", "fixed and (leaves or poisons or sequential)", check=1)
    rows = foreign.rows()
    assert "expected a result or Unsupported, got SystemExit at leaves.py" in rows[f"leaves-{samples.CASE}"]["reason"]
    assert FAULTS["poisons"][1] in rows[f"poisons-{samples.CASE}"]["reason"]
    assert "was not run, because an earlier row has poisoned the CUDA context" in rows[f"sequential-{samples.CASE}"]["reason"]
    assert "--ecornn-isolate" in rows[f"sequential-{samples.CASE}"]["reason"]


def test_isolation_without_its_plugins_is_a_usage_error(foreign: Foreign) -> None:
    done = foreign.run_here("--ecornn-bench", "--ecornn-isolate", "-p", "no:xdist", "-p", "no:timeout", check=4)
    assert (
        "ERROR: --ecornn-isolate needs pytest-xdist and pytest-timeout: pip install pytest-xdist pytest-timeout" in done.stderr
    )


def configuration(**options: Any) -> Any:
    """What `configure_isolation` sees of pytest's."""
    option = SimpleNamespace(**{"numprocesses": None, "dist": "no", "tx": [], "maxworkerrestart": None, **options})
    return SimpleNamespace(option=option, pluginmanager=SimpleNamespace(hasplugin=lambda name: True))


def test_isolation_needs_no_other_option_and_heeds_those_given() -> None:
    config = configuration()
    configure_isolation(config)
    assert config.option.numprocesses == 1
    assert int(config.option.maxworkerrestart) > 1e6
    config = configuration(numprocesses=3, maxworkerrestart="5")
    configure_isolation(config)
    assert (config.option.numprocesses, config.option.maxworkerrestart) == (3, "5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numprocesses": 0}, "--ecornn-isolate runs rows in workers, so -n must not be 0"),
        ({"dist": "each"}, "--ecornn-isolate hands out rows itself: leave out --dist each"),
    ],
)
def test_what_cannot_be_isolated_is_a_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        configure_isolation(configuration(**options))


def test_an_interrupted_run_reports_what_it_has_and_says_where_it_is_kept(foreign: Foreign) -> None:
    cases = [argument for steps in range(4, 30) for argument in ("--ecornn-case", f"lstm-T{steps}-B3-H8-float32")]
    command = foreign.command("--ecornn-bench", "--ecornn-only", "sequential", *cases, *QUICK, "--ecornn-isolate")
    process = subprocess.Popen(command, cwd=foreign.path, env=environment(), stdout=subprocess.PIPE, text=True)
    journal = foreign.path / "reports/local/journal.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (journal.exists() and len(journal.read_bytes().splitlines()) > 2):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)  # whose handler is that of Ctrl-C
    output, _ = process.communicate(timeout=60)
    kept = re.search(r"kept: (\d+) of (\d+) finished rows, in (.*); --ecornn-resume goes on from there", output)
    assert process.returncode == 2, output
    assert kept is not None, output
    assert Path(kept[3]) == journal
    assert len(read(journal)[1]) == int(kept[1]) >= 2
    assert len(foreign.rows()) == int(kept[2])


def test_a_disk_that_fills_up_ends_the_run_and_what_was_measured_is_reported(foreign: Foreign) -> None:
    foreign.write("conftest.py", CONFTEST + FULL_DISK)
    cases = [argument for steps in (4, 5, 6, 7) for argument in ("--ecornn-case", f"lstm-T{steps}-B3-H8-float32")]
    done = foreign.run("--ecornn-bench", "--ecornn-only", "sequential", *cases, *QUICK, check=2)
    assert "journal.jsonl: cannot be written (No space left on device)" in done.stdout
    assert "kept: 2 of 3 finished rows" in done.stdout
    assert len(foreign.rows()) == 3


class Dead:
    """A worker that has died, as pytest-xdist hands it around."""

    def __init__(self, name: str, status: int):
        self.gateway = SimpleNamespace(id=name, _io=SimpleNamespace(popen=SimpleNamespace(wait=lambda _: status)))
        self.workerinput: dict[str, Any] = {"workercount": 2}


NODE = f"suites/test_benchmark.py::test_benchmark[mine-{samples.CASE}]"


@pytest.fixture
def controller(tmp_path: Path) -> XdistController:
    options = SimpleNamespace(timeout=5.0, memory_bytes=None)
    implementation = SimpleNamespace(name="mine", path=tmp_path / "mine.py")
    item = SimpleNamespace(
        implementation=implementation,
        case=samples.CASE,
        rerun=lambda case, timed: rerun_command("mine", [case], is_timed=timed),
        empty_row=lambda: SimpleNamespace(as_dict=dict),
        expect=lambda row: None,
    )
    session = SimpleNamespace(shared_folder=tmp_path, options=options, implementations={}, item=lambda nodeid: item)
    return XdistController(session)  # type: ignore[arg-type]


def test_a_worker_that_dies_between_rows_costs_none(controller: XdistController) -> None:
    assert not controller.is_culprit(Dead("gw0", -11), NODE)
    assert controller.should_rerun(NODE)
    controller.pytest_runtest_logstart(NODE)
    controller.pytest_runtest_logreport(SimpleNamespace(when="call", failed=False, nodeid=NODE))  # type: ignore[arg-type]
    assert not controller.is_culprit(Dead("gw0", -11), NODE)
    assert not controller.should_rerun(NODE)


def test_a_baseline_that_dies_costs_no_row_and_later_workers_know_it(controller: XdistController, tmp_path: Path) -> None:
    controller.pytest_runtest_logstart(NODE)
    CrashReport(tmp_path, "gw0").write(CurrentWork("other", samples.CASE))
    assert not controller.is_culprit(Dead("gw0", -6), NODE)
    assert controller.should_rerun(NODE)
    following = Dead("gw1", 0)
    controller.pytest_configure_node(following)
    assert following.workerinput["ecornn_fatal"] == {f"other-{samples.CASE}": "crashed (signal 6): Aborted"}


def test_a_death_while_implementations_take_turns_names_them_all(controller: XdistController, tmp_path: Path) -> None:
    controller.pytest_runtest_logstart(NODE)
    CrashReport(tmp_path, "gw0").write(CurrentWork("mine", samples.CASE, "torch_cpu", is_timed=True))
    assert controller.is_culprit(Dead("gw0", -9), NODE)
    report = SimpleNamespace(location=("", None, ""))
    controller.pytest_handlecrashitem(NODE, report)
    assert "memory ran out, while it took turns with torch_cpu\nagain: pytest --ecornn-bench" in report.longrepr


def test_memory_that_earlier_rows_may_have_used_up_is_asked_for_again(controller: XdistController, tmp_path: Path) -> None:
    controller.pytest_runtest_logstart(NODE)
    CrashReport(tmp_path, "gw0").write(CurrentWork("mine", samples.CASE, rerun=True))
    assert not controller.is_culprit(Dead("gw0", 70), NODE)
    assert controller.should_rerun(NODE)


def test_workers_share_four_fifths_of_the_memory(controller: XdistController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ecornn.system.memory.available_bytes", lambda: 1000)
    node = Dead("gw0", 0)
    controller.pytest_configure_node(node)
    assert node.workerinput["ecornn_memory"] == 400


def test_workers_that_die_before_they_begin_end_the_run(controller: XdistController) -> None:
    for _ in range(3):
        controller.pytest_testnodedown(Dead("gw0", 1), "Not properly terminated")
    with pytest.raises(pytest.exit.Exception, match=r"3 workers died before they began a row; the last: exited \(status 1\)"):
        controller.pytest_testnodedown(Dead("gw0", 1), "Not properly terminated")


def test_rows_sent_to_a_dead_worker_are_handed_on(controller: XdistController) -> None:
    class Worker(Dead):
        shutting_down, sent = False, ()

        def send_runtest_some(self, indices: list[int]) -> None:
            self.sendcommand("runtests", indices=indices)

        def sendcommand(self, name: str, indices: list[int]) -> None:
            if self.gateway.id == "gw0":
                raise OSError("cannot send (already closed?)")
            self.sent = (*self.sent, *indices)

        def shutdown(self) -> None:
            pass

    rows = [f"{NODE}-{number}" for number in range(8)]
    options = {"tx": ["2*popen"], "maxschedchunk": None}
    log = SimpleNamespace(loadsched=lambda *parts: None)
    scheduling = CrashAwareScheduling(SimpleNamespace(getoption=options.get, getvalue=options.get), log, controller)  # type: ignore[arg-type]
    dead, alive = Worker("gw0", -11), Worker("gw1", 0)
    for worker in (dead, alive):
        ignore_closed_channel(worker)
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, rows)
    scheduling.schedule()
    assert scheduling.remove_node(dead) is None
    while len(scheduling.node2pending[alive]):
        scheduling.mark_test_complete(alive, scheduling.node2pending[alive][0])
    assert sorted(alive.sent) == list(range(8))
