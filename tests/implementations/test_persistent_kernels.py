"""One suite for all persistent kernels, on a CPU's simulator and on a GPU: what passes, what is planted, and what gives up.

tests/helpers/simulated_kernels.py says how a line of these tables is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, heuristics, kernel, ops, wavefront
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from pytest_ecornn.verification import calls
from tests.helpers.persistent import expect_right, plant_fault, with_fault
from tests.helpers.planted_faults import EXCHANGE, NOT_PUBLISHED, PLANTED, WAVE, Fault
from tests.helpers.requirements import needs_ampere, needs_compiler, needs_hopper, on_simulator
from tests.helpers.simulated_kernels import KERNELS, ORDERS, KernelRun, Seen, expanded, is_right, reference_of, runs
from tests.simulator import clusters_on_cpu

CPU = torch.device("cpu")

# What passes.

_GRIDS = "{grid,readers buffers=1 load_threads=256,readers}"
_STREAMED = "weights={1:0:1,1:1:3,5:0:1}"
_STREAMED_BACKWARD = f"grid_backward k_partitions=1 {_STREAMED}"
_ALL = "bidirectional-batchfirst-ragged-state"
_SUMS = "sum_buffers={1,2}"
THINNED = runs(f"""
cluster *-T5-B3-I6-H9-float16-training
cluster *-T1-B1-H1-float16-ragged-training
cluster *-T5-B17-I6-H40-float16-nobias-state-training
cluster *-T9-B3-I6-H9-L2-float16-bidirectional-batchfirst-ragged-state-training
cluster *-T5-B9-H9-float16-bidirectional-projected
cluster *-T5-B3-I6-H9-bfloat16-density0.4-training-saturated
cluster *-T5-B3-I6-H18-bfloat16-strided
cluster *-T5-B3-I6-H9-float32-ragged-state-training
cluster *-T5-B20-I6-H50-float32-tf32-bidirectional-training
block *-T5-B3-I6-H9-float16-training
block block_sequences=1 *-T5-B3-I6-H9-float32-bidirectional-ragged-state-training
block units_per_thread=4 k_vector=4 block_sequences=3 *-T5-B5-I6-H18-bfloat16-state-training
block units_per_thread=1 *-T1-B1-I6-H1-bfloat16-ragged-training
block units_per_thread=8 k_vector=1 block_sequences=4 *-T5-B3-I6-H33-L2-float32-tf32-{_ALL}-training
block smem_vectors=1 *-T5-B3-I6-H20-float32-bidirectional-ragged-state-training
block smem_vectors=2 k_vector=1 *-T5-B7-I6-H37-bfloat16-training
{_GRIDS} tiles=2 lstm-T5-B17-I6-H50-float16-ragged-state
{_GRIDS} tiles=2 gru-T5-B17-I6-H50-float32-bidirectional-state
{_GRIDS} units=20 tiles=3 weights=3:0:0 lstm-T5-B19-I6-H91-float32-batchfirst-state
{_GRIDS} units=20 tiles=3 weights=3:0:0 gru-T5-B19-I6-H61-bfloat16-state
{_GRIDS} units=20 tiles=3 rnn_tanh-T5-B19-I6-H50-float32-tf32-ragged-state
{_GRIDS} units=36 k_partitions=4 lstm-T9-B3-I6-H77-float32-tf32-ragged-state
{_GRIDS} units=36 k_partitions=4 rnn_relu-T9-B3-I6-H77-float16-state
grid units=36 tiles=2 {_STREAMED} lstm-T5-B17-I6-H410-float16-ragged-state
readers units=22 buffers=1 {_STREAMED} gru-T5-B3-I6-H450-float16-state
readers units=36 tiles=2 {_STREAMED} gru-T5-B17-I6-H410-float32-bidirectional-state
grid units=36 k_partitions=4 {_STREAMED} lstm-T9-B3-I6-H577-float32-tf32-ragged-state
grid units=22 k_partitions=1 {_STREAMED} rnn_tanh-T5-B5-I6-H620-bfloat16-state
grid_backward *-T5-B9-I6-H50-{{float16,bfloat16,float32,float32-tf32}}-bidirectional-ragged-state-training
{_STREAMED_BACKWARD} units=12 grid_rows=8 tiles=2 lstm-T5-B17-I6-H150-float16-ragged-state-training
{_STREAMED_BACKWARD} units=22 grid_rows=4 gru-T5-B3-I6-H150-float16-state-training
{_STREAMED_BACKWARD} units=12 grid_rows=4 tiles=2 gru-T5-B13-I6-H150-float32-bidirectional-state-training
{_STREAMED_BACKWARD} units=18 grid_rows=4 lstm-T9-B3-I6-H150-float32-tf32-ragged-state-training
{_STREAMED_BACKWARD} units=12 grid_rows=8 tiles=3 n_tiles=2 lstm-T5-B23-I6-H150-float16-ragged-state-training
{_STREAMED_BACKWARD} units=12 grid_rows=8 tiles=4 n_tiles=4 gru-T4-B29-I6-H150-float32-state-training
{_STREAMED_BACKWARD} units=22 grid_rows=16 rnn_tanh-T5-B5-I6-H340-bfloat16-state-training
ntiled {_SUMS} tiles=2 lstm-T5-B17-I6-H50-float16-ragged-state
ntiled {_SUMS} tiles=2 gru-T5-B17-I6-H50-float32-bidirectional-state
ntiled {_SUMS} units=20 tiles=3 weights=3:0:0 lstm-T5-B19-I6-H91-float32-batchfirst-state
ntiled {_SUMS} units=20 n_tiles=3 weights=3:0:0 gru-T5-B19-I6-H61-bfloat16-state
ntiled {_SUMS} units=20 n_tiles=2 tiles=2 rnn_tanh-T5-B19-I6-H50-float32-tf32-ragged-state
ntiled {_SUMS} units=36 n_tiles=2 lstm-T9-B11-I6-H77-float32-tf32-ragged-state
ntiled {_SUMS} units=36 n_tiles=4 rnn_relu-T9-B29-I6-H77-float16-state
ntiled {_SUMS} n_tiles=2 at_once=4 lstm-T4-B9-I6-H416-float32-state
ntiled {_SUMS} units=4 at_once=4 gru-T4-B5-I6-H516-float16-state
ntiled {_SUMS} n_tiles=3 at_once=2 rnn_tanh-T4-B17-I6-H601-float32-tf32-state
ntiled {_SUMS} units=20 n_tiles=2 weights=5:0:0 presplit_fragments=99 lstm-T5-B13-I6-H97-float32-state
ntiled {_SUMS} units=20 tiles=2 weights=3:0:0 presplit_fragments=5 gru-T3-B11-I6-H77-float32-state
ntiled at_once=0 units=36 tiles=2 {_STREAMED} lstm-T5-B17-I6-H450-float16-ragged-state
ntiled at_once=0 units=50 n_tiles=3 {_STREAMED} gru-T5-B19-I6-H700-float16-state
ntiled at_once=0 units=36 n_tiles=2 sum_buffers=1 {_STREAMED} gru-T5-B13-I6-H450-float32-bidirectional-state
ntiled at_once=0 units=36 {_STREAMED} lstm-T9-B3-I6-H577-float32-tf32-ragged-state
ntiled at_once=0 units=66 {_STREAMED} rnn_tanh-T3-B5-I6-H1500-bfloat16-state
wgmma stages=4 lstm-T5-B41-I6-H50-float32-tf32-ragged-state
wgmma stages=3 gru-T5-B40-I6-H50-float32-bidirectional-state
wgmma cluster=1 k_partitions=1 units=8 gru-T5-B90-I6-H77-float32-tf32-state
wgmma n_tiles=4 tiles=2 pointwise_batch=16 units=20 rnn_tanh-T5-B50-I6-H50-float16-ragged-state
wgmma n_tiles=6 tiles=1 chunk_fragments=2 sum_buffers=1 cluster=1 lstm-T4-B97-I6-H50-bfloat16-state
wgmma n_tiles=8 tiles=1 k_partitions=1 weights=2:0:0 units=20 rnn_relu-T5-B60-I6-H61-float32-batchfirst-state
wgmma units=16 lstm-T5-B33-I6-H50-float32
wgmma_backward stages=4 lstm-T5-B41-I6-H50-float32-tf32-ragged-state-training
wgmma_backward stages=3 grid_rows=3 gru-T5-B40-I6-H50-float32-bidirectional-state-training
wgmma_backward k_partitions=1 units=8 grid_rows=5 gru-T5-B60-I6-H77-float32-tf32-state-training
wgmma_backward n_tiles=4 tiles=2 pointwise_batch=16 units=10 rnn_tanh-T5-B50-I6-H50-float16-ragged-state-training
wgmma_backward n_tiles=6 tiles=1 chunk_fragments=2 sum_buffers=1 lstm-T3-B97-I6-H50-bfloat16-state-training
wgmma_backward n_tiles=8 tiles=1 k_partitions=1 weights=2:0:0 units=8 rnn_relu-T5-B60-I6-H61-float32-batchfirst-state-training
wave *-T5-B3-I6-H9-L2-float16-training
wave *-T7-B3-I6-H9-L3-float16-batchfirst-ragged-state-training
wave *-T1-B1-H1-L2-float16-ragged-training
wave *-T2-B17-I6-H9-L4-float16-nobias
wave *-T5-B9-I70-H40-L3-bfloat16-state-training
wave *-T5-B3-I6-H18-L2-float16-{{strided,offset}}
wave *-T7-B3-I6-H9-L2-float32-ragged-state-training
wave *-T5-B20-I6-H50-L2-float32-tf32-training
wave *-T7-B3-H9-L3-float16-projected
""")
WHOLE = runs("""
cluster units=64 tiles=2 k_partitions=2 weights=3:0:0 rnn_relu-T3-B20-I6-H150-float16-bidirectional-ragged-state-training
cluster units=128 tiles=1 k_partitions=8 weights=50:0:0 rnn_relu-T3-B3-I6-H140-float16-bidirectional-ragged-state-training
cluster units=32 tiles=1 weights=1:0:1 rnn_tanh-T3-B9-I6-H160-float32-bidirectional-ragged-state-training
cluster units=16 tiles=1 weights=50:0:0 lstm-T3-B9-I6-H60-float16-bidirectional-ragged-state-training
cluster units=32 tiles=2 k_partitions=4 weights=5:0:0 lstm-T3-B19-I6-H70-float32-bidirectional-ragged-state-training
cluster units=48 tiles=3 weights=2:1:2 lstm-T3-B24-I6-H50-float16-bidirectional-ragged-state-training
cluster units=16 tiles=4 k_partitions=8 weights=50:0:0 lstm-T3-B30-I6-H20-float32-bidirectional-ragged-state-training
cluster units=96 tiles=1 weights={1:3:3,5:4:3,5:0:0} lstm-T3-B5-I6-H200-float16-bidirectional-ragged-state-training
cluster units=32 tiles=3 k_partitions=2 weights=50:0:0 gru-T3-B25-I6-H65-float32-bidirectional-ragged-state-training
cluster units=16 tiles=2 weights=2:0:1 gru-T3-B24-I6-H60-float16-bidirectional-ragged-state-training
cluster gru-T8-B1-H1-L3-bfloat16-state-projected-training-seed{7,8,18,30,43,45}
cluster lstm-T5-B9-I6-H{1,8,16,64}-float16-ragged-state-training
cluster gru-T5-B9-I6-H{1,8,16,64}-float32-ragged-state-training
block *-T5-B3-H18-bfloat16-projected-strided
{grid,readers buffers=1 load_threads=256} orders=2 units=4 lstm-T5-B{1,5}-I6-H17-bfloat16
{grid,readers buffers=1 load_threads=256} orders=2 units=8 lstm-T5-B{2,8}-I6-H17-bfloat16
ntiled orders=2 units=4 lstm-T5-B{1,5}-I6-H17-bfloat16
ntiled orders=2 units=8 lstm-T5-B{2,8}-I6-H17-bfloat16
grid_backward orders=2 units=4 lstm-T3-B{1,5}-I6-H17-bfloat16-training
grid_backward orders=2 units=8 lstm-T3-B{2,8}-I6-H17-bfloat16-training
grid_backward units=4 rnn_tanh-T1-B{1,5}-I6-H1-bfloat16-ragged-training
grid_backward units=8 rnn_tanh-T1-B{2,8}-I6-H1-bfloat16-ragged-training
grid_backward tiles=2 lstm-T5-B17-I6-H50-float16-ragged-state-training
grid_backward tiles=2 grid_rows=3 gru-T5-B17-I6-H50-float32-bidirectional-state-training
grid_backward units=20 tiles=3 weights=3:0:0 k_partitions=4 lstm-T5-B19-I6-H91-float32-state-training
grid_backward tiles=2 lstm-T5-B13-I6-H50-float32-bidirectional-batchfirst-ragged-state-training
grid_backward units=20 tiles=3 weights=3:0:0 k_partitions=1 gru-T5-B19-I6-H61-bfloat16-state-training
grid_backward units=40 tiles=3 grid_rows=1 rnn_tanh-T5-B19-I6-H81-float32-tf32-ragged-state-training
grid_backward units=36 k_partitions=8 lstm-T9-B3-I6-H77-float32-tf32-ragged-state-training
grid_backward units=36 grid_rows=3 rnn_relu-T9-B3-I6-H77-float16-state-training-strided
grid_backward units=8 grid_rows=4 lstm-T5-B3-I6-H64-L2-float16-state-training-saturated
wave units=16 tiles=1 k_partitions=1 lstm-T4-B9-I24-H40-L2-float16-ragged-state
wave units=32 tiles=2 k_partitions=4 lstm-T4-B19-I6-H70-L2-float32-ragged-state
wave units=16 tiles=3 k_partitions=8 lstm-T4-B30-I100-H30-L2-bfloat16-ragged-state
wave units=32 tiles=3 k_partitions=2 gru-T4-B25-H65-L2-float32-ragged-state
wave units=16 tiles=4 k_partitions=1 gru-T4-B30-I7-H40-L2-float16-ragged-state
wave units=64 tiles=2 k_partitions=2 rnn_relu-T4-B20-I20-H150-L2-float16-ragged-state
once *-T1-B9-I6-H40-float16-state
once *-T1-B29-I6-H24-float16-state
once *-T1-B3-I70-H33-bfloat16-nobias
once *-T1-B3-I6-H90-L2-float32-bidirectional-batchfirst-state
once *-T1-B3-H64-float32-tf32-state
once *-T1-B3-I6-H18-float16-state-{strided,offset}
once *-T1-B1-H1-L2-float16-training
once *-T1-B19-I6-H40-float16-state-training
once *-T1-B{7,33,70}-I6-H33-bfloat16-nobias-training
once *-T1-B3-I6-H90-L2-float32-bidirectional-batchfirst-state-training
once *-T1-B3-H64-float32-tf32-training
once *-T1-B3-H18-L2-float16-projected-state-training
once *-T1-B3-I6-H18-float32-training-strided
sparse *-T4-B3-I6-H9-float32-density0.4-{inference,training}
once lstm-T1-B17-I6-H31-bfloat16-state-training-seed759
cluster gru-T6-B18-I6-H9-bfloat16-ragged-state-training-seed367
cluster rnn_relu-T5-B9-I6-H24-float32-state-seed974
cluster rnn_tanh-T4-B5-I6-H33-float32-ragged-state-seed473
wave rnn_relu-T3-B14-I6-H12-L3-bfloat16-state-seed900
wave lstm-T2-B17-I6-H4-L2-float32-state-training-seed238
wave gru-T7-B17-I6-H13-L3-bfloat16-ragged-state-seed299
wave rnn_tanh-T5-B7-I6-H9-L2-float32-ragged-state-training-seed535
sparse gru-T1-B8-I6-H5-float16-ragged-state-density0.8-training-seed986
sparse rnn_relu-T8-B15-I6-H9-float16-ragged-state-density0.02-training-seed252
sparse lstm-T2-B13-I6-H3-float16-ragged-state-density0.8-training-seed319
sparse rnn_tanh-T5-B20-I6-H59-float32-ragged-state-density0.3-training-seed539
""")
# The first product of an input by the kernel itself.
FUSED = runs(
    """
