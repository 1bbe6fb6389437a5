"""What others take of the machine: how it is read, when a row counts as disturbed, and what can still be said of its ratio."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from threading import get_native_id
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_ecornn.measurement.clocks import Timer, WallTimer
from pytest_ecornn.measurement.columns import MAX_REPEATED_ROUNDS, TimingColumn
from pytest_ecornn.measurement.measurement import MIN_ROUNDS
from pytest_ecornn.measurement.noise import waits
from pytest_ecornn.measurement.noise import watch as noise_watch
from pytest_ecornn.measurement.noise.baselines import compare_with_own_rows
from pytest_ecornn.measurement.noise.bounds import TimedBlockBounds, describe, is_disturbed
from pytest_ecornn.measurement.noise.waits import OwnWaits, TimedSpan, Waited, WatchedClock, tick
from pytest_ecornn.measurement.noise.watch import MachineLoad, Watch
from pytest_ecornn.reporting import csv_report, markdown, undecided
from pytest_ecornn.reporting.console import progress
from pytest_ecornn.results.rows import BaselineRatio, Disturbance, Row
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio, paired_ratio, verdict
from pytest_ecornn.system import child_processes, sensors
from tests.helpers import busy_machine
from tests.helpers.reporting_samples import BUSY, CASES, QUIET, concluded, row, sample_run, timing


def proc(folder: Path, threads: dict[str, str], stat: str = "", group: str = "") -> Path:
    """A folder as Linux has in /proc."""
    for thread, counts in threads.items():
        (folder / "self/task" / thread).mkdir(parents=True, exist_ok=True)
        (folder / "self/task" / thread / "schedstat").write_text(counts)
    (folder / "self").mkdir(exist_ok=True)
    (folder / "self/cgroup").write_text(group)
    (folder / "stat").write_text(stat)
    return folder


class TestOwnWaits:
    def waited(self, folder: Path, before: dict[str, str], after: dict[str, str]) -> Waited:
        """Of threads by what the system counts; those that are not there after have ended."""
        tasks = proc(folder, before) / "self/task"
        waits = OwnWaits(tasks)
        first = waits.read()
        proc(folder, after)
        for thread in before.keys() - after.keys():
            shutil.rmtree(tasks / thread)
        found = waits.since(first)
        waits.close()
        return found

    def test_threads_waits_are_summed_and_a_new_thread_counts_from_its_beginning(self, tmp_path: Path) -> None:
        after = {"1": "1000000500 3000000 4", "2": "0 0 1", "3": "500000000 4000000 9"}
        waited = self.waited(tmp_path, {"1": "500 1000000 3", "2": "0 0 1"}, after)
        assert (waited.wait, waited.used, waited.caller) == (pytest.approx(6e-3), pytest.approx(1.5), 0.0)

    def test_the_calling_threads_wait_is_told_apart(self, tmp_path: Path) -> None:
        own = str(threading.get_native_id())
        waited = self.waited(tmp_path, {"1": "0 0 1", own: "0 0 1"}, {"1": "0 5000000 1", own: "0 2000000 1"})
        assert (waited.wait, waited.caller, waited.others) == (pytest.approx(7e-3), pytest.approx(2e-3), 1)

    def test_a_thread_that_has_ended_is_left_out(self, tmp_path: Path) -> None:
        waited = self.waited(tmp_path, {"1": "0 0 1", "2": "0 0 1"}, {"1": "0 0 1"})
        assert waited == Waited(0.0, 0.0, 0.0, others=1)

    def test_nothing_is_known_where_the_system_has_no_such_files(self, tmp_path: Path) -> None:
        waits = OwnWaits(tmp_path / "none")
        assert not waits.is_known
        assert waits.since(waits.read()) == Waited(0.0, 0.0, 0.0)

    def test_no_file_stays_open(self) -> None:
        fds = Path("/proc/self/fd")
        opened = len(os.listdir(fds)) if fds.is_dir() else 0
        waits = OwnWaits()
        if not waits.is_known:
            pytest.skip("this system does not count waits")
        assert len(waits.read()) >= 1
        waits.close()
        assert len(os.listdir(fds)) == opened


class TestMachineLoad:
    @pytest.fixture(autouse=True)
    def two_processors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = [0.0, 0.0]
        monkeypatch.setattr(noise_watch, "usable_processors", lambda: {0, 2})
        monkeypatch.setattr(noise_watch, "perf_counter", lambda: self.now[0])
        monkeypatch.setattr(noise_watch, "process_time", lambda: self.now[1])
        monkeypatch.setattr(os, "sysconf", lambda name: 100, raising=False)

    def test_others_are_what_our_processors_did_and_we_did_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        line = "cpu{} {} 0 0 1000 7 0 0 {} 50 0\n"
        stat = "".join(line.format(*given) for given in (("", 900, 90), (0, 100, 10), (1, 500, 10), (2, 300, 70)))
        load = MachineLoad(proc(tmp_path, {}, stat), tmp_path)
        self.now = [2.0, 1.5]
        stat = "".join(line.format(*given) for given in (("", 999, 99), (0, 300, 10), (1, 900, 10), (2, 450, 90)))
        proc(tmp_path, {}, stat)
        found: Any = load.load()
        assert (found.processors, found.others, found.stolen) == (2, pytest.approx(1.0), pytest.approx(0.1))
        monkeypatch.setattr(child_processes, "seconds_of_run", lambda: 0.5)  # what the run's own processes have worked
        found = load.load()
        assert found.others == pytest.approx(0.75)

    @pytest.mark.parametrize(
        ("group", "path", "text", "later"),
        [
            ("0::/a", "a/cpu.stat", "usage_usec 5\nthrottled_usec 100000\n", "throttled_usec 600000\n"),
            ("0::/elsewhere", "cpu.stat", "throttled_usec 100000\n", "throttled_usec 600000\n"),
            ("4:cpu,cpuacct:/b", "cpu,cpuacct/b/cpu.stat", "throttled_time 100000000\n", "throttled_time 600000000\n"),
        ],
    )
    def test_a_quota_that_holds_the_process_is_seen(self, tmp_path: Path, group: str, path: str, text: str, later: str) -> None:
        stat = "cpu0 1 0 0 0 0 0 0 0 0 0\n"
        groups = tmp_path / "cgroup"
        (groups / path).parent.mkdir(parents=True)
        (groups / path).write_text(text)
        load = MachineLoad(proc(tmp_path, {}, stat, group), groups)
        self.now = [2.0, 0.0]
        (groups / path).write_text(later)
        found: Any = load.load()
        assert found.throttled == pytest.approx(0.25)

    @pytest.mark.parametrize("stat", ["", "cpu0 x\n", "cpu0 1 2\n", "cpu7 1 0 0 0 0 0 0 0 0 0\n"])
    def test_nothing_is_known_of_a_system_that_does_not_tell(self, tmp_path: Path, stat: str) -> None:
        load = MachineLoad(proc(tmp_path, {}, stat), tmp_path)
        self.now = [2.0, 1.5]
        assert load.load() is None


@pytest.mark.parametrize(
    ("wait", "used", "lost"),
    [
        (0.0, 1.0, 0.0),
        (0.4, 1.0, 0.4),  # one thread, which another process kept waiting
        (3.0, 2.0, 0.0),  # too many of our own, which had both processors to themselves
        (3.0, 1.5, 0.5),  # too many of our own, and another process
        (1.9, 0.1, 1.0),
    ],
)
def test_what_threads_wait_for_each_other_is_not_lost_to_others(wait: float, used: float, lost: float) -> None:
    assert TimedSpan(1.0, wait, 0.0, 0.0, others_least=used).lost(2) == pytest.approx(lost)


@pytest.mark.parametrize(
    ("caller_wait", "used", "caller_used", "delayed"),
    [
        (0.4, 0.6, 0.6, 0.4),  # one thread: what it waited, it was late
        (0.4, 1.2, 0.6, 0.0),  # another worked meanwhile, perhaps on what was wanted
        (0.6, 0.7, 0.4, 0.3),
        (0.0, 1.0, 1.0, 0.0),
    ],
)
def test_a_process_of_which_nothing_runs_though_it_would_is_late(
    caller_wait: float, used: float, caller_used: float, delayed: float
) -> None:
    span = TimedSpan(1.0, caller_wait, caller_wait, caller_used, others_most=used - caller_used)
    assert span.delayed == pytest.approx(delayed)
    late = replace(span, wait=caller_wait + 0.2, caller_wait=caller_wait + 0.2, around=0.2)
    assert late.delayed == pytest.approx(delayed)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the clocks show, and what the system has counted of the calling thread's waits, in seconds."""
    counts = SimpleNamespace(now=0.0, used=0.0, caller=0.0, wait=0.0)
    monkeypatch.setattr(waits, "perf_counter", lambda: counts.now)
    monkeypatch.setattr(waits, "process_time", lambda: counts.used)
    monkeypatch.setattr(waits, "thread_time", lambda: counts.caller)
    monkeypatch.setattr(waits, "tick", lambda: 4e-3)
    monkeypatch.setattr(waits, "usable_processors", lambda: {0, 1})
    return counts


