"""The forms of every kernel that are compiled without a GPU: macros of each source."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import torch

import pytest_ecornn.implementations as implementations
from pytest_ecornn.implementations._common import recurrent_problem
from pytest_ecornn.implementations._cuda import bias_gradients, padded_rows, parameter_gradients
from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations.persistent_gpu import config as persistent_config
from pytest_ecornn.implementations.persistent_gpu import heuristics as persistent_heuristics
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu import single_step, wavefront
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import estimated_us_with_queueing
from pytest_ecornn.implementations.persistent_gpu.input_gemm import gemm_3xtf32
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaConfig
from pytest_ecornn.implementations.scan_gpu.config import Device
from pytest_ecornn.implementations.scan_gpu.ops import ScanSpec, Shape, choose_form, macros
from pytest_ecornn.implementations.scan_gpu_log import ops
from pytest_ecornn.implementations.sparse_persistent_gpu import config as sparse_config
from pytest_ecornn.implementations.sparse_persistent_gpu import heuristics as sparse_heuristics
from pytest_ecornn.implementations.sparse_persistent_gpu import kernel as sparse_kernel
from pytest_ecornn.implementations.sparse_persistent_gpu.heuristics import make_cost_model as make_sparse_cost_model

FOLDER = Path(implementations.__file__).parent
H200 = Device(132, 228 * 1024)
HOPPER, AMPERE = recurrent_problem.Device(132, 232_448, 16), recurrent_problem.Device(108, 166_912, 1)
STORAGES = ("FLOAT32", "FLOAT64", "BFLOAT16", "FLOAT16")
FLAGS = ("BATCH_MINOR", "SAVE_GATES", "WIDE_OFFSETS")
CUDA = torch.device("cuda", 0)
PRECISIONS = ((torch.float16, False), (torch.float32, False), (torch.float32, True))  # and whether products are in tf32
Variant = tuple[tuple[str, str], ...]


def of_transposed(cell: int, storage: str, flags: str, is_backward: bool) -> Variant:
    pass_of_cell = (("CELL", str(cell)), ("BACKWARD", str(int(is_backward))))
    return (*pass_of_cell, *zip(FLAGS, flags, strict=True), (f"STORAGE_{storage}", "1"))


def of_scan() -> Iterator[Variant]:
    """minGRU forward and backward, time split or not, of all dtypes, and minLSTM with all that it may have."""
    shapes = [Shape("mingru", 65_536, 1, 256, True, False), Shape("mingru", 4_096, 8, 1536, True, False)]
    full = Shape("minlstm_positive", 65_536, 1, 256, True, False)
    for name, backward in itertools.product(STORAGES, (False, True)):
        plain = ScanSpec(getattr(torch, name.lower()), CUDA, 16, False, False, backward)
        yield from (macros(shape, plain, choose_form(shape, plain, H200)) for shape in shapes)
        if name in ("FLOAT32", "BFLOAT16"):
            spec = plain._replace(is_biased=True, is_masked=True)
            yield macros(full, spec, choose_form(full, spec, H200))


def of_log_scan() -> Iterator[Variant]:
    """Both cells, in every dtype; logarithms in one number and, where there is more than 16 bits, in two."""
    for name, cell in itertools.product(STORAGES, ("mingru_positive", "minlstm_positive")):
        dtype = getattr(torch, name.lower())
        trees = [ops.select_config(Shape(cell, 4096, 8, hidden, True, False), dtype, 132) for hidden in (64, 1536)]
        for tree, is_compensated in itertools.product(trees, {False, dtype.itemsize > 2}):
            yield ops.macros(cell, dtype, tree, is_compensated)


def of_persistent(is_backward: bool) -> Iterator[Variant]:
    """Every cell, with weights in registers alone and in shared memory too, few sequences and many, even sizes and odd."""
    for cell, hidden, batch in itertools.product(("rnn_tanh", "lstm", "gru"), (65, 512, 768), (8, 128)):
        spec = persistent_kernel.KernelSpec(torch.bfloat16 if hidden == 65 else torch.float16, CUDA, False, is_backward)
        form = exchanging_form(spec.problem(cell, hidden, batch))
        if not form.is_grid:
            yield persistent_kernel.macros(spec._replace(saves_for_backward=batch == 8 and not is_backward), form)


def exchanging_form(problem: recurrent_problem.ProblemSize) -> persistent_config.Form:
    """The best form whose blocks exchange states."""
    form = persistent_heuristics.select_config(problem, HOPPER, computes_inputs=True)
    assert isinstance(form, persistent_config.Form)
    return form


def of_persistent_blocks(is_backward: bool) -> Iterator[Variant]:
    """Every cell in every dtype, of one sequence a block and several, weights in registers alone and in shared memory too."""
    sizes = [("lstm", 72, 100), ("lstm", 96, 100), ("gru", 128, 100), ("gru", 96, 500), ("gru", 33, 1000)]
    sizes += [("rnn_tanh", 100, 200), ("rnn_relu", 200, 9)]
    for (cell, hidden, batch), dtype in itertools.product(sizes, (torch.float32, torch.bfloat16, torch.float16)):
        keeps = dtype != torch.bfloat16 and not is_backward
        spec = persistent_kernel.KernelSpec(dtype, CUDA, False, is_backward, keeps, lengths=keeps)
        forms = persistent_heuristics.candidate_configs(spec.problem(cell, hidden, batch), HOPPER)
        if blocks := [form for form in forms if isinstance(form, BlockConfig)]:
            form = min(blocks, key=lambda form: estimated_us_with_queueing(form, HOPPER))
            yield persistent_kernel.macros(spec, form)


def of_persistent_grid(is_backward: bool, is_abreast: bool = False) -> Iterator[Variant]:
    """LSTM at large sizes in every precision, as on two devices, one tile of sequences and several; other cells.

    With weights that are split in every step, and with such as are split once; at H 2816 some are streamed.
    """
    sizes = [("lstm", hidden, batch) for hidden in (650, 1024, 1500) for batch in (8, 40)]
    for device, (cell, hidden, batch) in itertools.product(
        (HOPPER, AMPERE), [*sizes, ("gru", 1024, 1), ("rnn_tanh", 2048, 64), ("gru", 2816, 4), ("gru", 2816, 32)]
    ):
        for dtype, tf32 in PRECISIONS:
            keeps = device is HOPPER and batch == 40 and not is_backward
            spec = persistent_kernel.KernelSpec(dtype, CUDA, tf32, is_backward, keeps)
            forms = persistent_heuristics.candidate_configs(spec.problem(cell, hidden, batch), device)
            kind_of_form = NTiledGridConfig if is_abreast else persistent_config.Form
            grids = [form for form in forms if form.is_grid and type(form) is kind_of_form]
            for is_twice in (False, True):
                if of_one := [form for form in grids if (getattr(form, "presplit_fragments", 0) > 0) == is_twice]:
                    yield persistent_kernel.macros(spec, min(of_one, key=lambda form: form.step_us))


def of_persistent_wgmma(is_backward: bool) -> Iterator[Variant]:
    """Every cell in every precision at even sizes and odd, with tiles of every width; the best of each by the model."""
    sizes = [("gru", 1280, 256), ("gru", 640, 256), ("rnn_tanh", 1000, 160), ("lstm", 1024, 64), ("lstm", 333, 130)]
    for (cell, hidden, batch), (dtype, tf32) in itertools.product(sizes, PRECISIONS):
        keeps = batch == 130 and not is_backward
        spec = persistent_kernel.KernelSpec(dtype, CUDA, tf32, is_backward, keeps, lengths=keeps)
        best: dict[int, WgmmaConfig] = {}
        forms = persistent_heuristics.candidate_configs(spec.problem(cell, hidden, batch), HOPPER)
        for form in sorted(forms, key=lambda form: form.step_us):
            if isinstance(form, WgmmaConfig):
                best.setdefault(form.n_tiles, form)
        yield from (persistent_kernel.macros(spec, form) for form in best.values())


def of_persistent_fused(name: str) -> Iterator[Variant]:
    """With the input product, of even sizes and odd, in every precision; in clusters every cell."""
    sizes = [("lstm", 512, 512, 8), ("gru", 33, 768, 8), ("gru", 650, 1024, 16), ("lstm", 1024, 1024, 1)]
    if name == "cluster_forward.cu":
        sizes += [(cell, *of) for cell in ("rnn_tanh", "lstm", "gru") for of in ((512, 512, 8), (128, 128, 16))]
        sizes.append(("lstm", 33, 200, 16))
    kinds = [(torch.bfloat16, False), (torch.float32, False), (torch.float32, True)]
    for (cell, inputs, hidden, batch), (dtype, tf32) in itertools.product(sizes, kinds):
        spec = persistent_kernel.KernelSpec(dtype, CUDA, tf32, inputs=inputs)
        form = exchanging_form(spec.problem(cell, hidden, batch))
        if persistent_kernel.source_of(spec, form).name == name:
            yield persistent_kernel.macros(spec, form)


def of_persistent_wave() -> Iterator[Variant]:
    """Every cell in every precision, two layers to four, few sequences and many, even sizes and odd, wide inputs and narrow."""
    sizes = [(200, 200, 32, 2), (128, 33, 8, 4), (512, 512, 8, 3), (65, 260, 40, 2)]
    for cell, (hidden, inputs, batch, layers), (dtype, tf32) in itertools.product(
        ("rnn_tanh", "lstm", "gru"), sizes, PRECISIONS
    ):
        spec = persistent_kernel.KernelSpec(dtype, CUDA, tf32, saves_for_backward=batch == 32, lengths=batch > 8)
        wave = wavefront.select_wavefront(spec.problem(cell, hidden, batch), HOPPER, inputs, layers, 100)
        if wave is not None:
            yield persistent_kernel.macros(spec, wave)


def of_persistent_once() -> Iterator[Variant]:
    """Every cell in every precision, of one tile of rows and of several, of even sizes and odd."""
    sizes = ((65, 33), (1024, 1024), (512, 2048))
    for cell, (inputs, hidden), (dtype, tf32) in itertools.product(("rnn_relu", "lstm", "gru"), sizes, PRECISIONS):
        spec = persistent_kernel.KernelSpec(dtype, CUDA, tf32, saves_for_backward=hidden > 33)
        once = single_step.SingleStepConfig(cell, inputs, hidden, 8, spec.arithmetic)
        yield single_step.select_single_step(once, HOPPER).macros(spec)


def of_persistent_once_backward() -> Iterator[Variant]:
    """Every cell in every dtype, of even sizes and odd."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for cell, hidden, dtype in itertools.product(("rnn_relu", "rnn_tanh", "lstm", "gru"), (33, 1024), dtypes):
        yield single_step.SingleStepBackwardConfig(cell, hidden, 8).macros(dtype)


