"""Kernels on a CPU under AddressSanitizer: the jobs, and the command that runs some of them in a process of its own.

`python -m tests.simulator.sanitized_cpu JOB ...`, in the environment of `environment()`, runs jobs, each as JSON, with a line
before and after each. Every array is an allocation of exactly its bytes, and so is each block's shared memory; between arrays
lie 256 bytes and more. An access that is further out, or within one block's shared memory, is not seen, nor are threads' own
arrays.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from random import Random

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Layer
from pytest_ecornn.implementations import persistent_gpu, sparse_persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations.persistent_gpu import wavefront
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu_log import ops as scan_gpu_log_ops
from pytest_ecornn.implementations.sparse_persistent_gpu import heuristics
from pytest_ecornn.implementations.transposed_gpu import layer
from pytest_ecornn.implementations.transposed_gpu import ops as transposed_ops
from pytest_ecornn.implementations.transposed_gpu.buffers import Form as TransposedForm
from pytest_ecornn.suites.sanitized import ANY, CLUSTERS, WAVE, Job, _best
from pytest_ecornn.verification import calls
from tests.simulator.clusters_on_cpu import H200, ClustersOnCpu, running_layers, running_sparse, start_from
from tests.simulator.kernels_on_cpu import KernelOnCpu, running_scans, running_transposed

CPU = torch.device("cpu")
# H, B, T and whether sequences have lengths of their own: nothing that a block, a tile or 16 bytes would divide.
SHAPES = ((1, 1, 1, False), (7, 3, 2, True), (19, 9, 3, True), (37, 17, 2, False), (53, 5, 3, True), (67, 11, 2, True))
PRECISIONS = ("float16", "bfloat16", "float32-tf32", "float32")
DTYPES = ("float16", "bfloat16", "float32", "float64")
_OF_FIRST_DTYPE = (0, 1, 5)  # of SHAPES, by number: these, as the others, have both passes of grids and each fused kind
GROUPS = ("persistent, 16 bits", "persistent, 32 bits", "sparse, scan, transposed")  # of jobs, a process each
_FEW = Device(4, 232_448, 16)  # multiprocessors, so that pruned rows have few blocks
_FUSED_ROWS = 15  # of x, whose product a persistent kernel makes itself
_FUSED = ("clusters", "grid", "grid, 8 sequences at once")
_LONG_STEPS = 512  # for which a wave is chosen


def environment() -> dict[str, str]:
    """Of a process that runs jobs."""
    libraries = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")  # the second, or exceptions are not caught
    ]
    options = "detect_leaks=0:detect_stack_use_after_return=0:halt_on_error=0:redzone=256"
    return {"ECORNN_SANITIZED": "address", "ASAN_OPTIONS": options, "LD_PRELOAD": " ".join(libraries), "OMP_NUM_THREADS": "1"}


def boundary(group: str) -> list[Job]:
    """Every kernel source by every dtype and at each of SHAPES; persistent ones at half of the shapes in either dtype."""
    if group == GROUPS[2]:
        return [*_sparse(SHAPES), *_scans(SHAPES), *_transposed(SHAPES)]
    precisions = PRECISIONS[:2] if group == GROUPS[0] else PRECISIONS[2:]
    pairs = ((number, precisions[number not in _OF_FIRST_DTYPE]) for number in range(len(SHAPES)))
    return [job for number, name in pairs for job in _persistent(number, SHAPES[number], name)]


Sizes = tuple[int, int, int, bool]


def drawn(count: int, seed: int) -> list[Job]:
    """Every kind of form by every dtype over so many shapes; a cell for each shape in turn."""
    random, found = Random(seed), list[Job]()
    for number in range(count):
        sizes = (random.randint(1, 160), random.randint(1, 40), random.randint(1, 4), random.random() < 0.5)
        for name in PRECISIONS:
            found += _every_kind(number, sizes, name)
        found += [*_sparse([sizes]), *_scans([sizes]), *_transposed([sizes])]
    return found


def _text(cell: str, sizes: Sizes, precision: str, *more: str) -> str:
    hidden, batch, steps, is_ragged = sizes
    return "-".join([f"{cell}-T{steps}-B{batch}-H{hidden}-{precision}", *["ragged"] * is_ragged, *more])


def _cell(number: int) -> str:
    return ("lstm", "gru", "rnn_tanh", "lstm", "gru", "rnn_relu")[number % 6]


def _persistent(number: int, sizes: Sizes, precision: str) -> Iterator[Job]:
    """Of each source the form that should be the fastest; both passes of grids are one job."""
    cell, name = _cell(number), "persistent_gpu"
    yield Job("persistent", name, _text(cell, sizes, precision, "state", "training"), "clusters")
    yield Job("persistent", name, _text(cell, sizes, precision, "training"), "grid", is_backward=number % 2 > 0)
    yield Job("persistent", name, _text(cell, sizes, precision, "state"), "grid, 8 sequences at once")
    yield Job("persistent", name, _text(cell, sizes, precision, "state", "training"), "blocks")
    yield from _short(number, sizes, precision)


def _short(number: int, sizes: Sizes, precision: str) -> Iterator[Job]:
    """What runs where steps and sequences are few, and layers in a wave."""
    (hidden, batch, steps, is_ragged), cell, name = sizes, _cell(number), "persistent_gpu"
    few = (hidden, min(batch, _FUSED_ROWS // steps), steps, is_ragged)
    yield Job("persistent", name, _text(cell, few, precision, "state"), _FUSED[number % 3])
    once = _text(cell, (hidden, min(batch, 13), 1, False), precision, *["state"] * (number % 2), "training")
    yield Job("persistent", name, once, "once")
    yield Job("persistent", name, _text(cell, sizes, precision, "state").replace(f"-{precision}", f"-L2-{precision}"), WAVE)


def _every_kind(number: int, sizes: Sizes, precision: str) -> Iterator[Job]:
    """Each kind of form that there is for a shape, forward and backward."""
    case = Case.parse(_text(_cell(number), sizes, precision))
    for is_backward in (False, True):
        spec = KernelSpec(getattr(torch, case.dtype), CPU, case.precision == "tf32", is_backward)
        for name in _best(spec.problem(case.cell, case.hidden_size, case.batch), H200):
            yield Job(
                "persistent", "persistent_gpu", _text(case.cell, sizes, precision, "state", "training"), name, is_backward
            )
    yield from _short(number, sizes, precision)


def _sparse(shapes: Sequence[Sizes]) -> Iterator[Job]:
    for number, sizes in enumerate(shapes):
        for dtype in DTYPES[:3]:
            text = _text(_cell(sizes[0]), sizes, dtype, "state", "density0.4", "training")
            yield Job("sparse", "sparse_persistent_gpu", text, CLUSTERS if number % 2 else ANY)


def _scans(shapes: Sequence[Sizes]) -> Iterator[Job]:
    """Of at most 32 channels, which one block of the forms that a CPU runs has."""
    for number, (hidden, batch, steps, is_ragged) in enumerate(shapes):
        sizes = (min(hidden, 31), batch, 2 * steps + 1, is_ragged)
        cell, dtype = ("mingru_positive", "minlstm_positive")[number % 2], "float64"  # else they have instructions of a GPU
        yield Job("scan", "scan_gpu", _text(cell.removesuffix("_positive" * (number % 3 == 0)), sizes, dtype, "training"))
        yield Job("scan", "scan_gpu_log", _text(cell, sizes, dtype, "training"))


def _transposed(shapes: Sequence[Sizes]) -> Iterator[Job]:
    for number, sizes in enumerate(shapes):
        for dtype in DTYPES:
            text = _text(_cell(number), sizes, dtype, "state", "training")
            yield Job("transposed", ("transposed_gpu", "row_major_gpu")[number % 2], text)


def run(job: Job) -> None:
    case = Case.parse(job.case)
    with _running(job):
        if job.family == "scan":
            return _scan(job, case)
        drawn_case = contents.problem(case)
        calls.run(_layer(job, case, drawn_case), drawn_case)


def _layer(job: Job, case: Case, drawn_case: contents.Problem) -> Layer:
    if job.family == "persistent":
        return persistent_gpu.make_layer(case, drawn_case.weights, CPU)
    if job.family == "sparse":
        return sparse_persistent_gpu.make_layer(case, drawn_case.weights, CPU)[0]
    is_batch_minor = job.implementation == "transposed_gpu"
    return transposed_ops.make_layer(layer.Plan(TransposedForm(case, CPU, is_batch_minor), "cublas"), drawn_case.weights)


def _scan(job: Job, case: Case) -> None:
    gates = scan_gpu_ops.CELLS[case.cell][0]
    sizes = (case.steps, case.batch, gates * case.hidden_size)
    dtype = getattr(torch, case.dtype)
    x, bias, first = (
        torch.randn(size, dtype=dtype, requires_grad=True) for size in (sizes, sizes[2:], (case.batch, case.hidden_size))
    )
    lengths = torch.randint(1, case.steps + 1, (case.batch,)) if case.ragged else None
    if job.implementation == "scan_gpu_log":
        results = scan_gpu_log_ops.log_scan(x, first, lengths, case.cell, False, False, bias=bias)
    else:
        results = scan_gpu_ops.scan(x, bias, first, lengths, None, case.cell, False, False)
    torch.autograd.grad([one.float().sum() for one in results], (x, bias, first))


def _running(job: Job) -> AbstractContextManager[None]:
    if job.family == "persistent":
        return running_layers(lambda shape, spec: _form(job, shape, spec), _waves)
    if job.family == "sparse":
        return _running_sparse(job)
    return running_scans() if job.family == "scan" else running_transposed()


def _form(job: Job, shape: Shape, spec: KernelSpec) -> Form:
    """Of the job's kind in its pass, in the other one of a grid too if it is one."""
    problem = spec.problem(shape.cell, shape.hidden, shape.batch)
    best = _best(problem, H200)
    wanted = job.kind if spec.is_backward == job.is_backward else job.kind.split(",")[0]
    found = best.get(wanted) or select_config(problem, H200, computes_inputs=spec.inputs > 0)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _waves(shape: Shape, spec: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
    problem = spec.problem(shape.cell, shape.hidden, shape.batch)
    return wavefront.select_wavefronts(problem, H200, inputs, layers, _LONG_STEPS)


@contextmanager
def _running_sparse(job: Job) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, running_sparse(_FEW):
        if job.kind == CLUSTERS:
            patch.setattr(heuristics, "H200", replace(heuristics.H200, send_clocks=-1e9))
        yield


_not_compiled = set[str]()  # files of planted faults


def plant(file: str, right: str, wrong: str) -> None:
    """Makes kernels wrong that are of the file or include it. Raises ValueError where the file has not the right text once.

    file: a header's name, of persistent and sparse kernels a kernel's, of scans and transposed ones a source's.
    """
    _not_compiled.add(file)

    def change(name: str, text: str) -> str:
        if name != file:
            return text
        if text.count(right) != 1:
            raise ValueError(f"expected {right!r} once in {file}, got {text.count(right)} times")
        _not_compiled.discard(file)
        return text.replace(right, wrong)

    ClustersOnCpu.change = KernelOnCpu.change = staticmethod(change)


def main(arguments: Sequence[str] | None = None) -> int:
    """Jobs, each as JSON; a list of three strings before some makes kernels wrong from there on, as `plant` does."""
    number = 0
    for text in sys.argv[1:] if arguments is None else arguments:
        if len(json.loads(text)) == 3:
            plant(*json.loads(text))
            continue
        job, start = Job(*json.loads(text)), time.monotonic()
        print(f"BEGIN {number} {job.label}", file=sys.stderr, flush=True)
        start_from(0)  # an order of threads that does not depend on earlier launches: with a fault some orders hang
        run(job)
        if _not_compiled:
            raise ValueError(f"{job.label} compiled nothing of {', '.join(_not_compiled)}")
        print(f"END {number} {time.monotonic() - start:.1f}", file=sys.stderr, flush=True)
        number += 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