class CountedWaits(OwnWaits):
    """Waits of the calling thread, beside one that waits for nothing, by `counts`. A reading takes 50 us."""

    def __init__(self, counts: SimpleNamespace):
        self.counts, self.is_known = counts, True

    def read(self) -> dict[str, tuple[int, int]]:
        pass_time(self.counts, 50e-6)
        return {str(get_native_id()): (0, round(self.counts.wait * 1e9)), "other": (0, 0)}

    def close(self) -> None:
        pass


class CountedClock(WallTimer):
    """A wall clock by `counts`."""

    def __init__(self, counts: SimpleNamespace):
        self.counts = counts

    def time(self, calls: Any, **options: Any) -> float:
        if isinstance(calls, Iterator):
            return sum(self.time([call]) for call in calls)
        start = self.counts.now
        for call in calls:
            call()
        return float(self.counts.now - start)


def pass_time(counts: SimpleNamespace, now: float, wait: float = 0.0, caller: float = 0.0, others: float = 0.0) -> None:
    counts.now, counts.wait, counts.caller = counts.now + now, counts.wait + wait, counts.caller + caller
    counts.used += caller + others


def test_work_that_is_counted_at_the_next_tick_hides_no_wait_and_proves_no_delay(counts: SimpleNamespace) -> None:
    clock = WatchedClock(CountedClock(counts), CountedWaits(counts))
    clock.time([lambda: pass_time(counts, 9.3e-3, 6.4e-3, 5.3e-3, others=12e-3)])  # 4 ms of them had run before
    assert clock.lost == pytest.approx(5.3 / 9.3)
    clock.time([lambda: pass_time(counts, 9.3e-3, 4e-3, 5.3e-3)])  # another thread's work may not be counted yet
    assert (clock.lost, clock.delayed) == (pytest.approx(4 / 9.3), pytest.approx(0.0))
    clock.time([lambda: pass_time(counts, 20e-3, 10e-3, 10e-3)])
    assert clock.delayed == pytest.approx(5.9 / 20)


