"""What "auto" of RNN, LSTM and GRU chooses on a CPU, when, and how it says so."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from pytest_ecornn.autotune import selection
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common import compile_threads
from pytest_ecornn.implementations._cpu import machine_code
from pytest_ecornn.implementations._cpu.machine_code import CpuKernel
from pytest_ecornn.nn import GRU, LSTM, RNN, MinGRU, prepare
from pytest_ecornn.nn.cpu_choice import fused_kernels
from tests.helpers import undecided as fixtures

pytestmark = pytest.mark.by_times
X = torch.linspace(-1, 1, 5 * 2 * 4).view(5, 2, 4)
undecided = fixtures.undecided  # used by each test


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait for kernels."""
    monkeypatch.setenv("ECORNN_COMPILE", "wait")


def module_of(cell: type[Any] = GRU, *sizes: int, **options: Any) -> Any:
    torch.manual_seed(0)
    return cell(*(sizes or (4, 9)), **options)


@pytest.mark.parametrize("cell", [LSTM, GRU, RNN])
@pytest.mark.parametrize("has_lengths", [False, True])
def test_both_are_timed_once_and_the_winner_runs(cell: type[Any], has_lengths: bool) -> None:
    module = module_of(cell)
    lengths = {"lengths": torch.tensor([5, 3])} if has_lengths else {}
    for _ in range(3):
        output, _ = module(X, **lengths)
        assert "; measured" in module.notes()
        assert "torch " in module.notes()
        assert "fused_cpu " in module.notes()
    assert len(selection.decisions()) == 1
    named = copy.deepcopy(module)
    named._backend = module.notes().partition(";")[0]
    named._chooser.forget()
    torch.testing.assert_close(output, named(X, **lengths)[0], rtol=0, atol=0)


def test_threads_gradients_and_kinds_are_decided_apart() -> None:
    module, threads = module_of(), torch.get_num_threads()
    module(X)
    with torch.no_grad():
        module(X)
    module(X[:, :1])
    try:
        torch.set_num_threads(threads + 1)
        module(X)
    finally:
        torch.set_num_threads(threads)
    assert len(selection.decisions()) == 4
    module(torch.cat([X, X]))  # one decision serves all T from 5 on
    assert len(selection.decisions()) == 4


@pytest.mark.parametrize(
    ("cell", "hidden", "steps", "expected"),
    [(LSTM, 512, 1, "fused_cpu"), (LSTM, 512, 5, "torch"), (GRU, 256, 5, "fused_cpu"), (RNN, 257, 5, "torch")],
)
def test_without_timing_sizes_choose(cell: type[Any], hidden: int, steps: int, expected: str) -> None:
    module = module_of(cell, 4, hidden, backend="heuristic")
    module(X[:steps])
    assert module.notes() == f"{expected}; heuristic: nothing is timed"


def test_torch_runs_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_AUTO", "torch")
    module = module_of()
    module(X)
    assert module.notes() == "torch; forced: ECORNN_AUTO=torch"


@pytest.fixture
def compilation(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Kernels that are not compiled before the event is set."""
    monkeypatch.delenv("ECORNN_COMPILE")
    event, threads, compile_kernel = threading.Event(), compile_threads.CompileThreads(1), CpuKernel.compile

    def wait(kernel: CpuKernel) -> None:
        event.wait(60)
        compile_kernel(kernel)

    monkeypatch.setattr(CpuKernel, "is_compiled", False)
    monkeypatch.setattr(CpuKernel, "compile", wait)
    monkeypatch.setattr("pytest_ecornn.nn.module_candidates.compile_threads", lambda: threads)
    yield event
    event.set()
    threads.wait(threads._unfinished.copy())


def test_what_a_checkpoint_may_compute_again_does_not_change_its_backend(compilation: threading.Event) -> None:
    module, x = module_of(), X.clone().requires_grad_()
    calls = [checkpoint(lambda given: module(given)[0], x, use_reentrant=False).sum()]
    compilation.set()
    while not all(
        kernel in machine_code._addresses for kernel in fused_kernels(Case.parse("gru-T5-B2-I4-H9-float32-training"))
    ):
        time.sleep(0.1)
    calls += [checkpoint(lambda given: module(given)[0], x, use_reentrant=False).sum() for _ in range(3)]
    sum(calls).backward()
    module(X)
    assert "; measured" in module.notes()


def test_torch_runs_until_the_kernels_are_compiled(compilation: threading.Event) -> None:
    module = module_of()
    expected = module.to_torch()(X)
    for _ in range(2):
        torch.testing.assert_close(module(X), expected, rtol=0, atol=0)
        assert module.notes() == "torch; compiling: until the kernels are compiled"
    compilation.set()
    while "compiling" in module.notes():
        module(X)
    assert "; measured" in module.notes()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: (module_of(LSTM, 4, 9, proj_size=3), X), "expected proj_size 0"),
        (lambda: (module_of(), pack_sequence([X[:, 0], X[:3, 1]])), "got a PackedSequence"),
        (lambda: (module_of(GRU, 4, 9, dtype=torch.complex64), X.to(torch.complex64)), "expected a dtype of"),
    ],
)
def test_torch_runs_what_the_kernels_do_not(call: Any, reason: str) -> None:
    module, x = call()
    try:
        module(x)
    except RuntimeError:
        assert x.is_complex()  # nor torch
    assert reason in module.notes()
    assert not selection.decisions()


def test_deterministic_algorithms_are_torchs() -> None:
    module = module_of()
    torch.use_deterministic_algorithms(True)
    try:
        module(X)
    finally:
        torch.use_deterministic_algorithms(False)
    assert module.notes() == "torch: deterministic algorithms are asked for, and times would choose"
    assert not selection.decisions()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_and_transformed_calls_are_not_timed() -> None:
    module = module_of()
    traced = torch.jit.trace(module, X, check_trace=False)
    torch.testing.assert_close(traced(-X)[0], module.to_torch()(-X)[0])
    torch.testing.assert_close(torch.func.vmap(lambda x: module(x)[0])(torch.stack([X, -X]))[1], module.to_torch()(-X)[0])
    torch.testing.assert_close(torch.compile(module, backend="eager")(X)[0], module.to_torch()(X)[0])
    assert not selection.decisions()


def test_a_pass_that_is_computed_again_runs_as_the_first() -> None:
    module, x = module_of(), X.clone().requires_grad_()
    checkpoint(lambda given: module(given)[0], x, use_reentrant=False).sum().backward()
    expected = X.clone().requires_grad_()
    module(expected)[0].sum().backward()
    torch.testing.assert_close(x.grad, expected.grad, rtol=0, atol=0)


def test_what_is_prepared_is_not_decided_again() -> None:
    model = torch.nn.Sequential(module_of(), MinGRU(4, 9))
    lines = prepare(model, (1, 3), (1, 5), training=True)
    assert [line.partition(": ")[::2] for line in lines if "measured" not in line and "neighbours" not in line] == []
    assert [line.partition(", T")[0] for line in lines[:5]] == ["0: B 1"] * 5
    decided = len(selection.decisions())
    model[0](X)
    assert len(selection.decisions()) == decided
