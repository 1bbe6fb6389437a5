"""Every kernel compiles for every supported architecture without spills, and its arguments are checked; no GPU is needed."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import struct
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import pytest_ecornn.implementations as implementations
from pytest_ecornn.implementations._common import recurrent_problem
from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations._cuda.kernel import Array, is_dense, one_thread_each
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations.persistent_gpu import config as persistent_config
from pytest_ecornn.implementations.persistent_gpu import config_wavefront, single_step
from pytest_ecornn.implementations.persistent_gpu import heuristics as persistent_heuristics
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import Abreast
from pytest_ecornn.implementations.scan_gpu.config import Device
from pytest_ecornn.implementations.scan_gpu.ops import Kind, Shape, choose_form, macros
from pytest_ecornn.implementations.scan_gpu_log import ops
from pytest_ecornn.implementations.sparse_persistent_gpu import config as sparse_config
from pytest_ecornn.implementations.sparse_persistent_gpu import heuristics as sparse_heuristics
from pytest_ecornn.implementations.sparse_persistent_gpu import kernel as sparse_kernel
from tests.conftest import IS_CI

FOLDER = Path(implementations.__file__).parent
needs_nvrtc = pytest.mark.skipif(compiler.unavailable() is not None, reason=str(compiler.unavailable()))

H200 = Device(132, 228 * 1024)
HOPPER, AMPERE = recurrent_problem.Device(132, 232_448, 16), recurrent_problem.Device(108, 166_912, 1)
STORAGES = ("FLOAT32", "FLOAT64", "BFLOAT16", "FLOAT16")
FLAGS = ("BATCH_MINOR", "SAVE_GATES", "WIDE_OFFSETS")


def of_transposed(cell: int, storage: str, flags: str, is_backward: bool) -> tuple[tuple[str, str], ...]:
    return (
        ("CELL", str(cell)),
        ("BACKWARD", str(int(is_backward))),
        *zip(FLAGS, flags, strict=True),
        (f"STORAGE_{storage}", "1"),
    )


def of_scan() -> list[tuple[tuple[str, str], ...]]:
    """minGRU forward and backward, time split or not, of all dtypes, and minLSTM with all that it may have."""
    shapes = [Shape("mingru", 65_536, 1, 256, True, False), Shape("mingru", 4_096, 8, 1536, True, False)]
    full = Shape("minlstm_positive", 65_536, 1, 256, True, False)
    found = []
    for name, backward in itertools.product(STORAGES, (False, True)):
        plain = Kind(getattr(torch, name.lower()), torch.device("cuda", 0), 16, False, False, backward)
        found += [macros(shape, plain, choose_form(shape, plain, H200)) for shape in shapes]
        if name in ("FLOAT32", "BFLOAT16"):
            kind = plain._replace(is_biased=True, is_masked=True)
            found.append(macros(full, kind, choose_form(full, kind, H200)))
    return found


def of_log_scan() -> list[tuple[tuple[str, str], ...]]:
    """Both cells, in every dtype; logarithms in one number and, where there is more than 16 bits, in two."""
    found = []
    for name, cell in itertools.product(STORAGES, ("mingru_positive", "minlstm_positive")):
        dtype = getattr(torch, name.lower())
        trees = [ops.choose(Shape(cell, 4096, 8, hidden, True, False), dtype, 132) for hidden in (64, 1536)]
        for tree, is_compensated in itertools.product(trees, {False, dtype.itemsize > 2}):
            found.append(ops.macros(cell, dtype, tree, is_compensated))
    return found


def of_persistent(is_backward: bool) -> list[tuple[tuple[str, str], ...]]:
    """Every cell, with weights in registers alone and in shared memory too, few sequences and many, even sizes and odd."""
    found = []
    for cell, hidden, batch in itertools.product(("rnn_tanh", "lstm", "gru"), (65, 512, 768), (8, 128)):
        kind = persistent_kernel.Kind(
            torch.bfloat16 if hidden == 65 else torch.float16, torch.device("cuda", 0), False, is_backward
        )
        form = persistent_heuristics.choose(kind.problem(cell, hidden, batch), HOPPER)
        assert isinstance(form, persistent_config.Form)
        if not form.is_grid:
            found.append(persistent_kernel.macros(kind._replace(keeps=batch == 8 and not is_backward), form))
    return list(dict.fromkeys(found))


def of_persistent_grid(is_backward: bool, is_abreast: bool = False) -> list[tuple[tuple[str, str], ...]]:
    """LSTM at large sizes in every precision, as on two devices, one tile of sequences and several; other cells.

    With weights that are split in every step, and with such as are split once.
    """
    found = []
    sizes = [("lstm", hidden, batch) for hidden in (650, 1024, 1500) for batch in (8, 40)]
    for device, (cell, hidden, batch) in itertools.product(
        (HOPPER, AMPERE), [*sizes, ("gru", 1024, 1), ("rnn_tanh", 2048, 64)]
    ):
        for dtype, tf32 in ((torch.float16, False), (torch.float32, False), (torch.float32, True)):
            keeps = device is HOPPER and batch == 40 and not is_backward
            kind = persistent_kernel.Kind(dtype, torch.device("cuda", 0), tf32, is_backward, keeps)
            forms = persistent_heuristics.fitting(kind.problem(cell, hidden, batch), device)
            grids = [form for form in forms if form.is_grid and isinstance(form, Abreast) == is_abreast]
            for is_twice in (False, True):
                if of_one := [form for form in grids if (getattr(form, "twice", 0) > 0) == is_twice]:
                    found.append(persistent_kernel.macros(kind, min(of_one, key=lambda form: form.step_us)))
    return list(dict.fromkeys(found))


def of_persistent_fused(name: str) -> list[tuple[tuple[str, str], ...]]:
    """With the input product, of even sizes and odd, in every precision; in clusters every cell."""
    found = []
    sizes = [("lstm", 512, 512, 8), ("gru", 33, 768, 8), ("gru", 650, 1024, 16), ("lstm", 1024, 1024, 1)]
    if name == "persistent_gpu.cu":
        sizes += [(cell, *of) for cell in ("rnn_tanh", "lstm", "gru") for of in ((512, 512, 8), (128, 128, 16))]
        sizes.append(("lstm", 33, 200, 16))
    kinds = [(torch.bfloat16, False), (torch.float32, False), (torch.float32, True)]
    for (cell, inputs, hidden, batch), (dtype, tf32) in itertools.product(sizes, kinds):
        kind = persistent_kernel.Kind(dtype, torch.device("cuda", 0), tf32, inputs=inputs)
        form = persistent_heuristics.choose(kind.problem(cell, hidden, batch), HOPPER)
        assert isinstance(form, persistent_config.Form)
        if persistent_kernel.source_of(kind, form).name == name:
            found.append(persistent_kernel.macros(kind, form))
    return list(dict.fromkeys(found))


def of_persistent_wave() -> list[tuple[tuple[str, str], ...]]:
    """Every cell in every precision, two layers to four, few sequences and many, even sizes and odd, wide inputs and narrow."""
    found = []
    sizes = [(200, 200, 32, 2), (128, 33, 8, 4), (512, 512, 8, 3), (65, 260, 40, 2)]
    kinds = [(torch.float16, False), (torch.float32, False), (torch.float32, True)]
    for cell, (hidden, inputs, batch, layers), (dtype, tf32) in itertools.product(("rnn_tanh", "lstm", "gru"), sizes, kinds):
        kind = persistent_kernel.Kind(dtype, torch.device("cuda", 0), tf32, keeps=batch == 32, lengths=batch > 8)
        wave = config_wavefront.choose_wave(kind.problem(cell, hidden, batch), HOPPER, inputs, layers, 100)
        if wave is not None:
            found.append(persistent_kernel.macros(kind, wave))
    return found


def of_persistent_once() -> list[tuple[tuple[str, str], ...]]:
    """Every cell in every precision, of one tile of rows and of several, of even sizes and odd."""
    found = []
    for cell, (inputs, hidden) in itertools.product(("rnn_relu", "lstm", "gru"), ((65, 33), (1024, 1024), (512, 2048))):
        for dtype, tf32 in ((torch.float16, False), (torch.float32, False), (torch.float32, True)):
            kind = persistent_kernel.Kind(dtype, torch.device("cuda", 0), tf32)
            once = single_step.Once(cell, inputs, hidden, 8, kind.arithmetic)
            found.append(single_step.choose(once, HOPPER).macros(dtype))
    return found


def of_sparse(is_backward: bool) -> list[tuple[tuple[str, str], ...]]:
    """Every cell, in 16 bits and 32, few elements and as many as fit; a row's parts as many in each, and not; barriers."""
    found = []
    sizes = [("rnn_tanh", 1152, 1, 0.1), ("rnn_relu", 2304, 16, 0.3), ("lstm", 1152, 32, 0.1), ("gru", 2304, 4, 0.15)]
    for (cell, hidden, batch, density), dtype in itertools.product(sizes, (torch.bfloat16, torch.float32)):
        kind = persistent_kernel.Kind(dtype, torch.device("cuda", 0), keeps=batch > 1, lengths=batch == 32)
        problem = (kind.backward if is_backward else kind).problem(cell, hidden, batch)
        counts, is_one = sparse_heuristics.expected_counts(problem, density), batch == 1
        counts[0] = hidden if is_one else counts[0]
        form = sparse_heuristics.choose(problem, counts, HOPPER, sparse_config.Techniques(timestamps=not is_one))
        assert isinstance(form, sparse_config.Sparse)
        found.append(sparse_kernel.macros(kind, form, hidden))
    return found + of_sparse_clusters(is_backward)