@pytest.mark.parametrize(("call", "lost"), [(2e-3, 0.25), (0.2e-3, 1.0)], ids=["long calls", "calls as short as the readings"])
def test_waits_while_the_next_call_is_made_ready_are_not_the_calls(call: float, lost: float, counts: SimpleNamespace) -> None:
    def calls() -> Iterator[Callable[[], None]]:
        for _ in range(10):
            pass_time(counts, 8e-3, 8e-3)
            yield partial(pass_time, counts, call, call / 4, call * 3 / 4)

    clock = WatchedClock(CountedClock(counts), CountedWaits(counts))
    assert clock.time(calls()) == pytest.approx(10 * call)
    assert clock.lost == pytest.approx(lost)
    assert clock.time(iter(())) == clock.lost == clock.delayed == 0.0


def test_a_result_is_looked_at_before_the_waits_are_read(counts: SimpleNamespace) -> None:
    moments = []

    class Looked:
        def __call__(self) -> None:
            pass_time(counts, 10e-3)

        def look(self) -> None:
            moments.append(counts.now)

    WatchedClock(CountedClock(counts), CountedWaits(counts)).time(iter([Looked()]))
    assert moments == [pytest.approx(10e-3 + 50e-6)]


def test_work_between_calls_proves_no_delay(counts: SimpleNamespace) -> None:
    """What another thread did during a call may be counted at a tick after it."""

    def calls(others: float) -> Iterator[Callable[[], None]]:
        yield partial(pass_time, counts, 10e-3, 6e-3, 4e-3)
        pass_time(counts, 0.0, others=others)
        yield partial(pass_time, counts, 10e-3, 6e-3, 4e-3)

    clock = WatchedClock(CountedClock(counts), CountedWaits(counts))
    for others, delayed in ((0.0, 7.8 / 20), (5e-3, 2.8 / 20)):
        clock.time(calls(others))
        assert (clock.lost, clock.delayed) == (pytest.approx(12 / 20), pytest.approx(delayed))


