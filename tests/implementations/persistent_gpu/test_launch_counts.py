"""Launches of a training step on a GPU: kernels, and torch's operators that launch some; memory that is cleared is one.

Plans are those of an H200. Kernels do nothing, and products of cuBLAS count as one launch each, as which they may be more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ecornn.implementations._common import input_gemm, padded_gemm
from pytest_ecornn.implementations._common.padded_gemm import is_never_padded
from pytest_ecornn.implementations._common.recurrent_problem import GATES
from pytest_ecornn.implementations.persistent_gpu import plan, wavefront
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.input_gemm import gemm_3xtf32
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.persistent_gpu.ops import planned_work
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from tests.simulator.clusters_on_cpu import H200, ClustersOnCpu, running_layers

CPU = torch.device("cpu")
NO_LAUNCH = ("aten::empty", "aten::new_empty", "aten::_unsafe_view")
PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm_")


class Launches(TorchDispatchMode):
    """Counts launches by their names. Products are not computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counter[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if not function.is_view and not name.startswith(NO_LAUNCH):
            self.counts[name] += 1
        if name not in PRODUCTS:
            return function(*args, **(kwargs or {}))
        out = args[0] if name.endswith("_") else (kwargs or {}).get("out")
        return args[0].new_empty(*args[0].shape[:-1], args[1].shape[-1]) if out is None else out


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """Within it the CPU's tensors are run as those of an H200, by kernels that do nothing."""

    def form_of(shape: Shape, spec: KernelSpec) -> Form:
        problem = spec.problem(shape.cell, shape.hidden, shape.batch)
        form = select_config(problem, H200, computes_inputs=spec.inputs > 0)
        assert isinstance(form, Form), form
        return form

    def is_fast(a: Tensor, b: Tensor, products: int, tf32: bool) -> bool:
        return is_never_padded((a.stride(0), a.stride(-2), b.stride(0)), products, a.dtype, tf32)

    def make_input_gemm(outer: tuple[int, int], width: int, wide: int, dtype: Any, device: Any, tf32: bool) -> Any:
        is_padded = not is_never_padded((width,), outer[0] * outer[1] * width * wide, dtype, tf32)
        is_copied = is_padded and wide * dtype.itemsize % padded_gemm.VECTOR_BYTES > 0
        return None if is_copied else input_gemm.InputGemm(outer, width, wide, dtype, device, is_padded)

    seen = Launches()
    with running_layers(form_of, wavefront.get_wavefronts):
        monkeypatch.setattr(ClustersOnCpu, "_run", lambda kernel, *given: seen.counts.update([kernel._name.partition(".")[0]]))
        monkeypatch.setattr(padded_gemm, "_is_fast", is_fast)
        monkeypatch.setattr(padded_gemm, "_is_copied_by_kernel", lambda one: one.stride(1) == 1)
        monkeypatch.setattr(gemm_3xtf32, "make_input_gemm", make_input_gemm)
        plan.get_plan.cache_clear()
        yield seen
    plan.get_plan.cache_clear()


Layers = tuple[str, int, int, int, int, int, torch.dtype]  # cell, layers, H, directions, B, T, dtype
LSTM_650 = ("lstm", 1, 650, 1, 20, 35, torch.bfloat16)


def passes(launches: Launches, layers: Layers, tf32: bool, wants_x: bool) -> tuple[Counter[str], Counter[str]]:
    """Launches of the forward and the backward pass, I = H."""
    cell, count, hidden, directions, batch, steps, dtype = layers
    wide, weights = GATES[cell] * hidden, list[Tensor]()
    for pseudo_layer in range(count * directions):
        inputs = hidden if pseudo_layer < directions else directions * hidden
        weights += [torch.zeros(shape, dtype=dtype) for shape in ((wide, inputs), (wide, hidden), (wide,), (wide,))]
    x = torch.zeros(steps, batch, hidden, dtype=dtype)
    options = RNNOptions(cell, False, directions > 1, False, tf32)
    planned = plan.get_plan(options, x.shape, len(weights), hidden, dtype, CPU, True, False)
    work, given = planned_work(planned, 0), [x, None, *weights]
    with torch.no_grad(), launches:
        results = work.forward(given)
        forward, launches.counts = launches.counts, Counter()
        d_output, none = torch.empty_like(results[0]), [None] * (work.num_results - 1)
        tensors = [*given, *(results[i] for i in work.saved), d_output, *none]
        launches.counts.clear()
        work.backward([wants_x, False, *[True] * len(weights)], True, False, tensors)
    return forward, launches.counts


@pytest.mark.parametrize(
    ("layers", "tf32", "wants_x", "forward", "backward"),
    [
        pytest.param(("lstm", 1, 512, 1, 64, 35, torch.float16), False, False, 3, 4, id="LSTM 512"),
        pytest.param(LSTM_650, False, False, 4, 6, id="LSTM 650"),
        pytest.param(LSTM_650, False, True, 4, 7, id="LSTM 650, with x's gradient"),
        pytest.param(("lstm", 2, 650, 1, 20, 35, torch.bfloat16), False, False, 7, 12, id="LSTM 2 x 650"),
        pytest.param(("gru", 2, 650, 1, 20, 35, torch.bfloat16), False, False, 7, 14, id="GRU 2 x 650"),
        pytest.param(("lstm", 2, 200, 1, 20, 35, torch.float32), False, False, 2, 9, id="LSTM 2 x 200"),
        pytest.param(("gru", 3, 96, 2, 5, 20, torch.float32), True, False, 12, 11, id="GRU 3 x 96, both directions"),
        pytest.param(("lstm", 2, 256, 2, 16, 50, torch.float16), False, False, 8, 16, id="LSTM 2 x 256, both directions"),
        pytest.param(("lstm", 2, 512, 2, 64, 50, torch.float16), False, False, 9, 18, id="LSTM 2 x 512, both directions"),
    ],
)
def test_a_step_launches_no_more(
    layers: Layers, tf32: bool, wants_x: bool, forward: int, backward: int, launches: Launches
) -> None:
    of_forward, of_backward = passes(launches, layers, tf32, wants_x)
    assert (of_forward.total(), of_backward.total()) == (forward, backward), (of_forward, of_backward)
