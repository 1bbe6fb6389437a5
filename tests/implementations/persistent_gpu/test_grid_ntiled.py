"""persistent_gpu with several tiles of sequences as one: forms, the kernel with all its blocks on a CPU, and planted faults."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.cases import contents
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import include_folders
from pytest_ecornn.implementations.persistent_gpu import kernel, ops
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.cost_model import make_cost_model
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs, select_config
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from pytest_ecornn.implementations.persistent_gpu.tiling import WARPS
from pytest_ecornn.verification import calls
from tests.helpers.persistent import expect_seen, layer_of, small, verdicts, with_weights
from tests.helpers.persistent_grid import A100, ARITHMETICS, PRECISIONS, assert_a_lost_packet_is_reported
from tests.helpers.persistent_ntiled import form_of
from tests.helpers.requirements import needs_compiler
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200
from tests.simulator.compiled_on_cpu import Library, headers_of

# All blocks of a grid at once, on a CPU.


@pytest.fixture
def sizes() -> dict[str, int]:
    """Of the form that is forced."""
    return {"units": 12, "tiles": 1, "n_tiles": 1, "reg_fragments": 1, "at_once": 8, "sum_buffers": 2, "presplit": 0}


@pytest.fixture
def on_cpu(sizes: dict[str, int]) -> Iterator[None]:
    with clusters_on_cpu.running_layers(
        lambda shape, kind: form_of(kind.problem(shape.cell, shape.hidden, shape.batch), **sizes)
    ):
        yield


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize(
    ("cell", "precision", "changed", "options"),
    [
        ("lstm", PRECISIONS[0], {"tiles": 2}, {"batch": 17, "ragged": True}),
        ("gru", PRECISIONS[2], {"tiles": 2}, {"batch": 17, "bidirectional": True}),
        (
            "lstm",
            PRECISIONS[2],
            {"units": 20, "tiles": 3, "reg_fragments": 3},
            {"hidden_size": 91, "batch": 19, "batch_first": True},
        ),
        ("gru", PRECISIONS[1], {"units": 20, "n_tiles": 3, "reg_fragments": 3}, {"hidden_size": 61, "batch": 19}),
        ("rnn_tanh", PRECISIONS[3], {"units": 20, "n_tiles": 2, "tiles": 2}, {"batch": 19, "ragged": True}),
        ("lstm", PRECISIONS[3], {"units": 36, "n_tiles": 2}, {"hidden_size": 77, "batch": 11, "steps": 9, "ragged": True}),
        ("rnn_relu", PRECISIONS[0], {"units": 36, "n_tiles": 4}, {"hidden_size": 77, "batch": 29, "steps": 9}),
        ("lstm", PRECISIONS[2], {"units": 12, "n_tiles": 2, "at_once": 4}, {"hidden_size": 416, "batch": 9, "steps": 4}),
        ("gru", PRECISIONS[0], {"units": 4, "n_tiles": 1, "at_once": 4}, {"hidden_size": 516, "batch": 5, "steps": 4}),
        ("rnn_tanh", PRECISIONS[3], {"units": 12, "n_tiles": 3, "at_once": 2}, {"hidden_size": 601, "batch": 17, "steps": 4}),
        (
            "lstm",
            PRECISIONS[2],
            {"units": 20, "n_tiles": 2, "reg_fragments": 5, "presplit": 99},
            {"hidden_size": 97, "batch": 13},
        ),
        (
            "gru",
            PRECISIONS[2],
            {"units": 20, "tiles": 2, "reg_fragments": 3, "presplit": 5},
            {"hidden_size": 77, "batch": 11, "steps": 3},
        ),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_kernel_passes_the_rule(
    sums: int, cell: str, precision: dict[str, str], changed: dict[str, int], options: dict[str, Any], sizes: dict[str, int]
) -> None:  # fmt: skip
    sizes.update(changed, sum_buffers=sums)
    assert verdicts(small(cell, **{"hidden_size": 50, "has_state": True, "mode": "inference", **precision, **options})) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("batch", "units"), [(1, 4), (2, 8), (5, 4), (8, 8)])
def test_of_few_sequences_only_those_are_told(batch: int, units: int, sizes: dict[str, int]) -> None:
    sizes.update(units=units)
    for order in range(2):
        assert verdicts(small("lstm", hidden_size=17, batch=batch, mode="inference"), order) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("twice", [1, 3, 5, 8])
def test_parts_in_halves_change_no_bit(twice: int, sizes: dict[str, int]) -> None:
    case = small("lstm", hidden_size=130, batch=11, steps=4, mode="inference", **PRECISIONS[2])
    problem, found = contents.problem(case), []
    for some in (0, twice):
        sizes.update(units=20, n_tiles=2, reg_fragments=4, at_once=3, presplit=some)
        clusters_on_cpu.forget()
        found.append(calls.run(layer_of(case, problem.weights), problem))
    assert all(torch.equal(one, found[1][name]) for name, one in found[0].items())


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
    library = Library(SPLITS, headers_of(*include_folders(kernel._NTILED_SOURCE))).load()
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


def forms_of_all_kinds(problem: ProblemSize) -> list[Form]:
    """Whose last block has less than its units."""
    cluster, grid = Form(problem, 16, 4, 2, 2), Form(problem, 12, 5, 2, 2, is_grid=True)
    abreast = NTiledGridConfig(problem, 12, 5, 1, WARPS, is_grid=True, n_tiles=2)
    return [
        with_weights(one, 1, 0, 0) for one in (cluster, grid, abreast, replace(abreast, presplit_fragments=abreast.fragments))
    ]


@needs_compiler
@pytest.mark.parametrize("kind", range(4))
def test_an_infinite_state_is_not_made_nan_by_units_that_are_not_there(kind: int) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(6, 50), torch.randn(4, 9, 6)
    first = torch.zeros(2, 1, 9, 50)
    first[0, 0, 1, 3] = torch.inf
    how = RNNOptions("lstm", batch_first=False, bidirectional=False, projected=False, tf32=False)
    with torch.inference_mode():
        expected, _ = layer(x, tuple(first))
        with clusters_on_cpu.running_layers(
            lambda shape, kind_of: forms_of_all_kinds(kind_of.problem(shape.cell, shape.hidden, shape.batch))[kind]
        ):
            found = ops.run(x, tuple(first), list(layer.parameters()), None, how)
    assert expected.isfinite().all()
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-6)


# The file, what stands there, and what is planted.
SYNCS = "if (__syncthreads_or(timed_out)) return false;"
FINDS = "            __syncwarp();\n            jitter(t, 3);"
VALID = "Packet::is_valid(packets[n][k % PACKETS_IN_REGISTERS], epoch);"
FAULTS = {
    "another epoch": ("persistent_forward", "thread, t + 1, stage)", "thread, t, stage)"),
    "one place for all steps": ("persistent_forward", "* 2 + t % 2) * N_TILES", "* 2) * N_TILES"),
    "no barrier before the gates": ("persistent_forward", SYNCS, "if (timed_out) return false;"),
    "no barrier before sums are written again": ("persistent_forward", "if (SUM_BUFFERS == 1) __syncthreads();", ";"),
    "published before all lanes have computed": ("persistent_forward", FINDS, "            jitter(t, 3);"),
    "an epoch that is not checked": ("ll_b_fragments.cuh", VALID, "true;"),
    "what is late is not polled": ("ll_b_fragments.cuh", "i < prefetched; i++", "i < k + 1; i++"),
    "a packet is not published": ("ll_b_fragments.cuh", "i < PACKETS_PER_WARP; i += 32", "i < PACKETS_PER_WARP - 1; i += 32"),
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("label", FAULTS)
def test_faults_of_the_handoff_are_seen(label: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes.update(tiles=2, n_tiles=2, sum_buffers=1, units=4, at_once=3)
    case = small("lstm", steps=12, batch=20, hidden_size=140, mode="inference", dtype="float16", has_state=True)
    expect_seen(case, monkeypatch, *FAULTS[label])


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_a_lost_packet_ends_the_launch_with_nan_and_a_later_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_a_lost_packet_is_reported(monkeypatch, *FAULTS["a packet is not published"])


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("rounds", [60, 500])
def test_where_some_threads_give_up_all_end(rounds: int, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes.update(tiles=2, n_tiles=2)
    monkeypatch.setattr(kernel, "WATCHDOG_NS", rounds)
    case = small("lstm", steps=8, batch=20, hidden_size=40, mode="inference", dtype="float16")
    status = kernel.status_of(torch.device("cpu"))
    for order in range(4):
        with suppress(RuntimeError):
            assert verdicts(case, order) == [] or status.reset()
        status.reset()


# The form.


@given(
    st.sampled_from(tuple(GATES)),
    st.integers(1, 1600),
    st.integers(1, 300),
    st.sampled_from(ARITHMETICS),
    st.sampled_from([H200, A100]),
)
def test_every_form_covers_all_units_and_sequences_and_fits(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, device: Device
) -> None:  # fmt: skip
    found = [
        form
        for form in candidate_configs(ProblemSize(cell, hidden, batch, arithmetic), device)
        if isinstance(form, NTiledGridConfig)
    ]
    for form in found:
        assert form.units * form.blocks >= hidden > form.units * (form.blocks - 1)
        assert form.blocks * form.clusters <= device.num_sms
        assert form.wide * form.tiles * form.clusters >= batch > form.wide * form.tiles * (form.clusters - 1)
        assert form.streamed_fragments == 0 or hidden > 800  # tests/implementations/persistent_gpu/test_streaming.py
        assert form.shared_bytes <= device.shared_bytes
        assert 1 <= form.reg_fragments <= form.fragments_per_warp
        assert min(batch, form.wide) <= form.sequences <= form.wide
        assert form.states_per_thread * 32 * WARPS >= form.units * form.sequences
        assert 0 <= form.presplit_fragments <= form.fragments * arithmetic.is_3xtf32


@pytest.mark.parametrize(("hidden", "batch"), [(650, 32), (768, 16), (1024, 8), (1024, 16)])
def test_weights_are_split_once_where_both_halves_find_room(hidden: int, batch: int) -> None:
    problem = ProblemSize("lstm", hidden, batch, MathMode.of("float32", "ieee"))
    form = select_config(problem, H200)
    assert isinstance(form, NTiledGridConfig)
    assert form.presplit_fragments > form.fragments / 2
    assert f"; {form.presplit_fragments} of {form.fragments} in two halves" in str(form)
    plain = [
        one for one in candidate_configs(problem, H200) if isinstance(one, NTiledGridConfig) and not one.presplit_fragments
    ]
    alike = [one for one in plain if (one.units, one.n_tiles) == (form.units, form.n_tiles)]
    assert make_cost_model(form).product_us < min(make_cost_model(one).product_us for one in alike)


@pytest.mark.parametrize(("hidden", "batch", "arithmetics"), [(1500, 20, ARITHMETICS), (650, 32, ARITHMETICS[2:])])
def test_several_tiles_are_one_where_weights_are_many(hidden: int, batch: int, arithmetics: list[MathMode]) -> None:
    for arithmetic in arithmetics:
        form = select_config(ProblemSize("lstm", hidden, batch, arithmetic), H200)
        assert isinstance(form, NTiledGridConfig)
        assert form.n_tiles > 1