def test_the_length_of_a_tick_is_known() -> None:
    assert 1e-3 <= tick() <= 1e-2


def test_the_clock_tells_the_time_of_the_calls_alone() -> None:
    clock = WatchedClock(WallTimer())
    assert 0.01 <= clock.time([lambda: time.sleep(0.01)]) < 0.2
    assert 0 <= clock.lost <= 1
    assert clock.host_us([]) is None
    clock.close()


@pytest.mark.parametrize(
    ("lost", "found", "calls"),
    [(0.5, QUIET, 10), (0.9, None, 10), (0.9, BUSY, 3)],
    ids=["quiet", "another system", "busy until the budget ends"],
)
def test_disturbed_blocks_alone_are_measured_again_and_shorter(
    lost: float, found: Disturbance | None, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two implementations that take 1 and 2 ms, beside what a watch is made to see."""
    monkeypatch.setattr(Watch, "disturbance", lambda self: found)
    monkeypatch.setattr(TimedSpan, "lost", lambda self, processors: lost)
    monkeypatch.setattr(TimedSpan, "delayed", 0.0)
    arms: list[Any] = [Constant(1e-3), Constant(2e-3)]
    column = TimingColumn(arms, Summing())
    column.measure(1.0)
    assert [arm.calls for arm in arms] == [calls, calls]
    pairs, high = len(arms[0].samples_us), column.measure_full_budget(0.0).high
    assert pairs > MIN_PAIRS if found is BUSY else pairs == MIN_PAIRS
    assert high > 2.0 if found is BUSY else high < 1.0


def test_a_gpu_works_on_while_the_calling_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, delayed in (("cpu", 0.4), ("cuda:0", 0.0)):
        arm: Any = Constant(1e-3)
        arm.candidate.device = device
        watch = Watch(Summing(), [arm])
        with watch as clock:
            monkeypatch.setattr(clock, "lost", 0.5)
            monkeypatch.setattr(clock, "delayed", 0.4)
            watch.after_block(arm)
        assert watch.waits(arm).delayed == [delayed]


THERMAL, POWER_CAP = 0x40, 0x4  # NVML's bits


class ThrottledGpu:
    """A GPU that is slowed down in some blocks, two a round, and at its power cap always, as NVML tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slowed: Container[int]):
        self.slowed, self.blocks = slowed, 0
        arms: list[Any] = [Throttled(self, 1e-3), Throttled(self, 2e-3)]
        self.column = TimingColumn(arms, Summing())
        monkeypatch.setattr(Watch, "disturbance", lambda self: None)
        monkeypatch.setattr(self.column._sensors, "_handle", "handle")
        monkeypatch.setattr(sensors, "_read", self._read)

    def _read(self, nvml: Any, handle: Any) -> tuple[dict[str, float], int]:
        is_slowed = self.blocks - 1 in self.slowed
        readings = {"sm_mhz": 345.0 if is_slowed else 1755.0, "power_w": 412.0, "temperature_c": 54.0}
        return readings, POWER_CAP | (THERMAL if is_slowed else 0)

    @property
    def arms(self) -> Any:
        return self.column.arms

    def summary(self) -> Any:
        summary = self.column._sensors.summary()
        assert summary
        return {name: value for name, value in summary.items() if name.endswith("_rounds")}