def of_sparse_clusters(is_backward: bool) -> list[tuple[tuple[str, str], ...]]:
    """Of one sequence and of as many as a tile has."""
    found = []
    sizes = [("rnn_tanh", 4608, 4, 0.3), ("lstm", 1792, 1, 0.1), ("gru", 2304, 8, 0.05), ("rnn_relu", 4608, 2, 0.1)]
    for (cell, hidden, batch, density), dtype in itertools.product(sizes, (torch.float16, torch.float32)):
        kind = persistent_kernel.Kind(dtype, torch.device("cuda", 0), keeps=batch > 1)
        problem = (kind.backward if is_backward else kind).problem(cell, hidden, batch)
        counts = sparse_heuristics.expected_counts(problem, density)
        forms = [one for one in sparse_heuristics._fitting(problem, counts, HOPPER, sparse_config.ALL) if one.cluster > 1]
        form = min(forms, key=lambda one: one.step_clocks)
        found.append(sparse_kernel.macros(kind, form, hidden))
    return found


# Sources that not every architecture has the instructions for.
ONLY = {
    "persistent_gpu.cu": ((9, 0),), "persistent_gpu_backward.cu": ((9, 0),), "persistent_grid.cu": ((8, 0), (9, 0)),
    "persistent_abreast.cu": ((8, 0), (9, 0)),
    "persistent_grid_backward.cu": ((8, 0), (9, 0)), "persistent_wave.cu": ((9, 0),),
    "sparse_persistent_gpu.cu": ((8, 0), (9, 0)), "sparse_persistent_backward.cu": ((8, 0), (9, 0)),
}  # fmt: skip
MEASURED = (9, 0)  # the architecture for which most is compiled
MOST_COMPILED = {MEASURED: 8 if IS_CI else 2}  # of a kernel; for other architectures 3
# Bytes, where weights fill the registers: what else is in them varies from one version of the compiler to the next.
MOST_SPILLED = {
    "persistent_abreast.cu": 192,  # addresses, of float32 that is split: read again once a step
    "persistent_gpu_backward.cu": 16,
    "persistent_grid.cu": 80,
    "persistent_grid_backward.cu": 64,
    "persistent_wave.cu": 64,
    "sparse_persistent_gpu.cu": 320,  # of who has several states, where elements fill the registers
    "sparse_persistent_backward.cu": 320,
}
MOST_SPILLED_BY_READERS = 256  # addresses, of threads that read alone
Variant = tuple[tuple[str, str], ...]
# Functions, for what they return takes seconds to choose.
VARIANTS: dict[str, Callable[[], list[Variant]]] = {
    "persistent_gpu.cu": lambda: of_persistent(False) + of_persistent_fused("persistent_gpu.cu"),
    "persistent_gpu_backward.cu": lambda: of_persistent(True),
    "persistent_abreast.cu": lambda: of_persistent_grid(False, is_abreast=True) + of_persistent_fused("persistent_abreast.cu"),
    "persistent_grid.cu": lambda: of_persistent_grid(False) + of_persistent_fused("persistent_grid.cu"),
    "persistent_grid_backward.cu": lambda: of_persistent_grid(True),
    "persistent_once.cu": of_persistent_once,
    "persistent_wave.cu": of_persistent_wave,
    "scan_gpu.cu": of_scan,
    "scan_gpu_log.cu": of_log_scan,
    "sparse_persistent_gpu.cu": lambda: of_sparse(False),
    "sparse_persistent_backward.cu": lambda: of_sparse(True),
    "transposed_gpu.cu": lambda: [
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
    return VARIANTS[name]()


def compiled_here(name: str, capability: tuple[int, int]) -> list[Variant]:
    """Of the variants as many as CI has time for, always the same, or all of them where ECORNN_ALL_VARIANTS is set."""
    # only newer devices move registers, or have clusters
    new = {"OTHER_REGISTERS": "0", "CLUSTER": "1"}
    able = [one for one in variants(name) if capability >= (9, 0) or new == new | {k: v for k, v in one if k in new}]
    most = len(able) if os.environ.get("ECORNN_ALL_VARIANTS") else MOST_COMPILED.get(capability, 3)
    return random.Random(f"{name} {capability}").sample(able, min(most, len(able)))


def of_architecture(name: str, capability: tuple[int, int]) -> Any:
    """Parameters of a test. Only CI compiles for the architectures that are not measured."""
    marks = [] if capability == MEASURED else [pytest.mark.ci_only]
    return pytest.param(name, capability, marks=marks, id=f"{name}-sm_{capability[0]}{capability[1]}")


def unique(source: Path, folder: Path) -> Path:
    """A copy that nobody has compiled: beside a driver NVRTC keeps a cache of its own, and is silent on what it finds there."""
    copy = folder / source.name
    copy.write_text(f"{source.read_text()}\n__device__ int unique_{uuid.uuid4().hex};\n")
    return copy


def test_every_kernel_is_compiled_here() -> None:
    assert {file.name for file in FOLDER.rglob("*.cu")} == set(VARIANTS)


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "capability"),
    [of_architecture(name, capability) for name in VARIANTS for capability in ONLY.get(name, compiler.ARCHITECTURES)],
)
def test_kernels_compile_without_spills(
    name: str, capability: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path))
    source = unique(source_of(name), tmp_path)
    for variant in compiled_here(name, capability):
        compiled = compiler.compile_source(source, variant, capability)
        spilled = [int(count) for count in re.findall(r"(\d+) bytes spill", compiled.log)]
        assert spilled, "the compiler says how many bytes a kernel spills"
        most = MOST_SPILLED_BY_READERS if dict(variant).get("LOAD_THREADS", "0") != "0" else MOST_SPILLED.get(name, 0)
        assert max(spilled) <= most, f"{variant}: {compiled.log}"
        assert compiled.path.stat().st_size


