"""How long the first use of a kernel takes, stage by stage, in a process of its own: compiled, then loaded from disk.

`python -m pytest_ecornn.suites.promises.first_use NAME CASE...` prints the figures of this process as JSON. torch, cuBLAS,
NVRTC and CuPy are made ready before the clock starts, so a stage is the kernel's own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Implementation, Unsupported
from pytest_ecornn.implementations._cuda import compile as compiler
from pytest_ecornn.implementations._cuda import kernel
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.suites.fresh_processes import own_caches, run_in_turn
from pytest_ecornn.verification.calls import Call

NAME = "transposed_gpu"
CASES = (  # a kernel's first use, another shape, another type
    "lstm-T35-B32-H650-L2-float32-cuda",
    "lstm-T35-B64-H512-float32-cuda",
    "lstm-T35-B32-H650-L2-bfloat16-cuda",
)
COLD, WARM = "nothing on disk", "compiled on disk"
MOST_COMPILE_S, MOST_LOAD_S = 3.0, 0.05


@dataclass(frozen=True)
class Stage:
    """The first use of one kernel. compile_s: None where its machine code was on disk. load_s: all else until it can run."""

    kernel: str
    compile_s: float | None
    load_s: float


@dataclass(frozen=True)
class ColdStart:
    """A case's build and first call, until the device was done."""

    case: str
    seconds: float
    stages: list[Stage] = field(default_factory=list)
    disk: str = COLD

    @property
    def compiles_s(self) -> list[float]:
        return [one.compile_s for one in self.stages if one.compile_s is not None]

    @property
    def disk_loads_s(self) -> list[float]:
        """Load times, in seconds, of kernels that needed no compilation."""
        return [one.load_s for one in self.stages if one.compile_s is None]


@dataclass
class ColdStartFigures:
    """Figures of one implementation. reason: why there are none, or empty."""

    name: str = NAME
    firsts: list[ColdStart] = field(default_factory=list)
    reason: str = ""


class CompileTimer:
    """Notes how long a kernel's first use takes, and how much of it its compilation."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._compile_s: float | None = None

    def nvrtc(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run` compiles."""

        def watched(*given: Any) -> Any:
            start = time.perf_counter()
            result = run(*given)
            self._compile_s = time.perf_counter() - start
            return result

        return watched

    def function(self, find: Any) -> Callable[..., Any]:
        """`find`, a functools.cache, loads what it has not yet and may compile it before."""

        def watched(source: Path, name: str, macros: tuple[tuple[str, str], ...], *how: Any) -> Any:
            misses, self._compile_s = find.cache_info().misses, None
            start = time.perf_counter()
            result = find(source, name, macros, *how)
            if find.cache_info().misses > misses:
                load_s = time.perf_counter() - start - (self._compile_s or 0.0)
                label = ", ".join([name, *(f"{key} {value}" for key, value in macros)])
                self.stages.append(Stage(label, self._compile_s, load_s))
            return result

        return watched


@contextmanager
def watching() -> Iterator[CompileTimer]:
    watch = CompileTimer()
    with (
        patch.object(compiler, "_run_nvrtc", watch.nvrtc(compiler._run_nvrtc)),
        patch.object(kernel, "_launcher", watch.function(kernel._launcher)),
    ):
        yield watch


def prepared(name: str, case: Case) -> Implementation:
    """Makes ready what is not the kernels': CUDA, both libraries of cuBLAS, CuPy, NVRTC. Raises Unsupported."""
    found = discover([])[name].cls()
    if reason := found.unsupported(case, torch.device("cuda")):
        raise Unsupported(reason)
    import cupy

    library, ones = torch.backends.cuda.preferred_blas_library(), torch.ones(64, 64, device="cuda")
    for name in ("cublas", "cublaslt"):
        torch.backends.cuda.preferred_blas_library(name)
        torch.mm(ones, ones)
    torch.backends.cuda.preferred_blas_library(library)
    with cupy.cuda.Device(0):
        cupy.cuda.runtime.free(0)
    torch.cuda.synchronize()
    return found


def first_call(implementation: Implementation, case: Case, watch: CompileTimer) -> ColdStart:
    """Builds the layer and calls it once."""
    problem, before = contents.problem(case), len(watch.stages)
    call = Call(problem)
    torch.cuda.synchronize()
    start = time.perf_counter()
    layer = implementation.build(case, problem.weights)
    with torch.set_grad_enabled(case.training):
        call.forward_backward(layer)
    torch.cuda.synchronize()
    return ColdStart(str(case), time.perf_counter() - start, watch.stages[before:])


def measure(name: str = NAME, cases: Sequence[str] = CASES) -> ColdStartFigures:
    """Two processes, one after the other, with caches of their own: the second finds on disk what the first compiled."""
    figures = ColdStartFigures(name)
    with tempfile.TemporaryDirectory() as folder:
        for disk in (COLD, WARM):
            found = _in_process(folder, disk, name, cases)
            if isinstance(found, str):
                figures.reason = found
                break
            figures.firsts += found
    return figures


def _in_process(folder: str, disk: str, name: str, cases: Sequence[str]) -> list[ColdStart] | str:
    arguments = ["-m", "pytest_ecornn.suites.promises.first_use", name, *cases]
    ((line, reason),) = run_in_turn([(arguments, own_caches(Path(folder)))])
    return reason or parse(line, disk)


def parse(text: str, disk: str) -> list[ColdStart]:
    """Parses what `main` printed; `disk` goes into each result."""
    return [
        ColdStart(one["case"], one["seconds"], [Stage(**stage) for stage in one["stages"]], disk) for one in json.loads(text)
    ]


def render(figures: ColdStartFigures) -> str:
    if not figures.firsts and not figures.reason:
        return ""
    calls = [[one.disk, one.case, significant(one.seconds), str(len(one.compiles_s))] for one in figures.firsts]
    stages = [
        [one.disk, stage.kernel, "-" if stage.compile_s is None else significant(stage.compile_s), milliseconds(stage.load_s)]
        for one in figures.firsts
        for stage in one.stages
    ]
    return document(
        [
            "## The first use of a kernel",
            f"{figures.name} in a fresh process; CUDA, cuBLAS, NVRTC and CuPy are made ready before. Build and first call, the "
            "choice of a layout included, last until the device is done. They follow each other in one process.",
            table(("process", "case", "build and first call, s", "compiled"), calls, ("build and first call, s", "compiled")),
            table(("process", "kernel", "compiling, s", "loading, ms"), stages, ("compiling, s", "loading, ms")),
            f"Not measured: {escape(figures.reason)}" if figures.reason else "",
        ]
    )


def milliseconds(seconds: float) -> str:
    return significant(seconds * 1e3)


def main(name: str, cases: Sequence[str]) -> None:
    implementation = prepared(name, Case.parse(cases[0]))
    with watching() as watch:
        print(json.dumps([asdict(first_call(implementation, Case.parse(text), watch)) for text in cases]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
