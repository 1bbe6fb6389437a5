"""Ceilings are measured quickly and plausibly, and the floor built on them never rises above what is possible."""

from __future__ import annotations

import itertools
import json
import time

import pytest
import torch

from pytest_ecornn.contract import Case, Cost, cells
from pytest_ecornn.measurement import roofline
from pytest_ecornn.measurement.roofline import LARGE_FOOTPRINT, Ceilings, achieved, floor_us, measure_ceilings

MB = 2**20
KNOWN = Ceilings(
    copy_points={MB: 100.0, 16 * MB: 150.0, 512 * MB: 20.0},
    read_points={MB: 90.0, 16 * MB: 140.0, 512 * MB: 25.0},
    matmul_gflop_per_s={"float32": 200.0, "float64": 100.0, "float16": 4.0, "bfloat16": 400.0},
)


def test_measured_ceilings_are_plausible_and_quick() -> None:
    start = time.perf_counter()
    found = measure_ceilings(["float16"])
    seconds = time.perf_counter() - start
    assert seconds < 30, "expected 3 s on a quiet machine, here beside other tests"
    assert min(found.copy_points) <= 64 * 1024
    assert max(found.copy_points) >= LARGE_FOOTPRINT
    assert found.copy_points.keys() == found.read_points.keys()
    assert 0.5 < found.copy_points[max(found.copy_points)] < 5000
    assert 0.5 < found.matmul_gflop_per_s["float32"] < 100_000
    assert found.matmul_gflop_per_s.keys() == {"float32", "float16"}  # 16 bits bring float32's along


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
def test_a_float32_ceiling_is_that_of_the_faster_product(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.cycle([2.0, 0.5])  # by BLAS, by oneDNN
    monkeypatch.setattr(roofline, "_best_seconds", lambda call, budget, device: (call(), next(seconds))[1])
    rates = roofline._cpu_matmul_rates(["float32"])
    assert rates["float32"] == pytest.approx(torch.get_num_threads() * 2 * 256**3 / 0.5 * 1e-9)


def test_ceilings_survive_json() -> None:
    assert Ceilings.from_dict(json.loads(json.dumps(KNOWN.as_dict()))) == KNOWN


@pytest.mark.parametrize(
    ("footprint", "expected"), [(1, 150.0), (MB, 150.0), (20 * MB, 150.0), (511 * MB, 150.0), (512 * MB, 25.0), (2**40, 25.0)]
)
def test_bandwidth_is_the_best_from_the_largest_point_that_is_not_above(footprint: int, expected: float) -> None:
    assert KNOWN.gb_per_s(footprint) == expected


def test_floor_is_the_slower_of_moving_and_computing() -> None:
    computing = Case(cell="lstm", steps=32, batch=64, hidden_size=512)
    cost = cells.minimum_cost(computing)
    assert floor_us(computing, None, KNOWN) == pytest.approx(cost.operations / 200e9 * 1e6)
    moving = Case(cell="lstm", steps=1, batch=1, hidden_size=512)
    cost = cells.minimum_cost(moving)
    assert floor_us(moving, None, KNOWN) == pytest.approx(cost.bytes / 150e9 * 1e6)


def test_shorter_sequences_have_a_lower_floor() -> None:
    case = Case(cell="lstm", steps=32, batch=64, hidden_size=512, ragged=True)
    assert floor_us(case, 1000, KNOWN) < floor_us(case, 2048, KNOWN) == floor_us(case, None, KNOWN)


# GFLOP/s of a float32 product by way of TF32 where the case allows it, and of three narrower ones.
WIDE = {"float32": 51.0, "tf32": 402.0, "float16": 742.0, "float64": 60.0}


@pytest.mark.parametrize(
    ("rates", "kind", "rate"),
    [
        (KNOWN.matmul_gflop_per_s, ["float16"], 200.0),  # slow 16-bit products are undercut by way of float32
        (KNOWN.matmul_gflop_per_s, ["bfloat16"], 400.0),
        (KNOWN.matmul_gflop_per_s, ["float64"], 100.0),
        (KNOWN.matmul_gflop_per_s, ["float32", "tf32"], 200.0),
        ({"float32": 50.0, "tf32": 120.0}, ["float32"], 50.0),
        ({"float32": 50.0, "tf32": 120.0}, ["float32", "tf32"], 120.0),
        (WIDE, ["float32"], 742 / 3),
        (WIDE, ["float32", "tf32"], 402.0),
        (WIDE, ["float64"], 60.0),
    ],
)
def test_a_product_is_held_to_its_fastest_way(rates: dict[str, float], kind: list[str], rate: float) -> None:
    assert Ceilings({1: 1.0}, {1: 1.0}, rates).gflop_per_s(*kind) == pytest.approx(rate)


def test_on_a_gpu_a_small_working_set_is_held_to_the_best_rate_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, launch = 60 * MB, 1e-6
    monkeypatch.setattr(roofline, "_is_cuda", lambda device: True)
    monkeypatch.setattr(roofline, "_cache_bytes", lambda device: cache)
    monkeypatch.setattr(roofline, "CUDA_FOOTPRINTS", tuple(2**power for power in range(16, 28)))
    monkeypatch.setattr(roofline, "LARGE_FOOTPRINT", 2**28)
    sizes: list[int] = []

    def seconds(call: object, budget: float, device: str) -> float:
        footprint = (*roofline.CUDA_FOOTPRINTS, 2**28)[len(sizes) // 2 % 13]
        sizes.append(footprint)
        return launch + footprint / (6e12 if footprint <= cache else 3e12)

    monkeypatch.setattr(roofline, "_best_seconds", seconds)
    found = Ceilings(*roofline._bandwidths("meta"), {})
    best = 32 * MB / (launch + 32 * MB / 6e12) * 1e-9
    assert [found.gb_per_s(n) for n in (1, 2**16, 2**20, 2**25, cache)] == pytest.approx([best] * 5)
    assert found.gb_per_s(2**28) == pytest.approx(2**28 / (launch + 2**28 / 3e12) * 1e-9)


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'int8': expected one of float32"):
        measure_ceilings(["int8"])
    only = Ceilings({1: 1.0}, {1: 1.0}, {"float32": 1.0})
    with pytest.raises(ValueError, match="no matmul ceiling for 'float64': measured were float32"):
        floor_us(Case(cell="gru", steps=1, batch=1, hidden_size=8, dtype="float64"), None, only)


def test_achieved_is_in_thousands_of_millions_a_second() -> None:
    assert achieved(Cost(bytes=3000, operations=5000), 2.0) == pytest.approx((1.5, 2.5))


def test_a_second_measurement_only_raises_ceilings() -> None:
    first = Ceilings({1024: 5.0, 2048: 3.0}, {1024: 9.0}, {"float32": 100.0})
    second = Ceilings({1024: 4.0, 2048: 6.0}, {1024: 8.0}, {"float32": 90.0, "float64": 50.0})
    assert first.elementwise_max(second) == Ceilings({1024: 5.0, 2048: 6.0}, {1024: 9.0}, {"float32": 100.0, "float64": 50.0})
