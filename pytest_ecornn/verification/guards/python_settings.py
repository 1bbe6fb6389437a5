"""Settings that Python, NumPy and Numba have once per process: random states, tracing, garbage, limits, signals, clocks."""

from __future__ import annotations

import gc
import locale
import operator
import random
import signal
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Iterator
from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime, perf_counter
from typing import Any

import numpy as np

from pytest_ecornn.verification.guards.setting import GlobalSetting, always, cannot_be_put_back, differing_keys

_TIMERS = tuple(getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name))


def _numba_threads() -> int | None:
    """0 for the number that Numba begins with: to ask before its threads exist would start them."""
    parallel: Any = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is None or not parallel._is_initialized:
        return 0
    count = int(parallel.get_num_threads())
    return 0 if count == _numba_default() else count


def _numba_default() -> int:
    return int(sys.modules["numba"].config.NUMBA_NUM_THREADS)


def _set_numba_threads(count: int) -> None:
    sys.modules["numba"].set_num_threads(count or _numba_default())


def _set_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]


def _tracers() -> tuple[Any, ...]:
    """Functions that Python calls at each line or call, in this thread and in those to come; tools that monitor, by number."""
    return sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile(), *_tools()


def _tools() -> Iterator[tuple[str, int] | None]:
    """Names and events. Python has none before 3.12."""
    if _monitoring is not None:
        for number in range(_TOOLS):
            name = _monitoring.get_tool(number)
            yield None if name is None else (name, _monitoring.get_events(number))


def _set_tracers(old: tuple[Any, ...]) -> None:
    for write, function in zip((sys.settrace, sys.setprofile, threading.settrace, threading.setprofile), old, strict=False):
        write(function)
    for number, (before, now) in enumerate(zip(old[4:], list(_tools()), strict=True)):
        if now is not None and now != before:
            _monitoring.set_events(number, before[1] if before else 0)
            if before is None:
                _monitoring.free_tool_id(number)


def _traced_frames() -> int:
    """Frames that tracemalloc keeps of each allocation; 0 where it is off."""
    return tracemalloc.get_traceback_limit() if tracemalloc.is_tracing() else 0


def _trace_allocations(frames: int) -> None:
    tracemalloc.stop()
    if frames:
        tracemalloc.start(frames)


def _timers() -> tuple[tuple[bool, float], ...]:
    """Whether each is running, and its interval."""
    return tuple((left > 0, interval) for left, interval in map(signal.getitimer, _TIMERS))


def _stop_timers(old: tuple[tuple[bool, float], ...]) -> None:
    """Stops what was started. What was stopped has no time left that could be told."""
    for timer, (was_running, _) in zip(_TIMERS, old, strict=True):
        if not was_running:
            signal.setitimer(timer, 0)


_SIGNALS = {one.name if isinstance(one, signal.Signals) else f"signal {one}": one for one in signal.valid_signals()}


def _handlers() -> dict[str, Any]:
    return {name: signal.getsignal(one) for name, one in _SIGNALS.items()}


def _set_handlers(old: dict[str, Any]) -> None:
    for name, handler in old.items():
        if handler is not None and signal.getsignal(_SIGNALS[name]) != handler:
            signal.signal(_SIGNALS[name], handler)


def _is_hypothesis(callback: Any) -> bool:
    """Whether it is Hypothesis's, which that adds when its first test runs."""
    return str(getattr(callback, "__module__", "")).startswith("hypothesis.")


def _collector_callbacks() -> list[Any]:
    return [callback for callback in gc.callbacks if not _is_hypothesis(callback)]


def _set_collector_callbacks(old: list[Any]) -> None:
    gc.callbacks[:] = [*filter(_is_hypothesis, gc.callbacks), *old]


def _clocks_agree() -> bool:
    """Whether Python's clock tells what the system's does, which is the same on Linux."""
    start, system, end = perf_counter(), clock_gettime(CLOCK_MONOTONIC), perf_counter()
    return start - _CLOCK_STEP <= system <= end + _CLOCK_STEP


def _same_rounding() -> bool:
    """Whether float64 sums go to the nearest."""
    return _ONE + _LITTLE == _ONE and _ONE - _LITTLE == _ONE and -_ONE - _LITTLE == -_ONE


_ONE, _LITTLE = 1.0, 1e-30
_CLOCK_STEP = 1e-6  # seconds: more than what is lost as a float64
_TOOLS = 6
_monitoring: Any = getattr(sys, "monitoring", None)
QUICK = (  # which take a few microseconds each to read
    GlobalSetting("Numba's threads", _numba_threads, _set_numba_threads),
    GlobalSetting("collection of garbage", gc.isenabled, lambda is_on: (gc.enable if is_on else gc.disable)()),
    GlobalSetting("thresholds of the collection of garbage", gc.get_threshold, lambda old: gc.set_threshold(*old)),
    GlobalSetting(
        "callbacks of the collection of garbage", _collector_callbacks, _set_collector_callbacks, is_of_import=always
    ),
    GlobalSetting("warnings filters", lambda: list(warnings.filters), _set_filters, is_of_import=always),
    GlobalSetting("NumPy's error state", np.geterr, lambda old: np.seterr(**old)),
    GlobalSetting("NumPy's buffer size", np.getbufsize, np.setbufsize),
    GlobalSetting("rounding of sums to the nearest", _same_rounding, cannot_be_put_back),
    GlobalSetting("Python's tracers", _tracers, _set_tracers),
    GlobalSetting("tracing of allocations", _traced_frames, _trace_allocations),
    GlobalSetting("Python's switch interval", sys.getswitchinterval, sys.setswitchinterval),
    GlobalSetting("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, is_of_import=operator.lt),
    GlobalSetting("timers that send signals", _timers, _stop_timers),
    *([GlobalSetting("agreement of clocks", _clocks_agree, cannot_be_put_back)] if sys.platform == "linux" else []),
)
RANDOM_STATES = (
    GlobalSetting("Python's random state", random.getstate, random.setstate),
    GlobalSetting("NumPy's random state", partial(np.random.get_state, legacy=True), np.random.set_state),
)
SLOW = (
    GlobalSetting("handlers of signals", _handlers, _set_handlers, tell=differing_keys),
    GlobalSetting("locale", partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
)
