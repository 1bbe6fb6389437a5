"""What is special to grids of persistent_gpu: packets in rounds, weights that are split once, groups that share a stream."""

from __future__ import annotations

import ctypes

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import include_folders
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, kernel
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaConfig
from pytest_ecornn.nn.form_times import force_config
from pytest_ecornn.verification import calls, verification
from tests.helpers.persistent import plant_fault
from tests.helpers.requirements import needs_compiler, needs_hopper
from tests.helpers.simulated_kernels import KernelRun, failures, reference_of, runs
from tests.simulator.clusters_on_cpu import H200
from tests.simulator.compiled_on_cpu import Library, headers_of


@needs_compiler
@pytest.mark.parametrize(
    "run",
    [
        run
        for tiles in (1, 2)
        for run in runs(
            "{grid,readers buffers=1 load_threads=128,readers buffers=1 load_threads=256,readers} "
            f"units=8 tiles={tiles} lstm-T4-B{8 * tiles}-I6-H300-{{float16,float32-tf32}}"
        )
    ],
    ids=str,
)
def test_more_packets_than_a_thread_has_in_flight_arrive_in_rounds(run: KernelRun, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = "PACKETS_IN_FLIGHT = BUFFERS > 0 ? 16 : 8;"
    with run.running():
        plant_fault("persistent_forward", in_flight, "PACKETS_IN_FLIGHT = 1;", monkeypatch)
        assert run.failed() == []


@needs_compiler
@pytest.mark.parametrize(
    "run",
    runs(
        "grid units=36 weights=1:1:3 gru-T5-B33-I6-H210-float16\n"
        "ntiled at_once=0 units=36 n_tiles=2 weights=1:1:3 gru-T5-B33-I6-H330-float16"
    ),
    ids=str,
)
def test_the_groups_of_a_grid_share_one_copy(run: KernelRun) -> None:
    (form,) = run.expect_right().forms
    assert form.clusters > 1
    assert form.stream_bytes == 8192 * form.streamed_fragments * form.blocks


@needs_compiler
@pytest.mark.parametrize("presplit", [1, 3, 5, 8])
def test_parts_in_halves_change_no_bit(presplit: int) -> None:
    results = []
    for fragments in (0, presplit):
        line = f"ntiled units=20 n_tiles=2 weights=4:0:0 at_once=3 presplit_fragments={fragments} lstm-T4-B11-I6-H130-float32"
        run = KernelRun.parse(line)
        problem, _ = reference_of(run.case)
        with run.running():
            results.append(calls.run(run.layer(problem), problem))
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


SPLITS = """
#define __device__
#define STORAGE_FLOAT32 1
#define USE_3XTF32 1
struct uint4 { unsigned x, y, z, w; };
static float __uint_as_float(unsigned bits) { return *(float*)&bits; }
static unsigned __float_as_uint(float value) { return *(unsigned*)&value; }
extern "C" float fabsf(float);
#include "warp_mma.cuh"
extern "C" void split(const unsigned* given, unsigned (*found)[2], int values) {
    for (int i = 0; i < values; i++) {
        const BFragment b = make_b_fragment({given[i]});
        found[i][0] = b.big.x, found[i][1] = b.small.x;
    }
}
"""


@needs_compiler
def test_two_parts_of_a_state_are_all_of_it() -> None:
    library = Library(SPLITS, headers_of(*include_folders(kernel._NTILED_SOURCE))).loaded
    exponents, below = torch.arange(512).view(-1, 1, 1) << 23, torch.arange(1 << 13)
    above = torch.tensor([0, 1, 2, 0x155, 0x200, 0x3FE, 0x3FF]).view(-1, 1) << 13
    bits = (exponents | above | below).flatten().to(torch.int32)
    parts = torch.empty(len(bits), 2, dtype=torch.int32)
    library.split(ctypes.c_void_p(bits.data_ptr()), ctypes.c_void_p(parts.data_ptr()), len(bits))
    value, (first, second) = bits.view(torch.float32), parts.view(torch.float32).unbind(1)
    nearest = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    is_small, is_none = value.isfinite() & nearest.isfinite(), value.isnan()
    assert torch.equal(parts[is_small], torch.stack((nearest, value - nearest), 1).view(torch.int32)[is_small])
    assert torch.equal(first[is_small].double() + second[is_small].double(), value[is_small].double())
    assert (second[is_none].isnan()).all()
    is_large = ~is_small & ~is_none  # the second says all, which no second part of a weight meets
    assert (first[is_large] == 0).all()
    assert torch.equal(second[is_large], value[is_large])


@needs_hopper
@pytest.mark.parametrize("hidden", [112, 128, 256])
def test_on_a_gpu_16_bit_weights_of_8_units_are_right_backward(hidden: int) -> None:
    """Repeats what NVRTC 13.0 miscompiled: the kernel read beyond W_hh."""
    case = Case.parse(f"lstm-T6-B220-I40-H{hidden}-float16-cuda-ragged-state-training")
    problem = ProblemSize("lstm", hidden, case.batch, MathMode.of("float16", "ieee"), is_backward=True)
    forms = [form for form in candidate_configs(problem, H200) if isinstance(form, WgmmaConfig) and form.units == 8]
    assert forms
    drawn = contents.problem(case)
    reference = verification.ReferenceResult(drawn)
    for form in forms[:3]:
        with force_config(form):
            results = calls.run(PersistentGpu().build(case, drawn.weights), drawn)
        assert failures(reference, results, PersistentGpu().declared) == []