def of_sparse(is_backward: bool) -> Iterator[Variant]:
    """Every cell, in 16 bits and 32, few elements and as many as fit; a row's parts as many in each, and not; barriers."""
    sizes = [("rnn_tanh", 1152, 1, 0.1), ("rnn_relu", 2304, 16, 0.3), ("lstm", 1152, 32, 0.1), ("gru", 2304, 4, 0.15)]
    for (cell, hidden, batch, density), dtype in itertools.product(sizes, (torch.bfloat16, torch.float32)):
        spec = persistent_kernel.KernelSpec(dtype, CUDA, saves_for_backward=batch > 1, lengths=batch == 32)
        problem = (spec.backward if is_backward else spec).problem(cell, hidden, batch)
        counts, is_one = sparse_heuristics.expected_counts(problem, density), batch == 1
        counts[0] = hidden if is_one else counts[0]
        form = sparse_heuristics.select_config(problem, counts, HOPPER, sparse_config.Techniques(timestamps=not is_one))
        assert isinstance(form, sparse_config.SparseConfig)
        yield sparse_kernel.macros(spec, form, hidden)
    yield from of_sparse_clusters(is_backward)


def of_sparse_clusters(is_backward: bool) -> Iterator[Variant]:
    """Of one sequence and of as many as a tile has."""
    sizes = [("rnn_tanh", 4608, 4, 0.3), ("lstm", 1792, 1, 0.1), ("gru", 2304, 8, 0.05), ("rnn_relu", 4608, 2, 0.1)]
    for (cell, hidden, batch, density), dtype in itertools.product(sizes, (torch.float16, torch.float32)):
        spec = persistent_kernel.KernelSpec(dtype, CUDA, saves_for_backward=batch > 1)
        problem = (spec.backward if is_backward else spec).problem(cell, hidden, batch)
        counts = sparse_heuristics.expected_counts(problem, density)
        forms = [one for one in sparse_heuristics._fitting(problem, counts, HOPPER, sparse_config.ALL) if one.cluster > 1]
        form = min(forms, key=lambda one: make_sparse_cost_model(one).step_clocks)
        yield sparse_kernel.macros(spec, form, hidden)


