"""Ceilings of this machine, measured once a run, and the time that no algorithm can undercut on it.

A floor is only of use while it is a lower bound: a row below it is invalid. So every ceiling is the best that was seen,
reads are measured beside copies (a layer with large weights hardly writes), and a problem that fits in a cache is held
to that cache's bandwidth. On a CPU, products and caches are held to as many threads as fast as one thread alone; on a GPU,
whatever fits in the L2 to the best rate seen there, since a launch takes longer than a small copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import DTYPES, Case, Cost, cells
from pytest_ecornn.measurement.clocks import CudaEventTimer
from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.system import machine, memory
from pytest_ecornn.system.graphs import GraphCapture

SMALL_FOOTPRINTS = tuple(2**power for power in (16, 18, 20, 22, 24, 26))
CUDA_FOOTPRINTS = tuple(2**power for power in range(16, 29))
LARGE_FOOTPRINT = 2**29
LARGEST_CUDA_FOOTPRINT = 2**30
_PASSES = 3  # over all footprints: a disturbance spoils one pass, not every sample of a point
_POINT_SECONDS = 0.01
_MATMUL_SECONDS = 0.16
_PRODUCT_SECONDS = 8e-3
_LARGEST_SIDE = 8192
_GRAPH_CALLS = 50
_SPLITS = 3  # products of 16-bit or TF32 parts that make one of float32's accuracy


@dataclass(frozen=True)
class Ceilings:
    """copy_points, read_points: bytes of a working set -> GB/s (read plus written; read). matmul: dtype (or tf32) -> rate."""

    copy_points: dict[int, float]
    read_points: dict[int, float]
    matmul_gflop_per_s: dict[str, float]

    def gb_per_s(self, footprint: int) -> float:
        """The most that a working set of so many bytes can move: never more for a larger one."""
        start = max((n for n in self.copy_points if n <= footprint), default=0)
        points = [*self.copy_points.items(), *self.read_points.items()]
        return max(rate for n, rate in points if n >= start)

    def gflop_per_s(self, dtype: str, precision: str = "ieee") -> float:
        """The most that products in `dtype` reach in whatever way. Raises ValueError if not measured.

        16-bit ones may be made in float32, float32 ones of TF32 where the case allows it, or split into narrower ones.
        """
        if dtype not in self.matmul_gflop_per_s:
            raise ValueError(f"no matmul ceiling for {dtype!r}: measured were {', '.join(self.matmul_gflop_per_s)}")
        rates = [self.matmul_gflop_per_s[dtype]]
        if dtype in ("bfloat16", "float16"):
            rates.append(self.matmul_gflop_per_s.get("float32", 0.0))
        if dtype == "float32":
            rates += [self.matmul_gflop_per_s.get(way, 0.0) / _SPLITS for way in ("tf32", "bfloat16", "float16")]
            rates += [self.matmul_gflop_per_s.get("tf32", 0.0)] if precision == "tf32" else []
        return max(rates)

    def elementwise_max(self, other: Ceilings) -> Ceilings:
        """The higher of two measurements of the same device at each point: a disturbance only lowers them."""

        def higher(a: dict[Any, float], b: dict[Any, float]) -> dict[Any, float]:
            return {key: max(a.get(key, 0.0), b.get(key, 0.0)) for key in a | b}

        return Ceilings(*(higher(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Ceilings:
        """Restores ceilings from `as_dict`'s result, also after JSON has made text of the footprints."""
        copy, read = ({int(n): rate for n, rate in data[name].items()} for name in ("copy_points", "read_points"))
        return cls(copy, read, dict(data["matmul_gflop_per_s"]))


def measure_ceilings(dtypes: Iterable[str], device: str = "cpu") -> Ceilings:
    """Measures for about 2 seconds, with the machine to itself. Raises ValueError for an unknown dtype."""
    wanted = list(dict.fromkeys(dtypes))
    for dtype in wanted:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    if not {"bfloat16", "float16"}.isdisjoint(wanted):
        wanted = list(dict.fromkeys([*wanted, "float32"]))
    with torch.inference_mode():
        copy_points, read_points = _bandwidths(device)
        rates = _cuda_matmul_rates(wanted, device) if _is_cuda(device) else _cpu_matmul_rates(wanted)
    memory.trim_malloc()
    return Ceilings(copy_points, read_points, rates)


def floor_us(case: Case, valid_steps: int | None, ceilings: Ceilings) -> float:
    """The least time of `case`: what must be moved or what must be computed, whichever takes longer at its ceiling.

    `valid_steps` is the sum of the sequences' lengths, T*B for None. Raises ValueError for a dtype not measured.
    """
    return cost_floor_us(cells.minimum_cost(case, valid_steps), case.dtype, case.precision, ceilings)


def cost_floor_us(cost: Cost, dtype: str, precision: str, ceilings: Ceilings) -> float:
    """The least time of what must be moved or computed, whichever takes longer. Raises ValueError for a dtype not measured."""
    moving = cost.bytes / ceilings.gb_per_s(cost.bytes)
    computing = cost.operations / ceilings.gflop_per_s(dtype, precision)
    return max(moving, computing) * 1e-3


def achieved(cost: Cost, time_us: float) -> tuple[float, float]:
    """(GB/s, GFLOP/s) of a call that took so long."""
    return cost.bytes / time_us * 1e-3, cost.operations / time_us * 1e-3


def _is_cuda(device: str) -> bool:
    return device.startswith("cuda")


def _cache_bytes(device: str) -> int:
    """Size of the last cache before memory, in bytes."""
    if _is_cuda(device):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return machine.last_level_cache_bytes()


