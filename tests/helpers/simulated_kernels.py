"""A table of the persistent kernels: layers run by each of them on a CPU's simulator, in forms of given sizes.

A line of text is a run: a kernel, sizes of its form where they are not its usual ones, and a case, as in
`grid tiles=2 buffers={0,1} lstm-T5-B17-H50-float16-state`. Braces stand for each of what is in them, `*` for each cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer
from pytest_ecornn.implementations import persistent_gpu, sparse_persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, plan
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config import WARPS, Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import clusters, select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaBackwardConfig, WgmmaForwardConfig
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu, heuristics, layer
from pytest_ecornn.implementations.sparse_persistent_gpu.config import ALL, Techniques
from pytest_ecornn.verification import calls, verification
from pytest_ecornn.verification.comparison import TensorCheck
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import FEW, Broken, ClustersOnCpu

CELLS = tuple(GATES)
CPU, SMALL = torch.device("cpu"), Device(132, 232_448, 3)  # of clusters of three blocks at most
ORDERS = 8  # of threads, in one of which a planted fault is seen
Sizes = dict[str, Any]


# Forms.


def with_weights(form: Form, reg_fragments: int, smem_fragments: int, ring: int) -> Form:
    """So many fragments there, or as many as there are. The others are in shared memory where a ring has nothing to bring."""
    near = -(-(reg_fragments + smem_fragments) // form.m_tiles_per_pass) * form.m_tiles_per_pass
    if not ring or form.fragments_per_warp - near < ring * form.stage_fragments:
        reg_fragments = min(reg_fragments, form.fragments_per_warp)
        return replace(form, reg_fragments=reg_fragments, smem_fragments=form.fragments_per_warp - reg_fragments)
    return replace(form, reg_fragments=reg_fragments, smem_fragments=near - reg_fragments, stream_stages=ring)


@dataclass(frozen=True)
class NTiled(NTiledGridConfig):
    """With as many packets in registers as `at_once` says, where it does."""

    at_once: int = 0

    @property
    def packets_in_registers(self) -> int:
        return self.at_once or super().packets_in_registers


def make_form(kind: type[Form], problem: ProblemSize, units: int, weights: tuple[int, int, int], **sizes: Any) -> Form:
    """A form of the blocks that the units need. weights: as `with_weights` has them."""
    together = sizes.get("grid_rows", 1) * sizes.get("cluster", 1)
    blocks = -(-problem.hidden // (units * together)) * together
    form = kind(problem, units, blocks, **sizes)
    if isinstance(form, NTiled):
        presplit = min(form.presplit_fragments, form.fragments) * problem.arithmetic.is_3xtf32
        form = replace(form, presplit_fragments=presplit)
    return with_weights(form, *weights)


def cluster_form(problem: ProblemSize) -> Form:
    """A cluster of three blocks at most, of weights in registers and in shared memory both."""
    form = select_config(problem, SMALL, computes_inputs=True)
    assert isinstance(form, Form), form
    return with_weights(form, 1, 0, 0)


def sized_cluster_form(
    problem: ProblemSize, weights: tuple[int, int, int], k_partitions: int = 1, only: str = "", **sizes: int
) -> Form:
    """k_partitions: forward. only: the pass that streams weights, where it is one."""
    if only == ("forward" if problem.is_backward else "backward"):
        weights = (*weights[:2], 0)
    return make_form(Form, problem, weights=weights, k_partitions=1 if problem.is_backward else k_partitions, **sizes)


def block_form(problem: ProblemSize, units_per_thread: int, **sizes: Any) -> Form:
    """units_per_thread: of a cell that has gates."""
    units = units_per_thread * (1 if GATES[problem.cell] > 1 else 4)
    return BlockConfig(problem, problem.hidden, 1, 1, 1, units_per_thread=units, **sizes)


def wave_form(problem: ProblemSize, inputs: int, layers: int, sizes: Sizes) -> WavefrontConfig:
    """All layers in one wave; without sizes each in three blocks at most."""
    make = partial(WavefrontConfig, problem, layers=layers, inputs=inputs)
    if sizes:
        units, tiles, partitions = sizes["units"], sizes["tiles"], sizes["k_partitions"]
        wave = make(units=units, blocks=-(-problem.hidden // units), tiles=tiles, k_partitions=partitions)
    else:
        wave = min(chain.from_iterable(clusters(make, problem, SMALL)), key=lambda form: form.step_us)
    fitted = with_weights(wave, 2 if sizes else 1, 0, 0)
    assert isinstance(fitted, WavefrontConfig)
    return fitted


# Kernels.


@dataclass
class Seen:
    """What a run has planned and launched. specs: of the plans. launched: the stems of the kernels' files."""

    specs: list[KernelSpec] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SimulatedKernel:
    """A kernel by the stem of its file, and how its forms are made.

    sizes: the usual ones. is_backward: which pass has such a form, None for both; the other one is a cluster's.
    """

    source: str
    make: Callable[..., Form] | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    is_backward: bool | None = False

    @contextmanager
    def running(self, sizes: Sizes, seen: Seen) -> Iterator[None]:
        """Within it persistent_gpu's layers run by this kernel."""

        def form_of(shape: Shape, spec: KernelSpec) -> Form:
            problem = spec.problem(shape.cell, shape.hidden, shape.batch)
            form = self._form(problem, sizes) if self.is_backward in (None, spec.is_backward) else cluster_form(problem)
            seen.specs.append(spec)
            seen.forms.append(form)
            return form

        with clusters_on_cpu.running_layers(form_of, clusters_on_cpu.one_by_one):
            yield

    def _form(self, problem: ProblemSize, sizes: Sizes) -> Form:
        if self.make is None or not (sizes or self.sizes):
            return cluster_form(problem)
        return self.make(problem=problem, **{**self.sizes, **sizes})

    def layer(self, case: Case, weights: Any, sizes: Sizes) -> Layer:
        return persistent_gpu.make_layer(case, weights, CPU)

    @property
    def declared(self) -> Any:
        return PersistentGpu().declared