def test_rounds_of_a_throttled_gpu_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ThrottledGpu(monkeypatch, {1, 6, 8, 9})
    gpu.column.measure(60.0)
    assert gpu.blocks == 2 * (MIN_PAIRS + 3)
    assert [arm.samples_us for arm in gpu.arms] == [pytest.approx([us] * MIN_PAIRS) for us in (1e3, 2e3)]
    assert {len(gpu.column._watch.waits(arm).lost) for arm in gpu.arms} <= {0, MIN_PAIRS}, (
        "none where the system tells no waits"
    )
    assert gpu.summary() == {"repeated_rounds": 3}


def test_a_gpu_that_is_always_throttled_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ThrottledGpu(monkeypatch, range(10**6))
    gpu.column.measure(60.0)
    assert gpu.summary() == {"repeated_rounds": MAX_REPEATED_ROUNDS, "throttled_rounds": MIN_PAIRS}
    assert [len(arm.samples_us) for arm in gpu.arms] == [MIN_PAIRS] * 2


def test_no_round_is_repeated_once_the_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ThrottledGpu(monkeypatch, range(10**6))
    gpu.column.measure(0.0)
    assert gpu.summary() == {"throttled_rounds": MIN_ROUNDS}


def test_a_power_cap_is_usual_at_full_load(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ThrottledGpu(monkeypatch, ())
    gpu.column.measure(60.0)
    assert (gpu.blocks, gpu.summary()) == (2 * MIN_PAIRS, {})


class Constant:
    """Calls that take so many seconds."""

    def __init__(self, seconds: float):
        self.candidate = SimpleNamespace(name="constant", device="cpu", is_training=False)
        self.calls, self.samples_us = 10, list[float]()
        self._seconds = seconds

    def calibrate(self, clock: Timer) -> None:
        """Nothing is to be found out."""

    def block(self, clock: Timer, is_settled: bool) -> None:
        self.samples_us.append(clock.time([lambda: self._seconds] * self.calls) / self.calls * 1e6)


class Throttled(Constant):
    """Calls that take five times as long on a GPU that is slowed down."""

    def __init__(self, gpu: ThrottledGpu, seconds: float):
        super().__init__(seconds)
        self._gpu, self._usual = gpu, seconds

    def block(self, clock: Timer, is_settled: bool) -> None:
        self._seconds = self._usual * (5 if self._gpu.blocks in self._gpu.slowed else 1)
        self._gpu.blocks += 1
        super().block(clock, is_settled)


class Summing(WallTimer):
    """Calls say how long they take."""

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        return float(sum(call() for call in calls))


class TestRule:
    @pytest.mark.parametrize(
        "found",
        [
            pytest.param(None, id="not known"),
            pytest.param(QUIET, id="a quiet machine has daemons"),
            pytest.param(Disturbance(1.0, 2, 0.01, 0.0, 0.0, 0.0, 0.0, 20, 20), id="own threads wait for each other"),
            pytest.param(Disturbance(0.1, 2, 0.5, 0.0, 0.0, 0.0, 0.0, 20, 20), id="a reading within a few ticks"),
            pytest.param(replace(BUSY, disturbed=0), id="no thread waited for others"),
        ],
    )
    def test_what_is_no_disturbance(self, found: Disturbance | None) -> None:
        assert not is_disturbed(found)

    @pytest.mark.parametrize(
        ("found", "words"),
        [
            (BUSY, "75% of blocks disturbed: other processes took 1.0 of 2 processors"),
            (replace(BUSY, disturbed=0), "0% of blocks disturbed: other processes took 1.0 of 2 processors"),
            (
                Disturbance(1.0, 1, 0.0, 0.2, 0.0, 0.0, 0.0, 4, 0),
                "0% of blocks disturbed: the hypervisor took 0.2 of 1 processor",
            ),
            (
                Disturbance(1.0, 2, 0.0, 0.0, 0.3, 0.6, 0.0, 4, 1),
                "25% of blocks disturbed: a quota held the process for 30% of the time, other processes took 60% of the GPU",
            ),
        ],
    )
    def test_whoever_took_the_machine_is_named(self, found: Disturbance, words: str) -> None:
        one = timing(100.0, {})
        one.disturbance = found
        assert describe(one) == words


def blocks_of(times_us: list[float], lost: list[float], found: Disturbance | None, delayed: float = 0.0) -> TimedBlockBounds:
    return TimedBlockBounds.of(times_us, lost, [delayed * share for share in lost], found)


class TestBounds:
    def blocks(self, true: float, lost: list[float], found: Disturbance | None = BUSY, seed: int = 0) -> TimedBlockBounds:
        """That take longer by what they lose, and a little noise."""
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.01, len(lost)))
        return blocks_of([true * n / (1 - share) for n, share in zip(noise, lost, strict=True)], lost, found)

    def test_a_quiet_machines_ratio_is_that_of_all_pairs(self) -> None:
        one, other = self.blocks(2.0, [0.3] * 10, QUIET), self.blocks(1.0, [0.0] * 10, QUIET, 1)
        assert one.ratio_to(other) == paired_ratio(one.most_us, other.most_us)

    def test_pairs_of_undisturbed_blocks_decide_where_there_are_enough(self) -> None:
        one, other = self.blocks(2.0, [0.0, 0.8] * 12), self.blocks(1.0, [0.0] * 24, BUSY, 1)
        found = one.ratio_to(other)
        assert 1.9 < found.low < found.ratio < found.high < 2.1

    def test_the_least_disturbed_blocks_decide_what_differs_by_more_than_they_lost(self) -> None:
        """Undisturbed ones of the two are never side by side."""
        one, other = self.blocks(5.0, [0.1, 0.9] * 12), self.blocks(1.0, [0.9, 0.1] * 12, BUSY, 1)
        found = one.ratio_to(other)
        assert verdict(found, 0.05) == "slower"
        assert found.low < 4.6
        assert found.high > 5.4

    def test_the_interval_holds_the_ratio_whatever_part_of_the_waits_cost_time(self) -> None:
        random = np.random.default_rng(2)
        for _ in range(50):
            lost = random.uniform(0, 0.95, (2, 40))
            cost = 1 / (1 - lost * random.uniform(0, 1, lost.shape))
            noise = np.exp(random.normal(0, 0.02, lost.shape))
            arms = [
                blocks_of(list(true * c * n), list(shares), BUSY)
                for true, c, n, shares in zip((1.3, 1.0), cost, noise, lost, strict=True)
            ]
            found = arms[0].ratio_to(arms[1])
            assert found.low < 1.3 < found.high

    def test_a_single_threads_waits_are_taken_off(self) -> None:
        """Its blocks wait for most of their time, and differ in that."""
        random = np.random.default_rng(3)
        lost = random.uniform(0.4, 0.8, (2, 24))
        both = [list(true / (1 - shares)) for true, shares in zip((1.5, 1.0), lost, strict=True)]
        arms = [blocks_of(times, list(shares), BUSY, delayed=1.0) for times, shares in zip(both, lost, strict=True)]
        found = arms[0].ratio_to(arms[1])
        assert 1.2 < found.low < 1.5 < found.high < 1.85

    def test_blocks_that_lost_all_say_nothing(self) -> None:
        """As measured with four spinning processes on two processors: the ratio on a quiet machine is 2.3."""
        lost = [1.0] * 10
        one, other = blocks_of([100.0] * 10, lost, BUSY), blocks_of([23_000.0] * 10, lost, BUSY)
        assert verdict(one.ratio_to(other), 0.05) == "unclear"

    @pytest.mark.parametrize("found", [Disturbance(1.0, 2, 1.0, 0.0, 0.0, 0.0, 0.5, 20, 0), BUSY])
    def test_unknown_waits_may_have_cost_all(self, found: Disturbance) -> None:
        lost = [0.0] * 10 if found is not BUSY else []
        one, other = (blocks_of([time] * 10, lost, found) for time in (1.0, 20.0))
        assert verdict(one.ratio_to(other), 0.05) == "unclear"

    def test_what_a_quota_takes_is_taken_from_every_block(self) -> None:
        held = Disturbance(1.0, 2, 0.0, 0.0, 0.5, 0.0, 0.0, 20, 0)
        one, other = (blocks_of([time] * 10, [0.0] * 10, held) for time in (1.8, 1.0))
        found = one.ratio_to(other)
        assert found.low < 0.9 < found.ratio < 3.6 < found.high

    def test_shares_of_other_blocks_are_refused(self) -> None:
        with pytest.raises(ValueError, match="shorter"):
            blocks_of([1.0] * 8, [0.0] * 7, BUSY)


