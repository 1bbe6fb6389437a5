"""The jobs that `sanitizer_gpu` watches, each of one kind of form, dtype and at most 4 steps, and the command that runs some.

`python -m pytest_ecornn.suites.sanitized JOB ...` runs jobs, each as JSON, and prints a line before and after each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Implementation
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, kernel, wavefront
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs, estimated_us_with_queueing
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.row_major_gpu import RowMajorGpu
from pytest_ecornn.implementations.scan_gpu import ScanGpu
from pytest_ecornn.implementations.scan_gpu_log import ScanGpuLog
from pytest_ecornn.implementations.sparse_persistent_gpu import SparsePersistentGpu, heuristics
from pytest_ecornn.implementations.transposed_gpu import TransposedGpu
from pytest_ecornn.nn.form_times import force_config
from pytest_ecornn.verification import calls

PRECISIONS = ("float16", "float32-tf32", "float32", "bfloat16")
SIZES = ((64, 3), (203, 19), (650, 29), (1201, 3))  # H and B, which blocks and tiles do not divide
KERNELS = {"persistent": "persistent_", "sparse": "persistent_", "scan": "scan_", "transposed": "step_"}  # parts of their names
IMPLEMENTATIONS: dict[str, type[Implementation]] = {
    "persistent_gpu": PersistentGpu, "sparse_persistent_gpu": SparsePersistentGpu, "scan_gpu": ScanGpu,
    "scan_gpu_log": ScanGpuLog, "transposed_gpu": TransposedGpu, "row_major_gpu": RowMajorGpu,
}  # fmt: skip
ANY, WAVE, CLUSTERS = "as chosen", "wave", "clusters of pruned rows"
_DTYPES = ("float32", "float16", "bfloat16", "float64")
_LONG_STEPS = 512  # for which a wave is chosen
_PATIENCE_NS = 600 * 10**9  # a watched kernel is slow


class Job(NamedTuple):
    """family: of kernels. kind: of form. is_backward: which pass has that form."""

    family: str
    implementation: str
    case: str
    kind: str = ANY
    is_backward: bool = False

    @property
    def dtype(self) -> str:
        case = Case.parse(self.case)
        return "tf32" if case.precision == "tf32" else case.dtype

    @property
    def label(self) -> str:
        return f"{self.implementation}, {self.kind}, {'backward' if self.is_backward else 'forward'}: {self.case}"


def jobs(device: Device) -> list[Job]:
    """Returns jobs for all kinds of forms on the device, most valuable first: each family's, then by size, cell and dtype."""
    persistent = list(_persistent(device, ("lstm",)))
    others = [*_sparse(), *_scans(), *_transposed(), *_once()]
    first = sum(Case.parse(job.case).hidden_size <= SIZES[1][0] for job in persistent)
    return [*persistent[:first], *others, *persistent[first:], *_persistent(device, ("gru", "rnn_tanh", "rnn_relu"))]


def _persistent(device: Device, cells: Sequence[str]) -> Iterator[Job]:
    for (hidden, batch), cell, precision, is_backward in product(SIZES, cells, PRECISIONS, (False, True)):
        case = f"{cell}-T4-B{batch}-H{hidden}-{precision}-cuda"
        dtype, _, math = precision.partition("-")
        for kind in _kinds(cell, hidden, batch, MathMode.of(dtype, math or "ieee"), is_backward, device):
            yield Job("persistent", "persistent_gpu", f"{case}-ragged-training", kind, is_backward)
            if not is_backward and 4 * batch <= kernel.MOST_FUSED_ROWS and kind != "blocks":
                yield Job("persistent", "persistent_gpu", f"{case}-state", kind)


@cache
def _kinds(cell: str, hidden: int, batch: int, arithmetic: MathMode, is_backward: bool, device: Device) -> list[str]:
    return list(_best(ProblemSize(cell, hidden, batch, arithmetic, is_backward), device))


def _best(problem: ProblemSize, device: Device) -> dict[str, Form]:
    """Returns, for each kind, the form with the least time by the model."""
    best: dict[str, Form] = {}
    for form in sorted(candidate_configs(problem, device), key=lambda form: estimated_us_with_queueing(form, device)):
        best.setdefault(form.kind + ", streamed" * (form.streamed_fragments > 0), form)
    return best