FUSED *-T3-B5-I70-H40-float16-ragged-state
FUSED *-T7-B1-H33-bfloat16-nobias
FUSED *-T2-B6-I6-H30-L2-float32-bidirectional-batchfirst
FUSED *-T2-B8-I136-H20-float32-tf32-ragged-state
FUSED *-T16-B1-I24-H18-float16-bidirectional-strided
FUSED *-T2-B4-I24-H18-float16-state-offset
""".replace("FUSED", "{cluster,grid units=36,readers units=36,ntiled n_tiles=2}")
)
# More rows than are multiplied at once: one part after the other.
FUSED_IN_PARTS = runs(
    "{cluster,grid units=36,readers units=36,ntiled n_tiles=2} fused_rows=1000 "
    "lstm-T11-B13-H40-{float16,bfloat16,float32,float32-tf32}"
)
SPARSE = [
    run
    for cell, dtype in (("rnn_tanh", "bfloat16"), ("rnn_relu", "float32"), ("lstm", "float32"), ("gru", "float16"))
    for run in runs(f"""
sparse {cell}-T1-B1-H1-{dtype}-density0.4-training
sparse {cell}-T7-B3-I6-H9-L2-{dtype}-bidirectional-batchfirst-ragged-state-density0.4-training
sparse {cell}-T4-B9-H9-{dtype}-bidirectional-nobias-projected-density0.4-training
sparse {cell}-T4-B19-I6-H20-{dtype}-ragged-state-density0.4-training
sparse {cell}-T4-B3-I6-H40-{dtype}-density0.4-training-saturated
sparse {cell}-T4-B3-I6-H18-{dtype}-density0.4-training-strided
sparse {cell}-T4-B3-I6-H33-{dtype}-density0.97-training
sparse {cell}-T4-B3-I6-H50-{dtype}-bidirectional-density0.01-training
sparse cluster={{2,4}} {cell}-T4-B1-I6-H70-{dtype}-density0.5-training
sparse cluster={{2,4}} {cell}-T7-B3-I6-H61-{dtype}-ragged-state-density0.5-training
sparse cluster={{2,4}} {cell}-T4-B2-I6-H19-{dtype}-bidirectional-density0.3-training
sparse cluster={{2,4}} {cell}-T9-B{4 if dtype == "float32" else 8}-I6-H50-{dtype}-state-density0.2-training
""")
    if cell in ("lstm", "gru") or ("cluster", 4) not in run.sizes
]
SPARSE += runs("""
sparse register_words={0,3,300} lstm-T4-B{1,2,3,8,33}-I6-H64-{float32,bfloat16}-ragged-density0.6-training
sparse cluster=2 lstm-T8-B4-I6-H27-float32-ragged-state-density0.3-training-seed68
sparse cluster=2 rnn_relu-T4-B3-I6-H13-float16-state-density0.8-training-seed879
sparse cluster=2 gru-T5-B1-I6-H31-float32-ragged-state-density0.8-training-seed98
sparse cluster=2 lstm-T4-B2-I6-H58-float16-state-density0.3-training-seed938
""")


def expect_launched(run: KernelRun, seen: Seen) -> None:
    """That the kernel ran, of as many layers or columns as it should have."""
    assert run.kernel.source in seen.launched
    if run.kernel is KERNELS["wave"]:
        assert {form.layers for form in seen.forms} == {run.case.layers - run.case.projected}
    if run.kernel is KERNELS["once"]:
        launches = run.case.layers * run.case.directions
        assert seen.launched.count(run.kernel.source) == launches - run.case.projected * run.case.directions
        assert seen.launched.count("single_step_backward") == run.case.training * launches
    if run.kernel is KERNELS["sparse"]:
        assert dict(run.sizes).get("cluster", 1) in {form.cluster for form in seen.forms}  # forward or backward, if not both


@needs_compiler
@pytest.mark.parametrize(
    "run", [*(pytest.param(run, marks=pytest.mark.test_all(keep=2)) for run in [*THINNED, *SPARSE]), *WHOLE], ids=str
)
def test_a_kernel_passes_the_rule(run: KernelRun) -> None:
    expect_launched(run, run.expect_right())


@needs_compiler
@pytest.mark.parametrize(
    "run", [*(pytest.param(run, marks=pytest.mark.test_all(keep=2)) for run in FUSED), *FUSED_IN_PARTS], ids=str
)
def test_a_kernel_that_makes_the_input_product_passes_the_rule(run: KernelRun) -> None:
    seen = run.expect_right()
    above = [run.case.directions * run.case.hidden_size] * (run.case.layers - 1)
    assert {spec.inputs for spec in seen.specs} == {run.case.input_size, *above}
    assert run.kernel.source in seen.launched


@needs_compiler
@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=2, deadline=None)
@given(st.data())
def test_any_steps_in_any_order_of_threads(name: str, data: st.DataObject) -> None:
    """Neither is compiled into a kernel, but for the input product of few steps, which is left out."""
    run = data.draw(st.sampled_from([run for run in [*THINNED, *WHOLE, *SPARSE] if run.kernel is KERNELS[name]]))
    steps = run.case.steps if name == "once" else data.draw(st.integers(2, 8))
    seed = run.case.seed if name == "sparse" else data.draw(st.integers(0, 2**20))  # which draws the pattern there
    order = data.draw(st.integers(0, 2**20))
    drawn = replace(run, case=replace(run.case, steps=steps, seed=seed), fused_rows=0)
    with drawn.running():
        assert drawn.failed(order) == []


@needs_compiler
@pytest.mark.parametrize(
    "run",
    runs("""
{cluster,block,grid,readers,ntiled,grid_backward} *-T5-B9-I6-H20-float32-bidirectional-ragged-state-training
{wgmma,wgmma_backward} *-T5-B20-I6-H20-float32-bidirectional-ragged-state-training
cluster *-T3-B5-I6-H9-float16-bidirectional-batchfirst-ragged-state
{cluster,grid,readers,ntiled} fused_rows=1000 gru-T5-B9-I6-H20-float32-ragged-state
cluster lstm-T1-B9-I6-H20-float32-ragged-state
wave *-T5-B9-I6-H20-L2-float32-ragged-state-training
sparse *-T5-B9-I6-H20-float32-bidirectional-ragged-state-density0.4-training
"""),
    ids=str,
)
def test_any_lengths_and_what_lies_in_the_padding(run: KernelRun) -> None:
    """Lengths out of range count as 0 or T, and nothing depends on the padding of x and of the output's gradient."""
    case, problem = run.case, contents.problem(run.case)
    lengths = torch.tensor([0, case.steps + 1, 2, -1, 2**40, 1, case.steps]).repeat(case.batch)[: case.batch]
    within = replace(problem, lengths=lengths.clamp(0, case.steps))
    assert within.padding is not None
    fill = 0.0 if run.kernel is KERNELS["sparse"] else torch.nan  # whose input product is torch's
    x, *gradients = (one.clone() for one in (problem.x, *problem.output_gradients))
    for rows in (x, *gradients[:1]):
        rows[within.padding] = fill
    with run.running():
        assert run.failed(problem=within) == []
        other = replace(within, lengths=lengths, x=x, output_gradients=tuple(gradients))
        expected, found = (calls.run(run.layer(problem), of) for of in (within, other))
    for name, tensor in expected.items():
        assert tensor is None or torch.equal(tensor, found[name]), name  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize(
    "run",
    runs("""
cluster units=16 tiles=2 k_partitions=2 weights=1:0:0 lstm-T4-B9-I6-H50-float32
grid tiles=2 lstm-T4-B9-I6-H50-float32
ntiled at_once=0 n_tiles=2 presplit_fragments={0,99} lstm-T4-B9-I6-H50-float32
block lstm-T8-B3-I6-H19-float32
"""),
    ids=str,
)
def test_an_infinite_state_is_not_made_nan_by_units_that_are_not_there(run: KernelRun) -> None:
    case = run.case
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(case.input_size, case.hidden_size), torch.randn(case.steps, case.batch, case.input_size)
    first = torch.zeros(2, 1, case.batch, case.hidden_size)
    first[0, 0, 1, 3] = torch.inf
    options = RNNOptions("lstm", batch_first=False, bidirectional=False, projected=False, tf32=False)
    with torch.inference_mode(), run.running():
        expected, _ = layer(x, tuple(first))
        output = ops.run(x, tuple(first), list(layer.parameters()), None, options)[0]
    assert expected.isfinite().all()
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