LAYERS = {
    "short": busy_machine.Layer(4, 5e-5, 1e-4),
    "a little longer": busy_machine.Layer(4, 7.5e-5, 1e-4),
    "alone": busy_machine.Layer(1, 1e-3, 0.0),
    "many regions": busy_machine.Layer(20, 5e-5, 1e-4),
    "long": busy_machine.Layer(12, 2e-4, 6e-4),
}


@pytest.mark.parametrize("spinning", [1, 2, 4])
@pytest.mark.parametrize("names", list(combinations(LAYERS, 2)), ids=" and ".join)
def test_no_verdict_of_a_simulated_busy_machine_is_wrong(names: tuple[str, str], spinning: int) -> None:
    def measured(spinning: int, seconds: float, found: Disturbance) -> Ratio:
        machine, arms = busy_machine.Scheduler(spinning, seed=1), [busy_machine.Arm(LAYERS[name]) for name in names]
        while machine.now < seconds:
            for arm in arms:
                arm.block(machine)
        return arms[0].blocks(found).ratio_to(arms[1].blocks(found))

    truth, found = measured(0, 0.3, QUIET), measured(spinning, 0.5, BUSY)
    assert found.low < truth.ratio < found.high


def test_a_row_is_stored_with_what_disturbed_it() -> None:
    found = timing(100.0, {"base": 50.0})
    found.lost, found.delayed, found.disturbance = [0.25] * 12, [0.0] * 12, BUSY
    stored = row("a", CASES[0], timing=found)
    assert Row.from_dict(stored.as_dict()) == stored