class WaveKernel(SimulatedKernel):
    """Several layers of one direction in one launch."""

    @contextmanager
    def running(self, sizes: Sizes, seen: Seen) -> Iterator[None]:
        def waves_of(shape: Shape, spec: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
            if layers == 1:
                return [None]
            seen.forms.append(wave_form(spec.problem(shape.cell, shape.hidden, shape.batch), inputs, layers, sizes))
            return [seen.forms[-1]]

        def form_of(shape: Shape, spec: KernelSpec) -> Form:
            return cluster_form(spec.problem(shape.cell, shape.hidden, shape.batch))

        with clusters_on_cpu.running_layers(form_of, waves_of):
            yield


class SparseKernel(SimulatedKernel):
    """sparse_persistent_gpu's. sizes: `cluster`, `register_words` of a thread, and a technique that it is `without`."""

    @contextmanager
    def running(self, sizes: Sizes, seen: Seen) -> Iterator[None]:
        choose, cluster = layer.select_config, sizes.get("cluster", 1)

        def chosen(*arguments: Any) -> Any:
            seen.forms.append(choose(*arguments))
            return seen.forms[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layer, "select_config", chosen)
            patch.setattr(heuristics, "_REGISTER_WORDS", sizes.get("register_words", heuristics._REGISTER_WORDS))
            if cluster > 1:  # as if sending took no time, so that clusters are chosen where they can be
                patch.setattr(heuristics, "_CLUSTERS", (cluster,))
                patch.setattr(heuristics, "H200", replace(heuristics.H200, send_clocks=-1e9))
            with clusters_on_cpu.running_sparse(Device(6, 232_448, 16) if cluster > 1 else FEW):
                yield

    def layer(self, case: Case, weights: Any, sizes: Sizes) -> Layer:
        return sparse_persistent_gpu.make_layer(case, weights, CPU, techniques_of(sizes))[0]

    @property
    def declared(self) -> Any:
        return SparsePersistentGpu().declared


def techniques_of(sizes: Sizes) -> Techniques:
    return replace(ALL, **{sizes["without"]: False}) if "without" in sizes else ALL


_GRID = {"units": 12, "tiles": 1, "k_partitions": 2, "weights": (1, 0, 0), "is_grid": True}
_NTILED = {**_GRID, "k_partitions": WARPS, "n_tiles": 1, "at_once": 8}
_WGMMA = {
    **_GRID, "units": 6, "tiles": 3, "n_tiles": 2, "chunk_fragments": 1, "stages": 2, "sum_buffers": 2, "pointwise_batch": 8,
}  # fmt: skip
_BLOCK = {"units_per_thread": 2, "block_sequences": 2, "k_vector": 2, "smem_vectors": 0}
_GRID_FORM, _NTILED_FORM = partial(make_form, Form), partial(make_form, NTiled)
_READERS = {**_GRID, "buffers": 2, "load_threads": 128, "reallocates_registers": True}
KERNELS = {
    "cluster": SimulatedKernel("cluster_forward", sized_cluster_form, is_backward=None),
    "block": SimulatedKernel("block_forward", block_form, _BLOCK, is_backward=None),
    "grid": SimulatedKernel("grid_forward", _GRID_FORM, _GRID),
    "readers": SimulatedKernel("grid_forward", _GRID_FORM, _READERS),
    "ntiled": SimulatedKernel("grid_forward_ntiled", _NTILED_FORM, _NTILED),
    "grid_backward": SimulatedKernel("grid_backward", _GRID_FORM, {**_GRID, "grid_rows": 2}, is_backward=True),
    "wgmma": SimulatedKernel("wgmma_forward", partial(make_form, WgmmaForwardConfig), {**_WGMMA, "cluster": 2}),
    "wgmma_backward": SimulatedKernel(
        "wgmma_backward", partial(make_form, WgmmaBackwardConfig), {**_WGMMA, "grid_rows": 2}, is_backward=True
    ),
    "wave": WaveKernel("wavefront_forward"),
    "once": SimulatedKernel("single_step_forward", is_backward=None),
    "sparse": SparseKernel("forward"),
}


# Runs.


@lru_cache(maxsize=64)
def reference_of(case: Case) -> tuple[contents.Problem, verification.ReferenceResult]:
    problem = contents.problem(case)
    return problem, verification.ReferenceResult(problem)


def failures(reference: verification.ReferenceResult, results: Any, declared: Any) -> list[TensorCheck]:
    return [check for check in reference.compare(results, declared) if check.status == "failed"]


@dataclass(frozen=True)
class KernelRun:
    """A case by a kernel in a form.

    watchdog: rounds of all threads, after which a wait gives up. fused_rows: the most rows of x whose product a kernel makes.
    orders: of threads to try.
    """

    text: str
    kernel: SimulatedKernel = field(compare=False)
    sizes: tuple[tuple[str, Any], ...]
    case: Case
    watchdog: int = persistent_kernel.WATCHDOG_NS
    fused_rows: int = persistent_kernel.MOST_FUSED_ROWS
    orders: int = 1

    @classmethod
    def parse(cls, line: str) -> KernelRun:
        name, *tokens, case = line.split()
        sizes = {key: _value(text) for key, text in (token.split("=") for token in tokens)}
        settings = {key: sizes.pop(key) for key in ("watchdog", "fused_rows", "orders") if key in sizes}
        text = "-".join([name, *tokens, case])
        return cls(text, KERNELS[name], tuple(sizes.items()), Case.parse(case), **settings)

    def __str__(self) -> str:
        return self.text

    @contextmanager
    def running(self) -> Iterator[Seen]:
        """Within it layers run by the kernel."""
        seen, launch = Seen(), ClustersOnCpu._run

        def launched(kernel: Any, *arguments: Any) -> None:
            seen.launched.append(kernel._name.partition(".")[0])
            launch(kernel, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClustersOnCpu, "_run", launched)
            patch.setattr(persistent_kernel, "WATCHDOG_NS", self.watchdog)
            patch.setattr(persistent_kernel, "MOST_FUSED_ROWS", self.fused_rows)
            plan.get_plan.cache_clear()
            with self.kernel.running(dict(self.sizes), seen):
                yield seen
        plan.get_plan.cache_clear()

    def layer(self, problem: contents.Problem) -> Layer:
        return self.kernel.layer(self.case, problem.weights, dict(self.sizes))

    def failed(self, order: int = 0, problem: contents.Problem | None = None) -> list[TensorCheck]:
        """What fails of the case, or of other contents of it, within `running`, the threads taking turns in that order."""
        reference = None if problem is None else verification.ReferenceResult(problem)
        if problem is None or reference is None:
            problem, reference = reference_of(self.case)
        clusters_on_cpu.start_from(1000 * order)
        return failures(reference, calls.run(self.layer(problem), problem), self.kernel.declared)

    def expect_right(self) -> Seen:
        """That the case passes, in each order of threads."""
        with self.running() as seen:
            for order in range(self.orders):
                assert self.failed(order) == []
        return seen

    def fails(self, order: int) -> bool:
        try:
            return bool(self.failed(order))
        except Broken:
            return True


def _value(text: str) -> Any:
    if ":" in text:
        return tuple(int(part) for part in text.split(":"))
    return int(text) if text.isdigit() else text


def expanded(text: str) -> list[str]:
    """The text by each of what its braces hold, as a shell has it, and by each cell."""
    text = text.replace("*", "{" + ",".join(CELLS) + "}")
    braces = re.search(r"\{([^{}]*)\}", text)
    if braces is None:
        return [text]
    before, after = text[: braces.start()], text[braces.end() :]
    return [line for choice in braces[1].split(",") for line in expanded(before + choice + after)]


def runs(table: str) -> list[KernelRun]:
    """The runs of a table's lines."""
    return [KernelRun.parse(text) for line in table.strip().splitlines() for text in expanded(line)]


@cache
def is_right(run: KernelRun) -> bool:
    """Whether the case passes by the kernel as it is: asked once for all faults that are planted there."""
    with run.running():
        return not run.failed()
