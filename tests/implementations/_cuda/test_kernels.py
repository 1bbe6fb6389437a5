"""Kernels compile for every architecture without spills or loads that may be of null, and check arguments; by no GPU."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import struct
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations._common.compile_threads import CompileThreads
from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations._cuda.kernel import TensorArg, is_non_overlapping_and_dense, one_thread_per_element
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations.persistent_gpu import kernel, single_step, wavefront
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs, select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.persistent_gpu.single_step import SingleStepConfig
from tests.helpers.kernel_forms import FOLDER, HOPPER, MEASURED, VARIANTS, Variant, copied, ptx_of, source_of, variants
from tests.helpers.requirements import needs_nvrtc
from tests.helpers.whole_suite import IS_TEST_ALL


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path))


# Sources that not every architecture has the instructions for.
ONLY = {
    "cluster_forward.cu": ((9, 0),), "cluster_backward.cu": ((9, 0),), "grid_forward.cu": ((8, 0), (9, 0)),
    "grid_forward_ntiled.cu": ((8, 0), (9, 0)), "wgmma_forward.cu": ((9, 0),), "wgmma_backward.cu": ((9, 0),),
    "grid_backward.cu": ((8, 0), (9, 0)), "wavefront_forward.cu": ((9, 0),), "bias_gradients.cu": ((9, 0),),
    "parameter_gradients.cu": ((9, 0),), "input_gemm_3xtf32.cu": ((8, 0), (9, 0)),
    "forward.cu": ((8, 0), (9, 0)), "backward.cu": ((8, 0), (9, 0)),
}  # fmt: skip
MOST_COMPILED = 4 if IS_TEST_ALL else 2  # of a kernel for each architecture
# Bytes, where weights fill the registers: what else is in them varies from one version of the compiler to the next.
MOST_SPILLED = {
    "grid_forward_ntiled.cu": 192,  # addresses, of float32 that is split: read again once a step
    "cluster_backward.cu": 16,
    "grid_forward.cu": 80,
    "grid_backward.cu": 64,
    "wavefront_forward.cu": 64,
    "forward.cu": 320,  # of who has several states, where elements fill the registers
    "backward.cu": 320,
    "input_gemm_3xtf32.cu": 8,  # for compute capability 8.0
}
MOST_SPILLED_BY_READERS = 256  # addresses, of threads that read alone


def compiled_here(name: str, capability: tuple[int, int]) -> list[Variant]:
    """Of the variants as many as there is time for, always the same, or all of them where ECORNN_ALL_VARIANTS is set."""
    # only newer devices move registers, or have clusters
    new = {"MMA_REGISTERS": "0", "CLUSTER": "1"}
    able = [one for one in variants(name) if capability >= (9, 0) or new == new | {k: v for k, v in one if k in new}]
    most = len(able) if os.environ.get("ECORNN_ALL_VARIANTS") else MOST_COMPILED
    return random.Random(f"{name} {capability}").sample(able, min(most, len(able)))


def of_architecture(name: str, capability: tuple[int, int]) -> Any:
    """Parameters of a test. Only `make test-all` compiles for the architectures that are not measured."""
    marks = [] if capability == MEASURED else [pytest.mark.test_all]
    return pytest.param(name, capability, marks=marks, id=f"{name}-sm_{capability[0]}{capability[1]}")


def unique(source: Path, folder: Path) -> Path:
    """A copy that nobody has compiled: beside a driver NVRTC keeps a cache of its own, and is silent on what it finds there."""
    copy = copied(source, folder)
    copy.write_text(f"{source.read_text()}\n__device__ int unique_{uuid.uuid4().hex};\n")
    return copy


def test_every_kernel_is_compiled_here() -> None:
    assert {file.name for file in FOLDER.rglob("*.cu")} == set(VARIANTS)


@pytest.mark.test_all(keep=2)
@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "capability"),
    [of_architecture(name, capability) for name in VARIANTS for capability in ONLY.get(name, compiler.ARCHITECTURES)],
)
def test_kernels_compile_without_spills(name: str, capability: tuple[int, int], tmp_path: Path) -> None:
    source = unique(source_of(name), tmp_path)
    for variant in compiled_here(name, capability):
        compiled = compiler.compile_source(source, variant, capability)
        spilled = [int(count) for count in re.findall(r"(\d+) bytes spill", compiled.log)]
        assert spilled, "the compiler says how many bytes a kernel spills"
        most = MOST_SPILLED_BY_READERS if dict(variant).get("LOAD_THREADS", "0") != "0" else MOST_SPILLED.get(name, 0)
        assert max(spilled) <= most, f"{variant}: {compiled.log}"
        assert compiled.path.stat().st_size


@needs_nvrtc
@pytest.mark.test_all
def test_weights_stay_in_registers_at_the_largest_size(tmp_path: Path) -> None:
    """In a loop that the compiler does not unroll they would have an index, and lie in local memory."""
    spec = KernelSpec(torch.float32, torch.device("cuda", 0))
    form = select_config(spec.problem("rnn_relu", 2560, 16), HOPPER)
    assert isinstance(form, NTiledGridConfig)
    source = unique(source_of("grid_forward_ntiled.cu"), tmp_path)
    compiled = compiler.compile_source(source, kernel.macros(spec, form), MEASURED)
    (stack,) = re.findall(r"(\d+) bytes stack frame", compiled.log)
    assert int(stack) <= 64, compiled.log


def is_whole(elf: bytes) -> bool:
    """Whether both tables that the header of an ELF file tells of are in it: nvdisasm refuses the file otherwise."""
    ends = [
        struct.unpack_from("<Q", elf, offset)[0] + math.prod(struct.unpack_from("<HH", elf, sizes))
        for offset, sizes in ((0x20, 0x36), (0x28, 0x3A))
    ]
    return len(elf) == max(ends)


@needs_nvrtc
@pytest.mark.parametrize("name", VARIANTS)
def test_a_kernel_whose_parameters_have_another_size_is_not_compiled(name: str) -> None:
    """Their order is the host's too, or a kernel on a CPU's simulator, where Params is packed as for a GPU, is wrong."""
    for variant in {variants(name)[0], variants(name)[-1]}:  # of both passes, where a source has them
        with pytest.raises(compiler.CompilationError, match="the host packs other parameters"):
            compiler.compile_source(source_of(name), (*variant, ("PARAMS_BYTES", "8")), MEASURED)


@needs_nvrtc
def test_what_was_compiled_once_comes_from_disk(tmp_path: Path) -> None:
    source, variant = unique(source_of("pointwise.cu"), tmp_path), variants("pointwise.cu")[0]
    first = compiler.compile_source(source, variant, (9, 0))
    again = compiler.compile_source(source, variant, (9, 0))
    other = compiler.compile_source(source, variant, (8, 0))
    assert first.log
    assert again == compiler.Compiled(first.path, "")
    assert is_whole(first.path.read_bytes())
    assert other.path != first.path


@needs_nvrtc
def test_kernels_are_compiled_beside_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", str(tmp_path / "cache"))
    codes = []
    for name in ("first", "second", "third", "wrong"):
        source = tmp_path / f"{name}.cu"
        source.write_text(f'extern "C" __global__ void {name}() {{{"}" * (name != "wrong")}')
        codes.append(compiler.KernelCode(source, (), (9, 0)))
    threads = CompileThreads(2)
    threads.add([*codes, *codes])
    assert threads.is_compiling(codes)
    threads.compile(codes[1:])
    threads.wait(codes)
    assert not threads.is_compiling(codes)
    assert [code.path.exists() for code in codes] == [True, True, True, False]
    modified = [code.path.stat().st_mtime_ns for code in codes[:3]]
    threads.compile(codes[:3])
    assert modified == [code.path.stat().st_mtime_ns for code in codes[:3]]


@needs_nvrtc
def test_a_process_that_ends_waits_for_no_more_than_what_is_being_compiled() -> None:
    process = textwrap.dedent("""
        import threading
        from pathlib import Path
        from pytest_ecornn.implementations._common.compile_threads import CompileThreads
        from pytest_ecornn.implementations._cuda import compile as compiler
        begun, ended = threading.Event(), threading.Event()
        def compile_source(*code):
            begun.set(), ended.wait(30), print("compiled")
        compiler.compile_source = compile_source
        threads = CompileThreads(1)
        threads.add(compiler.KernelCode(Path(compiler.__file__), (("N", str(n)),), (9, 0)) for n in range(5))
        begun.wait(30)
        ended.set()
    """)
    result = subprocess.run([sys.executable, "-c", process], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.count("compiled") <= 2  # that one, and one more if it began before the end


@needs_nvrtc
def test_a_change_of_any_header_compiles_a_kernel_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "HEADERS", tmp_path / "include")
    source = tmp_path / "kernels/kernel.cu"
    files = [source, tmp_path / "kernels/own.cuh", tmp_path / "include/ecornn/ptx/shared.cuh"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    digests = [compiler._digest(source, (), (9, 0))]
    for file in files:
        file.write_text("// changed")
        digests.append(compiler._digest(source, (), (9, 0)))
    assert len(set(digests)) == 4


def test_a_kernel_includes_shared_headers_by_their_path_and_its_own_by_their_name() -> None:
    for file in (*FOLDER.rglob("*.cu"), *FOLDER.rglob("*.cuh")):
        for name in re.findall(r'#include "(.+)"', file.read_text()):
            own = [folder for folder in (file.parent, file.parents[1]) if "kernels" in folder.parts[-2:]]
            folders = [compiler.HEADERS] if name.startswith("ecornn/") else own
            assert any((folder / name).is_file() for folder in folders), f"{file}: {name}"


@needs_nvrtc
def test_a_kernel_is_compiled_where_the_cache_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_CACHE_DIR", "/dev/null/absent")
    source = tmp_path / "empty.cu"
    source.write_text('extern "C" __global__ void f() {}')
    path = compiler.compile_source(source, (), (9, 0)).path
    assert path.stat().st_size
    assert path.parent.name.startswith("pytest-ecornn-kernels-")
    modified = path.stat().st_mtime_ns
    assert compiler.compile_source(source, (), (9, 0)).path == path
    assert path.stat().st_mtime_ns == modified


@needs_nvrtc
def test_an_error_in_a_kernel_is_shown_with_its_line(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("\nint f() { return missing; }\n")
    with pytest.raises(compiler.CompilationError, match=r"wrong\.cu\(2\).*missing"):
        compiler.compile_source(source, (), (9, 0))


def test_headers_say_what_the_house_asks_and_kernels_take_params() -> None:
    for file in FOLDER.rglob("*.cu"):
        text = file.read_text()
        header = list(itertools.takewhile(lambda line: line.startswith("//"), text.splitlines()))
        assert len(header) <= 36
        words = [match[1] for line in header if (match := re.match(r"// (\w+): ", line))]
        assert words == ["Maths", "Layout", "Launch", "Cost", "Limits", "Order"]
        assert text.count("(const __grid_constant__ Params params) {") == text.count("__global__")


def test_a_thread_for_each_element() -> None:
    assert one_thread_per_element(1) == Launch(1, 128)
    assert one_thread_per_element(129) == Launch(2, 128)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(5), r"h as 6 adjacent elements of torch.float32 on cpu, got \("),
        (torch.zeros(6, dtype=torch.float64), r"h as 6 adjacent elements of torch.float32 on cpu, got \("),
        (torch.zeros(3, 4)[:, :2], r"h as 6 adjacent elements of torch.float32 on cpu, got \("),
        (None, "a tensor as h, got None"),
    ],
    ids=["too few elements", "another dtype", "with gaps", "none"],
)
def test_a_wrong_tensor_is_refused_with_what_was_expected(tensor: torch.Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"k: expected {message}"):
        TensorArg(torch.float32, 6).pointer("k", "h", tensor, torch.device("cpu"))
    TensorArg(torch.float32, 6, is_optional=True).pointer("k", "h", None, torch.device("cpu"))


def test_dense_in_any_order_of_dimensions() -> None:
    assert is_non_overlapping_and_dense(torch.zeros(2, 3, 4).permute(1, 2, 0))
    assert not is_non_overlapping_and_dense(torch.zeros(2, 3, 4)[:, :, ::2])
    assert not is_non_overlapping_and_dense(torch.zeros(1, 3).expand(2, 3))


# No load is from an address that may be null, which only a condition would keep from happening.

TF32 = KernelSpec(torch.float32, torch.device("cuda", 0), tf32=True, saves_for_backward=True, lengths=True)
PROBLEM = ProblemSize("lstm", 64, 3, MathMode(4, False))  # H is no multiple of 12 units a block: the last block has 4
NULL_OR_ADDRESS = re.compile(r"selp\.b64\s+(%rd\d+), %rd\d+, 0, %p\d+;")
LOADED = re.compile(r"ld\.[\w.]+\s+[^[]+\[(%rd\d+)")


def of_form(kind: type[Form], inputs: int = 0) -> tuple[Path, Any]:
    form = next(
        form
        for form in candidate_configs(PROBLEM, HOPPER)
        if type(form) is kind and form.units == 12 and form.is_grid and form.k_partitions > 2
    )
    chosen = TF32._replace(inputs=inputs, saves_for_backward=not inputs)
    return kernel.source_of(chosen, form), kernel.macros(chosen, form)


def of_wave() -> tuple[Path, Any]:
    waves = wavefront.select_wavefronts(PROBLEM, HOPPER, 64, 4, 64)
    wave = next(wave for wave in waves if wave is not None)
    return wavefront._SOURCE, kernel.macros(TF32, wave)


def of_once() -> tuple[Path, Any]:
    once = single_step.select_single_step(SingleStepConfig("lstm", 64, 64, 3, MathMode(4, False)), HOPPER)
    return single_step._SOURCE, once.macros(TF32._replace(tf32=False, saves_for_backward=True))


KERNELS = {
    "grid": lambda: of_form(Form),
    "grid, input product": lambda: of_form(Form, 64),
    "abreast": lambda: of_form(NTiledGridConfig),
    "wave": of_wave,
    "once": of_once,
}


@needs_nvrtc
@pytest.mark.parametrize("name", KERNELS)
def test_no_address_of_a_load_may_be_null(name: str) -> None:
    text = ptx_of(*KERNELS[name]())
    loaded = set(LOADED.findall(text))
    assert len(loaded) > 3
    assert loaded.isdisjoint(NULL_OR_ADDRESS.findall(text))