def is_whole(elf: bytes) -> bool:
    """Whether both tables that the header of an ELF file tells of are in it: nvdisasm refuses the file otherwise."""
    ends = [
        struct.unpack_from("<Q", elf, offset)[0] + math.prod(struct.unpack_from("<HH", elf, sizes))
        for offset, sizes in ((0x20, 0x36), (0x28, 0x3A))
    ]
    return len(elf) == max(ends)


@needs_nvrtc
def test_what_was_compiled_once_comes_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path))
    source, variant = unique(source_of("transposed_gpu.cu"), tmp_path), variants("transposed_gpu.cu")[0]
    first = compiler.compile_source(source, variant, (9, 0))
    again = compiler.compile_source(source, variant, (9, 0))
    other = compiler.compile_source(source, variant, (8, 0))
    assert first.log
    assert again == compiler.Compiled(first.path, "")
    assert is_whole(first.path.read_bytes())
    assert other.path != first.path


@needs_nvrtc
def test_a_kernel_is_compiled_where_the_cache_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", "/dev/null/absent")
    source = tmp_path / "empty.cu"
    source.write_text('extern "C" __global__ void f() {}')
    path = compiler.compile_source(source, (), (9, 0)).path
    assert path.stat().st_size
    assert path.parent.name.startswith("pytest-ecornn-kernels-")


