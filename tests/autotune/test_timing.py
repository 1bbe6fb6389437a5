"""How candidates are timed: blocks, graphs, lengths, and who is left out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_ecornn.autotune import Candidate, probed_call, timing
from pytest_ecornn.autotune.decision import Timing, timing_at
from pytest_ecornn.autotune.timing import measure, probe_lengths
from tests.helpers.sleep_clock import SleepClock

CPU = torch.device("cpu")
time = SleepClock()


@pytest.fixture(autouse=True)
def _times_by_that_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "time", time)
    monkeypatch.setattr(probed_call, "time", time)


def sleeps(ms: float) -> Callable[[], None]:
    return lambda: time.sleep(ms / 1e3)


def counted(ms: float, calls: list[float]) -> Callable[[], None]:
    """Sleeps, and notes for how long."""
    return lambda: calls.append(ms) or time.sleep(ms / 1e3)


def beside(b: Callable[[], None], a_ms: float = 1.0) -> Any:
    """Candidate b is timed beside a."""
    return measure([Candidate("a", lambda steps: sleeps(a_ms)), Candidate("b", lambda steps: b)], (4,), CPU, captures=False)


@pytest.mark.parametrize(("replay_ms", "device_us"), [(0.3, 300), (None, 1e9)], ids=["a graph", "what cannot be captured"])
def test_a_graph_is_timed_beside_the_call(monkeypatch: pytest.MonkeyPatch, replay_ms: float | None, device_us: float) -> None:
    """What has none never wins on the device."""

    def capture(*given: Any) -> SimpleNamespace:
        if replay_ms is None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return SimpleNamespace(replay=sleeps(replay_ms))

    monkeypatch.setattr(probed_call, "_capture", capture)
    made = probed_call.ProbedCall(sleeps(1.0), CPU)
    made.warm_up()
    made.capture(None)
    made.run_blocks()
    assert (made.device_us, made.called_us) == pytest.approx((device_us, 1000))


def test_the_first_replay_which_uploads_the_graph_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    replays_ms = iter((1.7, 1.2))
    graph = SimpleNamespace(replay=lambda: sleeps(next(replays_ms))())
    monkeypatch.setattr(probed_call, "_capture", lambda *given: graph)
    call = probed_call.ProbedCall(sleeps(3.0), CPU)
    call.warm_up()
    call.capture(None)
    assert call.device_us == pytest.approx(1200)


@pytest.mark.parametrize(("later_ms", "calls"), [(0.2, 3), (20.0, 2)])
def test_on_a_gpu_no_sample_holds_a_modules_third_call(monkeypatch: pytest.MonkeyPatch, later_ms: float, calls: int) -> None:
    """Which is recorded; unless that takes little of a call."""
    monkeypatch.setattr(probed_call.ProbedCall, "_synchronize", lambda self: None)
    times_ms = iter([30.0, later_ms, 5.0 + later_ms])
    durations = list[float]()

    def call() -> None:
        durations.append(next(times_ms, later_ms))
        sleeps(durations[-1])()

    made = probed_call.ProbedCall(call, torch.device("cuda"))
    assert len(durations) == calls
    made.warm_up()
    assert calls == 2 or made.called_us == pytest.approx(1000 * later_ms, rel=1e-3)


def test_problems_are_timed_at_two_lengths() -> None:
    assert [probe_lengths(steps) for steps in (1, 4, 5, 47, 48, 96, 97)] == [
        *((1,), (4,), (5, 96), (47, 96), (24, 48), (24, 96), (24, 96))
    ]
    candidates = [Candidate("a", lambda steps: sleeps(0.05 * steps)), Candidate("b", lambda steps: sleeps(0.09 * steps))]
    samples = measure(candidates, (24, 96), CPU, captures=True).samples
    for name, slope_us in (("a", 50), ("b", 90)):
        for steps in (12, 24, 50, 96, 960):
            timing = timing_at((24, 96), samples[name], steps)
            assert timing.device_us == pytest.approx(slope_us * steps)
            assert timing.called_us == pytest.approx(slope_us * max(24, steps))


@pytest.mark.parametrize(
    ("steps", "called_us", "device_us"),
    [(5, 100, 25), (10, 100, 40), (20, 100, 70), (40, 136, 130), (50, 166, 160), (100, 316, 310), (200, 616, 610)],
)
def test_a_time_is_the_hosts_or_the_devices(steps: int, called_us: float, device_us: float) -> None:
    """Of 10 us and 3 us a step on the device, 6 us more as called, where the host takes 100 us."""
    samples = [Timing(100, 40), Timing(316, 310)]
    assert timing_at((10, 100), samples, steps) == Timing(called_us, device_us)


def test_a_hopeless_candidate_is_called_twice() -> None:
    for a_ms, b_ms in ((1.0, 100.0), (0.01, 12.0)):
        calls: list[float] = []
        beside(counted(b_ms, calls), a_ms)
        assert len(calls) == 2  # the first, which would compile, and the one that warms up


def test_a_candidate_is_not_hopeless_for_one_slow_sample() -> None:
    for a_ms in (1.0, 0.6, 0.01):  # another process may have the core for milliseconds, however short the call
        durations = iter([0.0, 0.008])  # of the first call, and of the one that warms up
        timings = beside(lambda durations=durations: time.sleep(next(durations, 0.0001)), a_ms).samples
        assert timings["b"][0].called_us < 2e3


def test_what_is_hopeless_late_is_not_called_again() -> None:
    late: list[list[float]] = [[] for _ in range(6)]
    slow = [Candidate(f"slow {n}", lambda steps, calls=calls: counted(12.0, calls)) for n, calls in enumerate(late)]
    measure([Candidate("a", lambda steps: sleeps(1.0)), *slow], (4,), CPU, captures=False)
    assert {len(calls) for calls in late} == {2}  # warming up has taken over half the budget


def test_a_hopeless_candidate_does_not_make_a_decision_unstable(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = sleeps(20.0)
    spreads = property(lambda self: [9.0] if self._call is slow else [1.0])
    monkeypatch.setattr(probed_call.ProbedCall, "spreads", spreads)
    assert beside(slow, 0.1).is_stable
    monkeypatch.setattr(probed_call.ProbedCall, "spreads", property(lambda self: [9.0]))
    assert not beside(slow, 0.1).is_stable


def test_a_candidate_that_fails_when_it_is_called_again_is_out() -> None:
    durations = iter([0.0, 0.008])
    result = beside(lambda: time.sleep(next(durations)))
    assert list(result.samples) == ["a"]
    assert "StopIteration" in result.failures["b"]


def test_what_is_hopeless_at_the_shorter_length_is_not_timed_at_the_longer() -> None:
    calls: list[float] = []
    candidates = [Candidate("a", lambda steps: sleeps(steps / 100)), Candidate("b", lambda steps: counted(steps, calls))]
    samples = measure(candidates, (48, 96), CPU, captures=False).samples
    assert sorted(calls) == [48, 48, 96]  # the first of each, which would compile, and the one that warms up
    assert [len(of_name) for of_name in samples.values()] == [2, 1]
    assert timing_at((48, 96), samples["b"], 960).called_us == pytest.approx(960e3)
    assert timing_at((48, 96), samples["b"], 5).called_us == pytest.approx(48e3)


def test_an_error_of_the_candidate_stays_in_its_thread() -> None:
    def broken(steps: int) -> Callable[[], object]:
        raise torch.OutOfMemoryError("too much\nand more")

    result = measure([Candidate("a", broken), Candidate("b", lambda steps: sleeps(1.0))], (4,), CPU, captures=False)
    assert result.failures == {"a": "OutOfMemoryError: too much"}
    assert list(result.samples) == ["b"]