@on_simulator("poisoned")
@pytest.mark.parametrize("run", runs("wave *-T5-B11-I6-H20-L3-float16-ragged-state-training"), ids=str)
def test_memory_that_nobody_wrote_is_not_read(run: KernelRun) -> None:
    run.expect_right()


# What is planted.


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.parametrize(("group", "label"), [(group, label) for group, (_, faults) in PLANTED.items() for label in faults])
def test_a_planted_fault_is_seen(group: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line, faults = PLANTED[group]
    assert all(is_right(run) for run in runs(line))
    assert any(is_seen(faults[label], run, monkeypatch) for run in runs(line)), faults[label]


def is_seen(fault: Fault, run: KernelRun, monkeypatch: pytest.MonkeyPatch) -> bool:
    with run.running(), monkeypatch.context() as patch:
        plant_fault(*fault, patch)
        return any(run.fails(order) for order in range(ORDERS))


def planted(group: str, label: str) -> Fault:
    return PLANTED[group][1][label]


# What is lost.

GAVE_UP = "an earlier launch of a persistent kernel on cpu is wrong: a block waited "
SENT_NOTHING, PUBLISHES_LESS = planted("cluster", "a block is sent nothing"), planted("sparse", "a packet is not published")
LAYER_IS_SILENT = (WAVE, "st_release(step_flag, t + 1)", "st_release(step_flag, 0)")
LOST: list[tuple[str, Fault]] = [
    ("cluster watchdog=2000 gru-T5-B3-I6-H40-bfloat16-state", SENT_NOTHING),
    ("cluster watchdog=2000 gru-T5-B3-I6-H40-bfloat16-state-training", planted("cluster backward", "sums are not sent")),
    ("{grid,readers buffers=1 load_threads=256,readers} watchdog=2000 gru-T5-B3-I6-H40-bfloat16-state", NOT_PUBLISHED),
    ("ntiled watchdog=2000 gru-T5-B3-I6-H40-bfloat16-state", planted("ntiled", "a packet is not published")),
    ("wgmma watchdog=20000 gru-T5-B30-I6-H40-bfloat16-state", planted("wgmma", "what is not published")),
    (
        "grid_backward watchdog=2000 gru-T5-B3-I6-H40-bfloat16-state-training",
        planted("grid_backward", "a sum is not published"),
    ),
    ("grid_backward watchdog=2000 gru-T5-B3-I6-H40-bfloat16-state-training", NOT_PUBLISHED),
    ("wave watchdog=2000 lstm-T5-B3-I6-H40-L3-bfloat16-state", LAYER_IS_SILENT),
    ("wave watchdog=2000 lstm-T5-B3-I6-H40-L3-bfloat16-state", SENT_NOTHING),
    ("sparse{, cluster=2} watchdog=2000 gru-T4-B3-I6-H40-float32-state-density0.4-{inference,training}", PUBLISHES_LESS),
    (
        "sparse without=timestamps watchdog=2000 gru-T4-B3-I6-H40-float32-state-density0.4-{inference,training}",
        (EXCHANGE, "if (thread == 0) red_add", "if (thread == 1000) red_add"),
    ),
    (
        "sparse cluster=2 watchdog=2000 gru-T4-B3-I6-H40-float32-state-density0.4-{inference,training}",
        ("cluster_reduce.cuh", "if (!destination.address) return", "if (threadIdx.x == 5) return"),
    ),
]


@needs_compiler
@pytest.mark.parametrize(
    ("run", "fault"), [pytest.param(run, fault, id=f"{run}-{fault[0]}") for line, fault in LOST for run in runs(line)]
)
def test_what_is_lost_ends_the_launch_with_nan_and_a_later_call_raises(
    run: KernelRun, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, _ = reference_of(run.case)
    with run.running(), torch.inference_mode(not run.case.training):
        layer = run.layer(problem)
        try:
            with monkeypatch.context() as patch:
                plant_fault(*fault, patch)
                results = calls.run(layer, problem)
        except RuntimeError:  # of the backward pass, after a forward pass that gave up
            assert run.kernel is KERNELS["sparse"]
            assert run.case.training
        else:
            expect_nan(run, results)
            with pytest.raises(RuntimeError, match=f"{GAVE_UP}{run.watchdog / 1e9:g} s"):
                calls.run(layer, problem)
        kernel.status_of(CPU).reset()
        clusters_on_cpu.forget()
        assert run.failed() == []


def expect_nan(run: KernelRun, results: dict[str, Any]) -> None:
    """In each result of the pass that gave up, everywhere in the parameters' gradients and in the output of a wave."""
    of_pass = {name: tensor for name, tensor in results.items() if name.startswith("grad") == run.case.training}
    assert of_pass
    for name, tensor in of_pass.items():
        is_whole = name.endswith("_l0") or (name == "output" and run.kernel is KERNELS["wave"])
        assert tensor.isnan().all() if is_whole else tensor.isnan().any(), name


GIVING_UP = runs("""
cluster watchdog={100,200,300} orders=3 lstm-T8-B12-I6-H40-float16-training
{grid,readers buffers=1 load_threads=256,readers} tiles=2 watchdog={60,500} orders=4 lstm-T8-B12-I6-H40-float16
ntiled tiles=2 n_tiles=2 watchdog={60,500} orders=4 lstm-T8-B20-I6-H40-float16
wgmma watchdog={60,500} stages={2,4} orders=4 lstm-T8-B40-I6-H40-float32-tf32
grid_backward watchdog={300,700} orders=4 lstm-T8-B12-I6-H40-float16-training
wave watchdog={100,200,300} orders=3 lstm-T8-B12-I6-H40-L3-float16
sparse{ watchdog=60, watchdog=500, cluster=2 watchdog=500} orders=3 lstm-T8-B3-I6-H40-float32-density0.4-training
""")


@needs_compiler
@pytest.mark.parametrize("run", GIVING_UP, ids=str)
def test_where_some_threads_give_up_all_end(run: KernelRun) -> None:
    status = kernel.status_of(CPU)
    with run.running() as seen:
        for order in range(run.orders):
            with suppress(RuntimeError):  # of the backward pass, after a forward pass that gave up
                assert run.failed(order) == [] or status.reset()
            status.reset()
    assert run.kernel.source in seen.launched


def test_every_kernel_is_in_every_table() -> None:
    def names(lines: Iterable[KernelRun]) -> set[str]:
        return {str(run).partition("-")[0] for run in lines}

    assert names([*THINNED, *WHOLE, *SPARSE]) == set(KERNELS)
    assert names(run for line, _ in PLANTED.values() for run in runs(line)) == set(KERNELS)
    waiting = set(KERNELS) - {"block", "once", "wgmma_backward"}  # blocks of the first two do not wait for each other
    assert names(run for line, _ in LOST for run in runs(line)) == names(GIVING_UP) == waiting


# On a GPU.

_PRECISIONS = "{bfloat16,float16,float32,float32-tf32}"
_ON_A_GPU = "cuda-bidirectional-ragged-state"
# Cases, and what notes say of what ran.
ON_A_GPU = {
    f"*-T9-B{{1,20,128}}-I6-H{{1,33,200,512,650,1024}}-{_PRECISIONS}-{_ON_A_GPU}-{{inference,training}}": "",
    f"*-T1-{{B1-H1,B16-H33,B5-H650,B1-H1024,B8-H1024,B16-H2048}}-L2-{_PRECISIONS}-cuda-state-{{inference,training}}": (
        "^one step alone: "
    ),
    f"*-{{T2-B1,T16-B1,T2-B8,T3-B4}}-{{I70-H33,H512,I33-H650,H1024}}-{_PRECISIONS}-{_ON_A_GPU}": (
        "; the input product in the same launch$"
    ),
}
WAVES_ON_A_GPU = (
    f"*-{{T50-B1-L2,T300-B20-L3,T35-B8-L4}}-I6-H{{1,33,200,512}}-{_PRECISIONS}-cuda-ragged-state-{{inference,training}}"
)
GRIDS_ON_A_GPU = f"*-T9-B{{1,20,40}}-I6-H{{1,33,200,650,1024,1500}}-{_PRECISIONS}-{_ON_A_GPU}-training"


@needs_hopper
@pytest.mark.parametrize(("name", "notes"), [(name, notes) for text, notes in ON_A_GPU.items() for name in expanded(text)])
def test_on_a_gpu_the_kernels_pass_the_rule(name: str, notes: str) -> None:
    case = Case.parse(name)
    reason = PersistentGpu().unsupported(case, torch.device("cuda"))
    if reason and not notes:
        pytest.skip(reason)
    assert re.search(notes, expect_right(case).notes())


@needs_hopper
@pytest.mark.parametrize("name", expanded(WAVES_ON_A_GPU))
def test_on_a_gpu_waves_pass_the_rule(name: str) -> None:
    if "layers in a wave" not in expect_right(Case.parse(name)).notes():
        pytest.skip("no wave")


@pytest.fixture
def no_clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every layer lies in a grid, forward and backward."""
    monkeypatch.setattr(heuristics, "clusters", lambda make, problem, device: iter(()))
    monkeypatch.setattr(heuristics, "_fastest", heuristics._fastest.__wrapped__)
    monkeypatch.setattr(kernel, "compile_layer", lru_cache(kernel.compile_layer.__wrapped__))
    clusters_on_cpu.forget()
    yield
    clusters_on_cpu.forget()


@needs_ampere
@pytest.mark.usefixtures("no_clusters")
@pytest.mark.parametrize("name", expanded(GRIDS_ON_A_GPU))
def test_on_a_gpu_grids_pass_the_rule(name: str) -> None:
    case = Case.parse(name)
    if reason := PersistentGpu().unsupported(case, torch.device("cuda")):
        pytest.skip(reason)
    expect_right(case)


# Cases, faults of a kernel, and where its file stands: a module and an attribute, or a table of files and a key.
LOST_ON_A_GPU = {
    "a message of a cluster": ("lstm-T5-B3-I6-H200-bfloat16-cuda", SENT_NOTHING, kernel._SOURCES, False),
    "a message of a wave": ("lstm-T9-B3-I6-H200-L2-bfloat16-cuda-ragged-state", LAYER_IS_SILENT, wavefront, "_SOURCE"),
}


def expect_an_error(name: str, fault: Fault, where: Any, key: Any, folder: Path) -> None:
    """Of a case by a kernel with the fault, which soon gives up a wait: the next call raises, those afterwards are right."""
    problem, is_table = contents.problem(Case.parse(name)), isinstance(where, dict)
    with pytest.MonkeyPatch.context() as patch:
        source = with_fault(where[key] if is_table else getattr(where, key), folder, fault)
        (patch.setitem if is_table else patch.setattr)(where, key, source)
        patch.setattr(kernel, "WATCHDOG_NS", 20_000_000)
        clusters_on_cpu.forget()
        calls.run(PersistentGpu().build(problem.case, problem.weights), problem)
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cuda:0 is wrong"):
            calls.run(PersistentGpu().build(problem.case, problem.weights), problem)
    clusters_on_cpu.forget()
    calls.run(PersistentGpu().build(problem.case, problem.weights), problem)


@needs_hopper
@pytest.mark.parametrize("what", LOST_ON_A_GPU)
def test_on_a_gpu_what_is_lost_raises_and_does_not_hang(what: str, tmp_path: Path) -> None:
    expect_an_error(*LOST_ON_A_GPU[what], tmp_path)


@needs_ampere
@pytest.mark.usefixtures("no_clusters")
def test_on_a_gpu_a_lost_packet_of_a_grid_raises_and_does_not_hang(tmp_path: Path) -> None:
    fault = planted("grid_backward", "a sum is not published")
    expect_an_error("lstm-T5-B3-I6-H200-bfloat16-cuda-training", fault, kernel._GRID_SOURCES, True, tmp_path)