def of_gradients(macros: Callable[[int, torch.dtype], Variant]) -> list[Variant]:
    """Of single elements and of vectors, in each dtype."""
    of_dtypes = ((torch.float32, 4), (torch.bfloat16, 8), (torch.float16, 8))
    return [macros(values, dtype) for dtype, most in of_dtypes for values in (1, most)]


MEASURED = (9, 0)  # the architecture for which most is compiled
# Functions, for what they return takes seconds to choose.
VARIANTS: dict[str, Callable[[], Iterable[Variant]]] = {
    "cluster_forward.cu": lambda: (*of_persistent(False), *of_persistent_fused("cluster_forward.cu")),
    "cluster_backward.cu": lambda: of_persistent(True),
    "block_forward.cu": lambda: of_persistent_blocks(False),
    "block_backward.cu": lambda: of_persistent_blocks(True),
    "grid_forward_ntiled.cu": lambda: (*of_persistent_grid(False, True), *of_persistent_fused("grid_forward_ntiled.cu")),
    "grid_forward.cu": lambda: (*of_persistent_grid(False), *of_persistent_fused("grid_forward.cu")),
    "grid_backward.cu": lambda: of_persistent_grid(True),
    "wgmma_forward.cu": lambda: of_persistent_wgmma(False),
    "wgmma_backward.cu": lambda: of_persistent_wgmma(True),
    "single_step_forward.cu": of_persistent_once,
    "single_step_backward.cu": of_persistent_once_backward,
    "bias_gradients.cu": lambda: of_gradients(bias_gradients.macros),
    "pad_rows.cu": lambda: [padded_rows.macros(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)],
    "input_gemm_3xtf32.cu": lambda: [tile.macros for tile in gemm_3xtf32.TILES],
    "parameter_gradients.cu": lambda: [
        *of_gradients(parameter_gradients.macros),
        *of_gradients(partial(parameter_gradients.macros, layers=4)),
    ],
    "wavefront_forward.cu": of_persistent_wave,
    "scan.cu": of_scan,
    "log_scan.cu": of_log_scan,
    "forward.cu": lambda: of_sparse(False),
    "backward.cu": lambda: of_sparse(True),
    "pointwise.cu": lambda: [
        *(of_transposed(cell, *rest) for cell, *rest in itertools.product(range(4), STORAGES, ("110",), (False, True))),
        *(of_transposed(2, *rest) for rest in itertools.product(STORAGES, ("010", "100", "111"), (False, True))),
    ],
}


def source_of(name: str) -> Path:
    """The kernel's file."""
    (found,) = FOLDER.rglob(name)
    return found


@cache
def variants(name: str) -> list[Variant]:
    """The macros of each form of the kernel to compile."""
    return list(dict.fromkeys(VARIANTS[name]()))


def ptx_of(source: Path, macros: Variant, text: str = "") -> str:
    """The PTX of a form, or of another text in the source's place. Raises CompilationError."""
    options = [one for one in compiler._options(source, macros, MEASURED) if not one.startswith("--ptxas")]
    ptx, _ = compiler._run_nvrtc(source, [options[0].replace("sm_", "compute_"), *options[1:]], "PTX", text)
    return ptx.rstrip(b"\0").decode()


def copied(source: Path, folder: Path) -> Path:
    """A copy to change, with the headers beside it."""
    for of_headers in reversed(compiler.include_folders(source)[1:]):
        shutil.copytree(of_headers, folder, dirs_exist_ok=True)
    return folder / source.name
