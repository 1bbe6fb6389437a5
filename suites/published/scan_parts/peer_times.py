"""Times of scan_gpu and its peers by turns: all of them as called, and replayed as CUDA graphs each in pairs with scan_gpu."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from statistics import median
from typing import Any

import torch

from pytest_ecornn.measurement import clocks
from pytest_ecornn.results.statistics import MIN_PAIRS
from pytest_ecornn.suites.published.common.alternating import Arm, measure_interleaved
from pytest_ecornn.suites.published.common.item_rows import reason
from pytest_ecornn.suites.published.scan_parts.peer_ways import OURS
from pytest_ecornn.system.graphs import GraphCapture

Call = Callable[[], Any]
_BLOCK_US = 30e3  # the first calls after another way's find its code in the host's caches, and take up to twice as long
Samples = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # by way its own times and scan_gpu's beside them, in us


def called(steps: Mapping[str, Call]) -> Samples:
    arms = {name: Arm([step], block_us=_BLOCK_US) for name, step in steps.items()}
    measure_interleaved(list(arms.values()), MIN_PAIRS)
    return {name: (arm.samples_us, arms[OURS].samples_us if OURS in arms else ()) for name, arm in arms.items()}


def host(steps: Mapping[str, Call], as_called: Samples, device: str) -> dict[str, float | None]:
    """How long a call takes to return, by way; None on a CPU. The ways take turns, in blocks as long as those of `called`."""
    clock = clocks.for_device(device)
    counts = {name: ceil(_BLOCK_US / median(as_called[name][0])) for name in steps}
    found = [{name: clock.host_us([step] * counts[name]) for name, step in steps.items()} for _ in range(MIN_PAIRS)]
    taken = {name: [one for times in found if (one := times[name]) is not None] for name in steps}
    return {name: median(times) if times else None for name, times in taken.items()}


def replayed(steps: Mapping[str, Call], device: str) -> tuple[Samples, dict[str, str]]:
    """Pair by pair, as a graph keeps all memory that its call takes; and why some have no graph."""
    found: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    missing: dict[str, str] = {}
    own = _captured(steps[OURS], device) if OURS in steps else "there is no scan_gpu to compare with"
    for name, step in steps.items():
        graph = own if name == OURS else _captured(step, device) if not isinstance(own, str) else own
        if isinstance(own, str) or isinstance(graph, str):
            missing[name] = str(graph)
            continue
        arms = [Arm([own]), Arm([graph])]
        measure_interleaved(arms[: 1 if name == OURS else 2], MIN_PAIRS)
        found[name] = arms[-1].samples_us or arms[0].samples_us, arms[0].samples_us
        del graph, arms
        torch.cuda.empty_cache()
    return found, missing


def _captured(step: Call, device: str) -> Call | str:
    try:
        capturing = GraphCapture(device)
        capturing.warm_up(step)
        graph, result = capturing.capture(step)
        return partial(_replay, graph, result)
    except Exception as error:
        return reason(error)


def _replay(graph: torch.cuda.CUDAGraph, result: object) -> None:
    """result: kept, as the graph writes into it."""
    graph.replay()