@needs_nvrtc
def test_an_error_in_a_kernel_is_shown_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path))
    source = tmp_path / "wrong.cu"
    source.write_text("\nint f() { return missing; }\n")
    with pytest.raises(compiler.CompilationError, match=r"wrong\.cu\(2\).*missing"):
        compiler.compile_source(source, (), (9, 0))


def test_headers_say_what_the_house_asks() -> None:
    for file in FOLDER.rglob("*.cu"):
        header = list(itertools.takewhile(lambda line: line.startswith("//"), file.read_text().splitlines()))
        assert len(header) <= 36
        words = [match[1] for line in header if (match := re.match(r"// (\w+): ", line))]
        assert words == ["Maths", "Layout", "Launch", "Cost", "Limits", "Order"]


def test_a_thread_for_each_element() -> None:
    assert one_thread_each(1) == Launch(1, 128)
    assert one_thread_each(129) == Launch(2, 128)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(5), torch.zeros(6, dtype=torch.float64), torch.zeros(3, 4)[:, :2]],
    ids=["too few elements", "another dtype", "with gaps"],
)
def test_a_wrong_tensor_is_refused_with_what_was_expected(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"k: expected h as 6 adjacent elements of torch.float32 on cpu, got \("):
        Array(torch.float32, 6).pointer("k", "h", tensor, torch.device("cpu"))


def test_none_is_refused_where_it_is_not_an_option() -> None:
    Array(torch.float32, 6, is_optional=True).pointer("k", "h", None, torch.device("cpu"))
    with pytest.raises(ValueError, match="k: expected a tensor as h, got None"):
        Array(torch.float32, 6).pointer("k", "h", None, torch.device("cpu"))


def test_dense_in_any_order_of_dimensions() -> None:
    assert is_dense(torch.zeros(2, 3, 4).permute(1, 2, 0))
    assert not is_dense(torch.zeros(2, 3, 4)[:, :, ::2])
    assert not is_dense(torch.zeros(1, 3).expand(2, 3))