def _once() -> Iterator[Job]:
    for cell, precision in product(GATES, PRECISIONS):
        yield Job("persistent", "persistent_gpu", f"{cell}-T1-B11-H203-{precision}-cuda-state-training", "once")
        yield Job("persistent", "persistent_gpu", f"{cell}-T3-B11-H203-{precision}-cuda-L3-ragged", WAVE)


def _sparse() -> Iterator[Job]:
    dtypes = ("float16", "float32", "bfloat16")
    for cell, dtype, (hidden, batch), kind in product(("lstm", "gru", "rnn_tanh"), dtypes, SIZES[:3], (ANY, CLUSTERS)):
        case = f"{cell}-T4-B{batch}-H{hidden}-{dtype}-cuda-density0.3-ragged-state-training"
        yield Job("sparse", "sparse_persistent_gpu", case, kind, is_backward=True)


def _scans() -> Iterator[Job]:
    """Yields scans of few steps, and of so many that blocks take turns at tiles."""
    cells = ("mingru", "minlstm", "mingru_positive", "minlstm_positive")
    for dtype, sizes, cell in product(_DTYPES, ("T4-B3-H61", "T4099-B1-H61"), cells):
        case = f"{cell}-{sizes}-{dtype}-cuda-ragged-state-training"
        yield Job("scan", "scan_gpu", case, is_backward=True)
        if cell.endswith("positive"):
            yield Job("scan", "scan_gpu_log", case)


def _transposed() -> Iterator[Job]:
    for cell, dtype, name in product(GATES, _DTYPES, ("transposed_gpu", "row_major_gpu")):
        yield Job("transposed", name, f"{cell}-T3-B3-H61-{dtype}-cuda-ragged-state-training", is_backward=True)


def run(job: Job) -> None:
    """Raises RuntimeError where a launch fails, and KeyError where the device has no form of that kind."""
    case = Case.parse(job.case)
    drawn = contents.problem(case)
    with _of_kind(job, case):
        calls.run(IMPLEMENTATIONS[job.implementation]().build(case, drawn.weights), drawn)
    torch.cuda.synchronize()
    if job.family in ("persistent", "sparse"):
        kernel.status_of(with_index("cuda")).check()


def _of_kind(job: Job, case: Case) -> AbstractContextManager[Any]:
    special: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        ANY: nullcontext, "once": nullcontext, WAVE: _in_waves, CLUSTERS: _in_clusters,
    }  # fmt: skip
    if job.kind in special:
        return special[job.kind]()
    arithmetic = MathMode.of(case.dtype, case.precision)
    problem = ProblemSize(case.cell, case.hidden_size, case.batch, arithmetic, job.is_backward)
    return force_config(_best(problem, Device.of(with_index("cuda")))[job.kind])


def _in_waves() -> AbstractContextManager[Any]:
    """Within it layers run in a wave, as they would over more steps."""

    def waves(shape: Shape, spec: KernelSpec, inputs: int, layers: int) -> Any:
        problem = spec.problem(shape.cell, shape.hidden, shape.batch)
        return wavefront.select_wavefronts(problem, Device.of(spec.device), inputs, layers, _LONG_STEPS)

    return patch.object(wavefront, "get_wavefronts", waves)


def _in_clusters() -> AbstractContextManager[Any]:
    """Within it clusters are chosen as if sending took no time."""
    return patch.object(heuristics, "H200", replace(heuristics.H200, send_clocks=-1e9))


def main(arguments: Sequence[str] | None = None) -> int:
    kernel.WATCHDOG_NS = _PATIENCE_NS
    some = [Job(*json.loads(text)) for text in (sys.argv[1:] if arguments is None else arguments)]
    if not any(job.family == "transposed" for job in some):  # whose graphs need memory that is kept
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # or what lies beside an array is torch's, too
    for number, job in enumerate(some):
        start = time.monotonic()
        print(f"BEGIN {number} {job.label}", flush=True)
        run(job)
        print(f"END {number} {time.monotonic() - start:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
