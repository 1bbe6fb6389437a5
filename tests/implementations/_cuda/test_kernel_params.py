"""The one parameter of every kernel: its fields are those that the host packs, in their order and of their sizes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._cuda import bias_gradients, padded_rows, parameter_gradients
from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations._cuda.kernel import Kernel, TensorArg
from pytest_ecornn.implementations.persistent_gpu import heuristics as persistent_heuristics
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu import single_step, wavefront
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.input_gemm import gemm_3xtf32
from pytest_ecornn.implementations.persistent_gpu.input_gemm.gemm_3xtf32 import TILES
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaConfig
from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu_log import ops as scan_gpu_log_ops
from pytest_ecornn.implementations.sparse_persistent_gpu import config as sparse_config
from pytest_ecornn.implementations.sparse_persistent_gpu import heuristics as sparse_heuristics
from pytest_ecornn.implementations.sparse_persistent_gpu import kernel as sparse_kernel
from pytest_ecornn.implementations.transposed_gpu import steps
from pytest_ecornn.implementations.transposed_gpu.buffers import Form as TransposedForm
from tests.helpers.kernel_forms import FOLDER, H200, HOPPER, source_of, variants
from tests.helpers.requirements import needs_nvrtc

GPU = torch.device("cuda", 0)


class Recording(Kernel):
    """Keeps what it was made of, and loads nothing."""

    def __init__(self, *given: Any, **options: Any):
        super().__init__(*given, **options | {"is_lazy": True})
        self.source, self.function, self.macros, self.fields = self._source, self._function, self._macros, self._arguments


def persistent() -> Iterator[Any]:
    """One layer in one direction, of each source, with an input product and without; layers in a wave; one step."""
    for is_backward in (False, True):
        spec = KernelSpec(torch.float16, GPU, is_backward=is_backward)
        problems = spec.problem("lstm", 512, 32), spec.problem("lstm", 64, 8)
        forms = [form for problem in problems for form in persistent_heuristics.candidate_configs(problem, HOPPER)]
        sources = {persistent_kernel.source_of(spec, form): form for form in forms}
        yield from (persistent_kernel.make_kernel(spec, form) for form in sources.values())
        if not is_backward:
            fused = [form for form in sources.values() if not isinstance(form, WgmmaConfig | BlockConfig)]
            yield from (persistent_kernel.make_kernel(spec._replace(inputs=64), form) for form in fused)
    spec = KernelSpec(torch.float16, GPU)
    for layers in (2, 4):
        wave = wavefront.select_wavefront(spec.problem("gru", 128, 8), HOPPER, 33, layers, 100)
        assert wave is not None
        yield wavefront.kernel_of.__wrapped__(spec, wave)
    once = single_step.select_single_step(single_step.SingleStepConfig("lstm", 65, 33, 8, spec.arithmetic), HOPPER)
    yield single_step.make_kernel(once, spec)
    yield single_step.make_backward_kernel(single_step.SingleStepBackwardConfig("lstm", 33, 8), spec.backward)
    for gradients in (bias_gradients, parameter_gradients):
        yield gradients.make_kernel.__wrapped__(8, torch.float16, GPU)
    yield padded_rows.make_kernel.__wrapped__(torch.float16, GPU)
    yield gemm_3xtf32.make_kernel.__wrapped__(TILES[0], GPU)


def sparse() -> Iterator[Any]:
    for is_backward in (False, True):
        spec = KernelSpec(torch.float16, GPU, is_backward=is_backward)
        problem = spec.problem("gru", 1152, 4)
        form = sparse_heuristics.select_config(
            problem, sparse_heuristics.expected_counts(problem, 0.1), HOPPER, sparse_config.Techniques()
        )
        assert isinstance(form, sparse_config.SparseConfig)
        yield sparse_kernel.kernel_of.__wrapped__(spec, form, 1152)


def scans() -> Iterator[Any]:
    shape = scan_gpu_ops.Shape("mingru_positive", 4096, 8, 64, True, False)
    for is_backward in (False, True):
        kind = scan_gpu_ops.ScanSpec(torch.float32, GPU, 16, True, True, is_backward)
        yield scan_gpu_ops.make_kernel(shape, kind, scan_gpu_ops.choose_form(shape, kind, H200))
    tree = scan_gpu_log_ops.select_config(shape, torch.float32, 132)
    yield scan_gpu_log_ops.make_kernel(shape, torch.float32, GPU, tree, True)


def transposed() -> Iterator[Any]:
    yield from steps.kernels(TransposedForm(Case.parse("gru-T3-B2-H5-float16-training-cuda"), GPU, True))


@pytest.fixture(scope="module")
def kernels() -> Iterator[list[Recording]]:
    """Kernels of every source."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            persistent_kernel, single_step, wavefront, bias_gradients, padded_rows, parameter_gradients, sparse_kernel,
            gemm_3xtf32, scan_gpu_ops, scan_gpu_log_ops, steps,
        ):  # fmt: skip
            patch.setattr(module, "Kernel", Recording)
        yield [*persistent(), *sparse(), *scans(), *transposed()]


