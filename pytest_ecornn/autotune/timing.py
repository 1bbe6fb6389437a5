"""Times candidates for milliseconds: alternating blocks of calls as called, and replays of CUDA graphs, in a thread of its own.

What a thread inherits from nobody is left alone: streams, grad mode, autocast, hooks on saved tensors, modes. Random numbers
and gradients are the candidates' to leave alone: they run on tensors of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from threading import Thread
from typing import Any

import torch

from pytest_ecornn.autotune.decision import Timing
from pytest_ecornn.system.gpu_others import GpuOthers
from pytest_ecornn.system.graphs import discard_graph

BUDGET_MS = 50.0  # of all timed calls, or BUDGET_CALLS calls of the fastest candidate if they take longer
BUDGET_CALLS = 6
_MAX_EXACT_STEPS = 96  # longer problems are timed at these two lengths; torch's choice of an algorithm depends on T below 40
_PROBED_STEPS = (48, 96)
_MAX_ROUNDS = 6
_BLOCK_US = 1000.0
_MAX_BLOCK = 16
_SHORT_US = 2000.0
_NEVER_US = 1e9  # of a graph that there is not
_AIM = 0.75  # of the budget, as a round may take longer than the one before
_HOPELESS, _HOPELESS_ON_HOST = 2.0, 4.0  # times the fastest's time; no graph made a call that much faster beside another's
_CLEAR = 1.3
_DEVICE_BOUND, _MIN_DEVICE_BOUND_US = 1.3, 4e3  # a call's time over the host's, and at least
_MAX_SPREAD = {"cuda": 1.25, "cpu": 2.0}  # median over least of a candidate's samples on a quiet machine
_MAX_OTHERS = 0.05  # other processes' share of the GPU
_MAX_REASON_CHARS = 200


@dataclass(frozen=True)
class Candidate:
    """A backend. make_call: takes T and returns a call of that length, forward and in training backward, on its own tensors."""

    name: str
    make_call: Callable[[int], Callable[[], object]]


@dataclass
class Measurement:
    """Timings by candidate, and why others have none."""

    timings: dict[str, Timing] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    probe_ms: float = 0.0
    compile_ms: float = 0.0
    is_stable: bool = True


def probe_lengths(steps: int) -> tuple[int, ...]:
    """Lengths at which T steps of a recurrent layer are timed."""
    return (steps,) if steps <= _MAX_EXACT_STEPS else _PROBED_STEPS


def measure(
    candidates: Sequence[Candidate], steps: int, lengths: Sequence[int], device: torch.device, captures: bool
) -> Measurement:
    """Times candidates at `lengths` and extrapolates to T steps. A candidate that raises, out of memory too, has no time.

    captures: whether calls can be captured into CUDA graphs; else the device's time is that as called.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    results: list[Measurement | BaseException] = []

    def run() -> None:
        try:
            with _on_device(device):
                results.append(_measure(candidates, steps, lengths, device, captures and device.type == "cuda"))
        except BaseException as error:
            results.append(error)

    thread = Thread(target=run, name="pytest_ecornn autotune", daemon=True)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def _measure(
    candidates: Sequence[Candidate], steps: int, lengths: Sequence[int], device: torch.device, captures: bool
) -> Measurement:
    result, others = Measurement(), GpuOthers(str(device), seconds_before=1.0)
    arms: dict[str, list[_Arm]] = {}
    start = time.perf_counter()
    for candidate in candidates:
        with _failure_recorded(result, candidate.name):
            arms[candidate.name] = [_Arm(candidate.make_call(length), device) for length in lengths]
    result.compile_ms = _elapsed_ms(start)
    start = time.perf_counter()
    rivals = _warm_up(arms, len(lengths), result)
    pool = torch.cuda.graph_pool_handle() if captures else None
    for name in rivals if captures and len(rivals) > 1 else ():
        arms[name][-1].capture(pool)
    _time_rounds({name: arms[name] for name in rivals}, start, steps / lengths[-1], result)
    arms = {name: of_name for name, of_name in arms.items() if name not in result.failures}
    result.timings = {name: _extrapolated(of_name, lengths, steps) for name, of_name in arms.items()}
    result.probe_ms = _elapsed_ms(start)
    spreads = [spread for of_name in arms.values() for arm in of_name for spread in arm.spreads]
    result.is_stable = max(spreads, default=1.0) <= _MAX_SPREAD[device.type] and others.share() <= _MAX_OTHERS
    return result


def _warm_up(arms: dict[str, list[_Arm]], lengths: int, result: Measurement) -> list[str]:
    """Warms all candidates up at one length, then those that are not hopeless at the next; returns the latter."""
    rivals = list(arms)
    for i in range(lengths):
        for name in rivals:
            with _failure_recorded(result, name):
                arms[name][i].warm_up()
            if name in result.failures:
                del arms[name]
        rivals = _rivals({name: arms[name][i] for name in rivals if name in arms})
        for name in arms.keys() - set(rivals):
            del arms[name][i + 1 :]
    return rivals


def _rivals(arms: Mapping[str, _Arm]) -> list[str]:
    """Candidates worth more than the one call that warmed them up: not those that are far slower as a graph too."""
    least_us = min((arm.called_us for arm in arms.values()), default=0.0)
    return [
        name
        for name, arm in arms.items()
        if arm.called_us <= (_HOPELESS if arm.is_device_bound else _HOPELESS_ON_HOST) * least_us
    ]


