"""A layer that another process times: its answers, its end, and its place among those that this process times."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.noise.watch import Watch
from pytest_ecornn.measurement.remote import RemoteArm, RemoteError, RemoteProcess
from pytest_ecornn.system import child_processes

CASES = ("lstm-T1-B1-H1-float32", "lstm-T2-B1-H1-float32")
MISSING = ["no device-only time of then: a call takes 1 s"]
# Blocks take what `at_block` says, or it ends the process.
SERVE = """
import json, os, sys, time
for line in sys.stdin:
    request, *arguments = json.loads(line)
    answers = {{"build": "", "calibrate": 4, "capture": {missing}}}
    if request == "block":
        {at_block}
    print(json.dumps(["", answers[request]]), flush=True)
"""
CLOCK = WallTimer()


@pytest.fixture
def started() -> Iterator[list[RemoteProcess]]:
    """Processes to be ended."""
    processes = list[RemoteProcess]()
    yield processes
    for one in processes:
        one.close()


def serve(started: list[RemoteProcess], at_block: str, seconds: float = 20.0) -> RemoteArm:
    command = [sys.executable, "-c", SERVE.format(at_block=at_block, missing=MISSING)]
    started.append(RemoteProcess(command, os.environ, seconds))
    assert started[-1].build("then", "sequential", CASES[0]) == ""
    return RemoteArm(started[-1], f"arm {len(started)}", "cpu", False)


def test_its_times_and_waits_are_what_it_says(started: list[RemoteProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "disturbance", lambda self: None)
    arms = [serve(started, f'answers["block"] = {block}') for block in ([1e3, 4, 0.0, 0.0], [3e3, 4, 0.25, 0.125])]
    column = TimingColumn(arms, CLOCK)
    column.measure_full_budget(0.1)
    (ratio,) = column.against()
    assert (ratio.baseline, ratio.ratio) == ("arm 2", pytest.approx(1 / 3))
    assert len(ratio.samples_us) == len(arms[0].samples_us)
    assert (ratio.lost, ratio.delayed) == ([0.25] * len(ratio.samples_us), [0.125] * len(ratio.samples_us))


def test_a_block_has_as_many_calls_as_it_is_given(started: list[RemoteProcess]) -> None:
    arm = serve(started, 'answers["block"] = [1.0, 3 * arguments[1], *arguments[:1], 0.0]')
    arm.calibrate(CLOCK)
    assert arm.calls == 4
    arm.calls = 2
    arm.block(CLOCK, is_settled=False)
    assert (arm.calls, arm.samples_us, arm.lost, arm.fresh().samples_us) == (6, [1.0], "called", [])


def test_what_has_no_graph_says_why(started: list[RemoteProcess]) -> None:
    assert serve(started, "pass").captured() == ([], MISSING)


@pytest.mark.parametrize(
    ("at_block", "end"),
    [
        ("print(json.dumps(['ValueError: no', None]), flush=True); continue", "ValueError: no"),
        ("sys.exit(3)", "its process exited (status 3)"),
        ("os.kill(os.getpid(), 11)", "its process crashed (signal 11): Segmentation fault"),
        ("time.sleep(60)", "its process did not answer within 2 s"),
    ],
)
def test_a_process_that_ends_is_told_and_not_asked_for_the_same_again(
    started: list[RemoteProcess], at_block: str, end: str
) -> None:
    arm = serve(started, at_block, seconds=2.0)
    with pytest.raises(RemoteError) as raised:
        arm.block(CLOCK, is_settled=True)
    assert str(raised.value) == arm.process.build("then", "sequential", CASES[0]) == end
    assert child_processes.of_run == set()
    assert arm.process.build("then", "sequential", CASES[1]) == ""
    assert len(child_processes.of_run) == 1


def test_it_is_the_runs_and_no_implementations(started: list[RemoteProcess]) -> None:
    arm = serve(started, "while time.process_time() < 0.3: answers['block'] = [1.0, 1, 0.0, 0.0]")
    (pid,) = child_processes.of_run
    assert child_processes.has_children()
    assert pid not in child_processes.living()
    arm.block(CLOCK, is_settled=True)
    assert child_processes.seconds_of_run() >= 0.25