@dataclass(frozen=True)
class Struct:
    """A struct of a source: its base, and what it declares, member functions left out."""

    base: str
    declarations: tuple[str, ...]


def preprocessed(kernel: Recording) -> str:
    options = [one for one in compiler._options(kernel.source, kernel.macros, (9, 0)) if one.startswith(("-I", "-D"))]
    command = ["g++", "-E", "-P", "-x", "c++", *options, str(kernel.source)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def structs(text: str) -> dict[str, Struct]:
    found = {}
    for match in re.finditer(r"\bstruct (?:alignas\(\w+\) )?(\w+)(?: : (\w+))? \{", text):
        body, depth = "", 1
        for letter in text[match.end() :]:
            depth += (letter == "{") - (letter == "}")
            if depth == 0:
                break
            if depth == 1:
                body += ";" if letter == "}" else letter
        declared = (" ".join(one.split()) for one in body.split(";"))
        found[match[1]] = Struct(match[2] or "", tuple(one for one in declared if one and "(" not in one))
    return found


Field = tuple[str, str]  # its name; "pointer", or its type


def fields(name: str, known: Mapping[str, Struct]) -> Iterator[Field]:
    """All fields of a struct, in their order: its base's first; of a member that is a struct its name and those of that."""
    if known[name].base:
        yield from fields(known[name].base, known)
    for declaration in known[name].declarations:
        match = re.fullmatch(r"(?:const )?(\w+)(?:<[^>]*>)? ?(.*)", declaration)
        assert match, declaration
        for declarator in match[2].split(","):
            yield from declared(match[1], declarator.strip(), known)


def declared(kind: str, declarator: str, known: Mapping[str, Struct]) -> Iterator[Field]:
    name, _, length = declarator.rstrip("]").partition("[")
    if kind in known and "*" not in name:
        inner = list(fields(kind, known))
        if length:  # of each layer
            yield from ((f"{field}_{i}", what) for i in range(int(length)) for field, what in inner)
        else:  # an address, then its strides
            yield from ((name if i == 0 else f"{name}_{field}", what) for i, (field, what) in enumerate(inner))
    else:
        yield name.lstrip("* "), "pointer" if "*" in name else kind


WIDE = ("index", "offset", "length")  # integers of 64 bits


def is_packed_as(kind: str, argument: Any) -> bool:
    """Whether the host packs a field of a kind as it is. An address may be an integer of 64 bits."""
    if isinstance(argument, TensorArg):
        return kind == "pointer"
    return kind == "int" if argument is int else argument is np.int64 and kind in ("pointer", *WIDE)


def test_every_source_is_among_them(kernels: list[Recording]) -> None:
    assert {kernel.source for kernel in kernels} == set(FOLDER.rglob("*.cu"))


def test_the_host_packs_the_fields_of_the_source(kernels: list[Recording]) -> None:
    for kernel in kernels:
        text = preprocessed(kernel)
        found = dict(fields("Params", structs(text)))
        assert list(found) == list(kernel.fields), kernel._name
        wrong = {name: kind for name, kind in found.items() if not is_packed_as(kind, kernel.fields[name])}
        assert not wrong, kernel._name
        assert re.search(rf"\b{kernel.function}\(const __grid_constant__ Params params\)", text), kernel._name
        size = dict(kernel.macros)["PARAMS_BYTES"]
        assert re.search(rf"static_assert\(sizeof\(Params\) == {size},", text), kernel._name


@needs_nvrtc
def test_a_kernel_whose_parameters_have_another_size_is_not_compiled() -> None:
    with pytest.raises(compiler.CompilationError, match="the host packs other parameters"):
        compiler.compile_source(source_of("pointwise.cu"), (*variants("pointwise.cu")[0], ("PARAMS_BYTES", "8")), (9, 0))