def _time_rounds(arms: dict[str, list[_Arm]], start: float, scale: float, result: Measurement) -> None:
    """Alternating blocks until the budget is spent. scale: T over the longest timed length. What fails takes part no more."""
    round_ms = sum(arm.blocks_us for of_name in arms.values() for arm in of_name) / 1e3
    for number in range(_MAX_ROUNDS):
        if len(arms) < 2:
            break
        fastest_ms = min(of_name[-1].called_us for of_name in arms.values()) * max(1.0, scale) / 1e3
        before = _elapsed_ms(start)
        is_over = before + round_ms > _AIM * max(BUDGET_MS, BUDGET_CALLS * fastest_ms)
        if is_over and (number or _is_clear([of_name[-1] for of_name in arms.values()])):
            break
        for name in list(arms)[:: -1 if number % 2 else 1]:
            with _failure_recorded(result, name):
                for arm in arms[name]:
                    arm.run_blocks()
            if name in result.failures:
                del arms[name]
        round_ms = _elapsed_ms(start) - before


def _is_clear(arms: Sequence[_Arm]) -> bool:
    """Whether one sample of each is enough: the second fastest is far slower, as called and on the device."""
    columns = sorted(arm.called_us for arm in arms), sorted(arm.device_us for arm in arms)
    return all(times_us[1] > _CLEAR * times_us[0] for times_us in columns)


def _extrapolated(arms: Sequence[_Arm], lengths: Sequence[int], steps: int) -> Timing:
    """The timing at T steps: on the device proportional to T, as called never less.

    As called a step more takes as long as between the two lengths.
    """
    if len(arms) == 1:
        scale = steps / lengths[0]
        return Timing(arms[0].called_us * scale, arms[0].device_us * scale)
    device_us = arms[1].device_us * steps / lengths[1]
    return Timing(max(_linear([arm.called_us for arm in arms], lengths, steps), device_us), device_us)


def _linear(times_us: Sequence[float], lengths: Sequence[int], steps: int) -> float:
    slope = max(0.0, times_us[1] - times_us[0]) / (lengths[1] - lengths[0])
    return times_us[1] + slope * (steps - lengths[1])


class _Arm:
    """A candidate at one length: its call, its graph and the samples of both, in us a call."""

    def __init__(self, call: Callable[[], object], device: torch.device):
        self._call, self._device = call, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._called: list[float] = []
        self._replayed: list[float] = []
        self._block_us(call, 1)  # which compiles what is compiled at the first call

    def warm_up(self) -> None:
        """Makes one call, the first sample, and a few more of a short one, whose first calls take longer."""
        start = time.perf_counter()
        self._call()
        self._host_us = (time.perf_counter() - start) * 1e6
        self._synchronize()
        self._called.append((time.perf_counter() - start) * 1e6)
        if self._called[0] < _SHORT_US:
            self._called.append(self._block_us(self._call, 3))

    @property
    def is_device_bound(self) -> bool:
        """Whether the device works for so long that the host waits for it: then a graph is about as fast as the call."""
        return self.called_us > max(_DEVICE_BOUND * self._host_us, _MIN_DEVICE_BOUND_US)

    def capture(self, pool: Any) -> None:
        """Captures the call, unless a graph of it would only be as fast. What cannot be captured never wins on the device."""
        if self.is_device_bound:
            return
        try:
            self._graph = _capture(self._call, pool, self._device)
            self._replayed.append(self._block_us(self._graph.replay, 1))
        except Exception:
            self._graph, self._replayed = None, [_NEVER_US]

    @property
    def blocks_us(self) -> float:
        """Estimated us of `run_blocks`."""
        columns = (self.called_us, self.device_us)[: 1 + (self._graph is not None)]
        return sum(_calls_per_block(call_us) * call_us for call_us in columns)

    def run_blocks(self) -> None:
        self._called.append(self._block_us(self._call, _calls_per_block(self.called_us)))
        if self._graph is not None:
            self._replayed.append(self._block_us(self._graph.replay, _calls_per_block(self.device_us)))

    @property
    def called_us(self) -> float:
        return min(self._called)

    @property
    def device_us(self) -> float:
        return min(self._replayed) if self._replayed else self.called_us

    @property
    def spreads(self) -> list[float]:
        """Median over least of the samples that other work on the device disturbs."""
        samples = self._replayed or self._called
        return [median(samples) / min(samples)] if len(samples) > 2 else []

    def _block_us(self, call: Callable[[], object], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        self._synchronize()
        return (time.perf_counter() - start) * 1e6 / count

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()


def _calls_per_block(call_us: float) -> int:
    return min(_MAX_BLOCK, ceil(_BLOCK_US / call_us))


def _capture(call: Callable[[], object], pool: Any, device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of the call. All of a measurement share a pool: each replay writes before it reads."""
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        call()
        graph.capture_end()
    except BaseException:
        discard_graph(graph, pool, torch.cuda.current_device())
        raise
    return graph


@contextmanager
def _on_device(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        yield


@contextmanager
def _failure_recorded(result: Measurement, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        first: Any = next(iter(str(error).splitlines()), "")
        result.failures[name] = f"{type(error).__name__}: {first[:_MAX_REASON_CHARS]}"


def _elapsed_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1e3
