"""What a layer must leave alone because all share it: random states, modes, precisions, thread counts, clocks.

`Kept` compares it before and after, and puts back what has changed, so that one implementation's fault is not another's.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

_TINY, _ONE = 5e-324, 1.0
_WINDOW_SECONDS, _MOST_WINDOWS = 0.015, 40
_QUIET_SHARE = 0.05  # of a window: on a busy machine a thread that wants a whole core gets a part of one


@dataclass(frozen=True)
class Setting:
    """One thing that is global. `read` gives None where there is nothing to tell."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


class Kept:
    """Within it, changes of the settings are noted, and undone when it ends. All settings, unless some are `given`."""

    def __init__(self, given: Iterable[Setting] | None = None) -> None:
        self.changes: list[str] = []
        self._given = given

    def __enter__(self) -> Kept:
        self._modules = len(sys.modules)
        given = settings() if self._given is None else self._given
        self._before = [(setting, setting.read()) for setting in given]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        has_imported = len(sys.modules) > self._modules
        for setting, before in self._before:
            if before is None or (setting.name == "warnings filters" and has_imported):
                continue  # a filter that an import brings is the imported module's affair
            after = setting.read()
            if not _same(before, after):
                setting.write(before)
                self.changes.append(f"{setting.name}: expected {_short(before)} as before, got {_short(after)}")


def settings() -> Iterator[Setting]:
    """Those of this process; a GPU's once it is in use."""
    yield from _SETTINGS
    yield from clocks()
    if torch.cuda.is_initialized():
        yield from _CUDA_SETTINGS
    if hasattr(torch.backends.cudnn.rnn, "fp32_precision"):
        yield from (_attribute(owner, "fp32_precision", label) for label, owner in _precision_places())
    else:
        yield from (_attribute(owner, "allow_tf32") for owner in (torch.backends.cuda.matmul, torch.backends.cudnn))


def clocks() -> Iterator[Setting]:
    """The functions that tell the time, and what a GPU's is taken with."""
    return (_attribute(owner, name) for owner, names in _CLOCKS for name in names)


def _attribute(owner: Any, name: str, label: str = "") -> Setting:
    whole = f"{label or getattr(owner, '__name__', type(owner).__name__)}.{name}"
    return Setting(whole, partial(getattr, owner, name), partial(setattr, owner, name))


def _precision_places() -> Iterator[tuple[str, Any]]:
    backends = torch.backends
    yield "torch.backends", backends
    yield "torch.backends.cuda.matmul", backends.cuda.matmul
    for backend, kinds in (("cudnn", ("rnn", "conv")), ("mkldnn", ("matmul", "rnn", "conv"))):
        owner = getattr(backends, backend)
        yield f"torch.backends.{backend}", owner
        yield from ((f"torch.backends.{backend}.{kind}", getattr(owner, kind)) for kind in kinds)


def _matmul_precision() -> str | None:
    """None where it cannot be told: the newer form has been set otherwise."""
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.get_float32_matmul_precision()
    return None


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(is_enabled: bool, warn_only: bool) -> None:
    torch.use_deterministic_algorithms(is_enabled, warn_only=warn_only)


def _set_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]


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


def _set_collecting(is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()


_SETTINGS = (
    Setting("torch's random state", torch.get_rng_state, torch.set_rng_state),
    Setting("Python's random state", random.getstate, random.setstate),
    Setting("NumPy's random state", partial(np.random.get_state, legacy=True), np.random.set_state),
    Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch's threads", torch.get_num_threads, torch.set_num_threads),
    Setting("Numba's threads", _numba_threads, _set_numba_threads),
    Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting(
        "deterministic algorithms", _deterministic, lambda old: torch.use_deterministic_algorithms(old[0], warn_only=old[1])
    ),
    Setting("flushing of denormals", lambda: _TINY * _ONE == 0, torch.set_flush_denormal),
    Setting("float32 matmul precision", _matmul_precision, torch.set_float32_matmul_precision),
    Setting("warnings filters", lambda: list(warnings.filters), _set_filters),
    Setting("collection of garbage", gc.isenabled, _set_collecting),
    Setting("NumPy's error state", np.geterr, lambda old: np.seterr(**old)),
    *(_attribute(torch.backends.cudnn, name, "torch.backends.cudnn") for name in ("enabled", "benchmark", "deterministic")),
)
_CUDA_SETTINGS = (
    Setting("current CUDA device", torch.cuda.current_device, torch.cuda.set_device),
    Setting("current CUDA stream", torch.cuda.current_stream, torch.cuda.set_stream),
    Setting("CUDA's random states", torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all),
)
_CLOCKS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time", "sleep")),
    (torch.cuda, ("Event", "Stream", "CUDAGraph", "synchronize", "current_stream")),
    (torch.cuda.Event, ("record", "elapsed_time", "synchronize")),
)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one is other or one == other)


def _short(value: Any) -> str:
    is_long = isinstance(value, (Tensor, np.ndarray)) or (isinstance(value, (tuple, list)) and len(value) > 2)
    return "another" if is_long else str(value)[:80]


def live_threads() -> int:
    """How many the process has; where the system does not say, how many Python knows."""
    tasks = Path("/proc/self/task")
    return len(os.listdir(tasks)) if tasks.is_dir() else threading.active_count()


def is_burning() -> bool:
    """Whether other threads keep a core busy for as long as they are looked at: pools spin for a while before they rest."""
    for _ in range(_MOST_WINDOWS):
        start, spent = time.monotonic(), time.process_time()
        time.sleep(_WINDOW_SECONDS)
        if time.process_time() - spent < _QUIET_SHARE * (time.monotonic() - start):
            return False
    return True
