"""Times candidates for milliseconds: alternating blocks of calls as called, and replays of CUDA graphs, in a thread of its own.

What a thread inherits from nobody is left alone: streams, grad mode, autocast, hooks on saved tensors, modes. Random numbers
and gradients are the candidates' to leave alone: they run on tensors of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

import torch

from pytest_ecornn.autotune.decision import CLEAR, Timing
from pytest_ecornn.autotune.probed_call import ProbedCall
from pytest_ecornn.system.error_line import error_line
from pytest_ecornn.system.gpus.others import GpuOthers

BUDGET_MS = 50.0  # of all timed calls, or BUDGET_CALLS calls of the fastest candidate if they take longer
BUDGET_CALLS = 6
_SHORT_STEPS, _LONG_STEPS, _MAX_EXACT_STEPS = 24, 96, 4
_MAX_ROUNDS = 6
_AIM = 0.75  # of the budget, as a round may take longer than the one before
_HOPELESS, _HOPELESS_ON_HOST = 2.0, 4.0  # times the fastest's time; no graph made a call that much faster beside another's
_DOUBTFUL = 2.5  # times those limits within which a hopeless candidate is sampled once more
_REPEATED_SHARE = 0.5  # of the budget, after which none is
_MAX_SPREAD = {"cuda": 1.25, "cpu": 2.0}  # median over least of a candidate's samples on a quiet machine
_MAX_OTHERS = 0.05  # other processes' share of the GPU
_MAX_REASON_CHARS = 200
CallsByName = dict[str, list[ProbedCall]]  # a candidate's, one a length


@dataclass(frozen=True)
class Candidate:
    """A backend. make_call: takes T and returns a call of that length, forward and in training backward, on its own tensors."""

    name: str
    make_call: Callable[[int], Callable[[], object]]


@dataclass
class Measurement:
    """Timings by candidate, one a length, and why others have none."""

    samples: dict[str, list[Timing]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    probe_ms: float = 0.0
    compile_ms: float = 0.0
    is_stable: bool = True


def probe_lengths(steps: int) -> tuple[int, ...]:
    """Lengths at which T steps of a recurrent layer are timed: T itself up to 4, else two, T one of them if it is not long."""
    if steps <= _MAX_EXACT_STEPS:
        return (steps,)
    return (steps, _LONG_STEPS) if steps < 2 * _SHORT_STEPS else (_SHORT_STEPS, min(steps, _LONG_STEPS))


def measure(candidates: Sequence[Candidate], lengths: Sequence[int], device: torch.device, captures: bool) -> Measurement:
    """Times candidates at `lengths`. A candidate that raises, out of memory too, has no time.

    captures: whether calls can be captured into CUDA graphs; else the device's time is that as called.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    results: list[Measurement | BaseException] = []

    def run() -> None:
        try:
            with _on_device(device):
                results.append(_measure(candidates, lengths, device, captures and device.type == "cuda"))
        except BaseException as error:
            results.append(error)

    thread = Thread(target=run, name="pytest_ecornn autotune", daemon=True)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def _measure(candidates: Sequence[Candidate], lengths: Sequence[int], device: torch.device, captures: bool) -> Measurement:
    result, others = Measurement(), GpuOthers(str(device), seconds_before=1.0)
    arms: CallsByName = {}
    start = time.perf_counter()
    for candidate in candidates:
        with _failure_recorded(result, candidate.name):
            arms[candidate.name] = [ProbedCall(candidate.make_call(length), device) for length in lengths]
    result.compile_ms = _elapsed_ms(start)
    start = time.perf_counter()
    rivals = _warm_up(arms, len(lengths), start, result)
    pool = torch.cuda.graph_pool_handle() if captures else None
    for name in rivals if captures and len(rivals) > 1 else ():
        for arm in arms[name]:
            arm.capture(pool)
    _time_rounds({name: arms[name] for name in rivals}, start, result)
    arms = {name: of_name for name, of_name in arms.items() if name not in result.failures}
    result.samples = {name: [Timing(arm.called_us, arm.device_us) for arm in of_name] for name, of_name in arms.items()}
    result.probe_ms = _elapsed_ms(start)
    spreads = [spread for name in rivals for arm in arms.get(name, ()) for spread in arm.spreads]
    result.is_stable = max(spreads, default=1.0) <= _MAX_SPREAD[device.type] and others.share() <= _MAX_OTHERS
    return result


def _warm_up(arms: CallsByName, lengths: int, start: float, result: Measurement) -> list[str]:
    """Warms all candidates up at one length, then those that are not hopeless at the next; returns the latter.

    What is hopeless by little is called once more before, as long as little time has passed: the host's other work may have
    slowed its only sample.
    """
    rivals = list(arms)
    for i in range(lengths):
        _call_each(arms, rivals, i, ProbedCall.warm_up, result)
        here = {name: arms[name][i] for name in rivals if name in arms}
        for name in sorted({*_rivals(here, _DOUBTFUL)} - {*_rivals(here)}):
            if _elapsed_ms(start) < _REPEATED_SHARE * BUDGET_MS:
                _call_each(arms, [name], i, ProbedCall.repeat, result)
        rivals = _rivals({name: here[name] for name in here if name in arms})
        for name in arms.keys() - set(rivals):
            del arms[name][i + 1 :]
    return rivals


def _call_each(
    arms: CallsByName,
    names: Iterable[str],
    length: int,
    call: Callable[[ProbedCall], None],
    result: Measurement,
) -> None:
    """Calls a method of the candidates' arms at one length. A candidate that fails there is out."""
    for name in names:
        with _failure_recorded(result, name):
            call(arms[name][length])
        if name in result.failures:
            del arms[name]


def _rivals(arms: Mapping[str, ProbedCall], slack: float = 1.0) -> list[str]:
    """Candidates worth more than the one call that warmed them up: not those that are far slower as a graph too.

    slack: times the limits.
    """
    least_us = min((arm.called_us for arm in arms.values()), default=0.0)
    return [
        name
        for name, arm in arms.items()
        if arm.called_us <= slack * (_HOPELESS if arm.is_device_bound else _HOPELESS_ON_HOST) * least_us
    ]


def _time_rounds(arms: CallsByName, start: float, result: Measurement) -> None:
    """Alternating blocks until the budget is spent. What fails takes part no more."""
    round_ms = sum(arm.blocks_us for of_name in arms.values() for arm in of_name) / 1e3
    for number in range(_MAX_ROUNDS):
        if len(arms) < 2:
            break
        fastest_ms = min(of_name[-1].called_us for of_name in arms.values()) / 1e3
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


def _is_clear(arms: Sequence[ProbedCall]) -> bool:
    """Whether one sample of each is enough: the second fastest is far slower, as called and on the device."""
    columns = sorted(arm.called_us for arm in arms), sorted(arm.device_us for arm in arms)
    return all(times_us[1] > CLEAR * times_us[0] for times_us in columns)


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
        result.failures[name] = error_line(error, _MAX_REASON_CHARS)


def _elapsed_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1e3