def _footprints(device: str, cache: int) -> tuple[int, ...]:
    """Footprints to measure, in bytes; the largest is far beyond every cache."""
    if _is_cuda(device):
        return (*CUDA_FOOTPRINTS, min(LARGEST_CUDA_FOOTPRINT, max(LARGE_FOOTPRINT, 4 * cache)) // 2**20 * 2**20)
    return (*SMALL_FOOTPRINTS, max(LARGE_FOOTPRINT, min(4 * cache, machine.memory_bytes() // 8)) // 2**20 * 2**20)


def _bandwidths(device: str) -> tuple[dict[int, float], dict[int, float]]:
    """GB/s of copies and of reads by footprint. Both run on slices of one buffer, which is as large as the largest."""
    cache = _cache_bytes(device)
    footprints = _footprints(device, cache)
    buffer = torch.ones(max(footprints) // 4, device=device)
    copy_points: dict[int, float] = {}
    read_points: dict[int, float] = {}
    for _ in range(_PASSES):
        for footprint in footprints:
            whole = buffer[: footprint // 4]
            source, target = whole.chunk(2)
            for points, call in ((copy_points, lambda: target.copy_(source)), (read_points, lambda: whole.sum())):  # noqa: B023
                rate = footprint / _best_seconds(call, _POINT_SECONDS, device) * 1e-9
                if footprint <= cache and device == "cpu":
                    with machine.one_thread() as threads:  # a ceiling that no disturbance brings down
                        rate = max(rate, threads * footprint / _best_seconds(call, _POINT_SECONDS / 4, device) * 1e-9)
                points[footprint] = max(points.get(footprint, 0.0), rate)
    if _is_cuda(device):
        for points in (copy_points, read_points):
            points.update(dict.fromkeys([n for n in points if n <= cache], max(r for n, r in points.items() if n <= cache)))
    return copy_points, read_points


def _cpu_matmul_rates(dtypes: Iterable[str]) -> dict[str, float]:
    """GFLOP/s of square products by dtype."""
    rates = {}
    for dtype in dtypes:
        rates[dtype] = _matmul_rate(getattr(torch, dtype), "cpu")
        with machine.one_thread() as threads:
            rates[dtype] = max(rates[dtype], threads * _matmul_rate(getattr(torch, dtype), "cpu"))
    return rates


def _cuda_matmul_rates(dtypes: list[str], device: str) -> dict[str, float]:
    """GFLOP/s of square products on a GPU by dtype. float32 adds the narrower products that it can be made of."""
    extra = ["float16"] if "float32" in dtypes else []
    with fp32_precision("matmul", "ieee"):
        rates = {dtype: _matmul_rate(getattr(torch, dtype), device) for dtype in dict.fromkeys([*dtypes, *extra])}
    if "float32" in dtypes:
        with fp32_precision("matmul", "tf32"):
            rates["tf32"] = _matmul_rate(torch.float32, device)
    return rates


def _matmul_rate(dtype: torch.dtype, device: str) -> float:
    """The best of sides that double until one product takes long enough for its start not to count."""
    side, best, end = 256, 0.0, float("inf") if _is_cuda(device) else time.perf_counter() + _MATMUL_SECONDS
    while True:
        a, b = torch.full((2, side, side), 0.5, dtype=dtype, device=device)
        seconds = min(_best_seconds(product, _MATMUL_SECONDS / 4, device) for product in _products(a, b))
        best = max(best, 2 * side**3 / seconds * 1e-9)
        if seconds > _PRODUCT_SECONDS or side == _LARGEST_SIDE or time.perf_counter() > end:
            return best
        side *= 2


def _products(a: Tensor, b: Tensor) -> Iterator[Callable[[], Any]]:
    """The product by BLAS, and of float32 on a CPU by oneDNN: torch's layers use that, and it is faster on some processors."""
    out = torch.empty_like(a)
    yield lambda: torch.mm(a, b, out=out)
    if a.dtype == torch.float32 and not a.is_cuda and torch.backends.mkldnn.is_available():
        dense = a.to_mkldnn(), b.to_mkldnn()
        yield lambda: torch.nn.functional.linear(*dense)


def _best_seconds(call: Callable[[], Any], budget: float, device: str) -> float:
    """The shortest time of one call, of which enough are timed together for the clock (and at least twice)."""
    return _best_cuda_seconds(call, budget, device) if _is_cuda(device) else _best_cpu_seconds(call, budget)


def _best_cpu_seconds(call: Callable[[], Any], budget: float) -> float:
    call()
    best, calls, number, end = float("inf"), 1, 0, time.perf_counter() + budget
    while number < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
        calls, number = max(1, min(1000, int(1e-3 / best))), number + 1
    return best


def _best_cuda_seconds(call: Callable[[], Any], budget: float, device: str) -> float:
    """The calls as a graph: Python launches them more slowly than the device makes small ones."""
    clock = CudaEventTimer(device)
    clock.time([call])
    calls = max(1, min(_GRAPH_CALLS, ceil(1e-3 / clock.time([call]))))
    graph, _ = GraphCapture(device).capture(lambda: [call() for _ in range(calls)])
    best, number, end = clock.time([graph.replay]) / calls, 0, time.perf_counter() + budget
    while number < 2 or time.perf_counter() < end:
        replays = max(1, min(1000, ceil(1e-3 / (best * calls))))
        best, number = min(best, clock.time([graph.replay] * replays) / (replays * calls)), number + 1
    return best