def test_reports_say_what_disturbed_a_row() -> None:
    found = timing(100.0, {"base": 50.0})
    found.disturbance = BUSY
    rows = [row("a", CASES[0], timing=found), row("base", CASES[0], timing=timing(50.0, {}))]
    words = describe(found)
    assert f"1 of 2 times; the most: {words};" in "\n".join(concluded(rows).counts)
    assert progress.describe(rows[0]).endswith(f"; {words}")
    assert words in csv_report.render(rows, set())
    text = markdown.render(sample_run(), concluded(rows))
    assert text.count(words) == 2
    assert "**Disturbed** rows" in text


class TestBaselineInItsOwnRow:
    def rows(self, own_us: float, kind: str = "benchmark", case: str = CASES[0]) -> tuple[list[Row], BaselineRatio]:
        rows = [
            row("a", CASES[0], timing=timing(100.0, {"base": 1000.0})),
            row("base", case, kind, timing=timing(own_us, {"base": own_us} if kind == "control" else {})),
        ]
        compare_with_own_rows(rows)
        (against,) = rows[0].timing.against  # type: ignore[union-attr]
        return rows, against

    @pytest.mark.parametrize("kind", ["benchmark", "control"])
    def test_a_verdict_has_to_hold_against_a_baseline_that_took_half_as_long_in_its_own_row(self, kind: str) -> None:
        rows, against = self.rows(102.0, kind)
        words = "base took 0.102 times as long in its own row as beside the candidate"
        assert (against.verdict, against.doubt) == ("unclear", words)
        (group,) = undecided.by_cause(rows, set(), ())
        assert group.cause == "a baseline took another time in its own row than beside the candidate"
        assert words in markdown.render(sample_run(), concluded(rows))

    def test_what_is_faster_than_its_own_row_too_stays_so(self) -> None:
        rows, against = self.rows(499.0)
        assert (against.verdict, against.high) == ("faster", pytest.approx(0.102 / 0.499))
        assert not any(line.startswith("unclear") for line in concluded(rows).counts)

    @pytest.mark.parametrize(("own_us", "case"), [(501.0, CASES[0]), (10_000.0, CASES[0]), (1.0, CASES[1])])
    def test_any_other_and_another_cases_row_keep_it(self, own_us: float, case: str) -> None:
        _, against = self.rows(own_us, case=case)
        assert (against.verdict, against.doubt) == ("faster", "")
