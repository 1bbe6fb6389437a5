"""What torch.compile's graphs of RNN, LSTM and GRU run: the winner on the device, timed once for compiled and eager calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from pytest_ecornn.autotune import Decision, ranks, selection
from pytest_ecornn.autotune.decision import Timing
from pytest_ecornn.implementations.auto import estimates
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.nn import GRU, LSTM, RNN
from tests.helpers import nn_kernels, persistent
from tests.helpers import undecided as fixtures
from tests.helpers.requirements import needs_compiler

pytestmark = [
    needs_compiler,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # read by torch's compiler
]
undecided = fixtures.undecided
on_cpu, by_kernels = persistent.on_cpu, nn_kernels.by_kernels  # fixtures
X = torch.linspace(-1, 1, 3 * 2 * 4).view(3, 2, 4)
OF_TWO = {"torch": Timing(10.0, 30.0), "persistent_gpu": Timing(20.0, 15.0)}


@pytest.fixture(autouse=True)
def timed(undecided: object, by_kernels: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the problems that were timed. torch.nn wins as called and by the cost models, the kernels on the device."""
    keys: list[str] = []

    def measured(problem: Any, device: torch.device, choices: Any) -> Decision:
        assert not torch.compiler.is_compiling()  # or what is timed would not run as it is called
        for candidate in choices.candidates:
            candidate.make_call(problem.case.steps)()
        keys.append(problem.key)
        return Decision("torch", "persistent_gpu", "measured", "", OF_TWO)

    monkeypatch.delenv("ECORNN_AUTO")
    monkeypatch.setattr(selection, "_measured", measured)
    monkeypatch.setattr(estimates, "persistent_us", lambda case, device: 1.5 * estimates.cudnn_us(case))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # which torch for CPUs lacks
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    yield keys
    torch.compiler.reset()


def compiled(module: torch.nn.Module, **options: Any) -> Any:
    return torch.compile(module, backend="eager", fullgraph=True, **options)


def test_eager_calls_run_one_winner_and_graphs_the_other(timed: list[str]) -> None:
    module = GRU(4, 9)
    outputs = [call(X)[0] for call in (module, compiled(module))]
    assert module.notes().startswith("persistent_gpu compiled; torch as called, persistent_gpu from graphs; measured; ")
    assert not torch.equal(*outputs)  # of one backend they would be
    torch.testing.assert_close(*outputs)
    module(X)
    assert module.notes().startswith("torch as called")
    assert len(timed) == 1


def called(module: Any, x: Tensor = X, hx: Any = None, **modes: Any) -> None:
    """A call within grad mode, autocast and deterministic mode as given, eager after compiled."""
    deterministic, autocast = modes.get("deterministic", False), modes.get("autocast")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        casts = nullcontext() if autocast is None else torch.autocast("cpu", autocast)
        with torch.set_grad_enabled(modes.get("has_grad", True)), casts:
            compiled(module)(x, hx)
            module(x, hx)
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize(
    ("module", "given", "modes"),
    [
        (GRU(4, 9, 2, dropout=0.5), {}, {}),
        (GRU(4, 9, 2, dropout=0.5).eval(), {}, {"has_grad": False}),
        (RNN(4, 9, nonlinearity="relu", bias=False), {}, {"has_grad": False}),
        (LSTM(4, 9, batch_first=True, bidirectional=True), {"x": X.clone().requires_grad_()}, {}),
        (LSTM(4, 9), {"hx": (torch.ones(1, 2, 9), torch.ones(1, 2, 9))}, {}),
        (GRU(4, 9).requires_grad_(False), {"hx": torch.ones(1, 2, 9, requires_grad=True)}, {}),
        (GRU(4, 9), {"x": X[:, 0]}, {}),
        (GRU(4, 9), {}, {"autocast": torch.float16}),
    ],
    ids=["dropout", "evaluation", "relu", "gradient of x", "states", "gradient of a state", "unbatched", "autocast"],
)
def test_compiled_and_eager_calls_share_a_decision(module: Any, given: Any, modes: Any, timed: list[str]) -> None:
    called(module, **given, **modes)
    assert len(timed) == len(selection.decisions()) == 1


@pytest.mark.parametrize(
    ("module", "x", "modes", "reason"),
    [
        (GRU(4, 9), X, {"autocast": torch.bfloat16}, "under autocast of bfloat16 cuDNN computes in float16"),
        (GRU(4, 9), X, {"deterministic": True}, "cuDNN is not deterministic"),
        (GRU(4, 9).eval(), X, {}, "cuDNN has no backward pass of a module that is not in training"),
        (GRU(48, 48, dtype=torch.float16), torch.ones(16, 8, 48).half(), {}, r"cuDNN 9\.19 is wrong here.*"),
    ],
    ids=["autocast", "deterministic", "gradients in evaluation", "a defect"],
)
def test_the_kernels_run_what_cudnn_does_not(
    module: Any, x: Tensor, modes: Any, reason: str, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    called(module, x, **modes)
    assert re.fullmatch(f"persistent_gpu: {reason}", module.notes())
    assert timed == []
    assert len(selection.decisions()) == 1


def test_sizes_that_vary_are_not_timed(timed: list[str]) -> None:
    module = GRU(4, 9)
    vary = compiled(module, dynamic=True)
    for steps, batch in ((3, 2), (5, 4)):
        x = torch.ones(steps, batch, 4)
        torch.testing.assert_close(vary(x)[0], module(x)[0])
    assert len(timed) == 2  # of the eager calls
    vary(X)
    assert module.notes() == "torch; chosen without timing, as torch.compile traced sizes that vary"


@pytest.mark.parametrize(
    ("backend", "forced", "notes"),
    [
        ("auto", "persistent_gpu", "persistent_gpu; forced"),
        ("auto", "heuristic", "torch; heuristic"),
        ("heuristic", "measure", "torch; heuristic"),
        ("persistent_gpu", "", "persistent_gpu$"),
    ],
)
def test_what_times_nothing(backend: str, forced: str, notes: str, timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_AUTO", forced)
    module = GRU(4, 9, backend=backend)
    output = compiled(module)(X)[0]
    assert re.match(notes, module.notes())
    torch.testing.assert_close(output, module(X)[0])
    assert timed == []


def test_ranks_do_not_time_while_they_trace(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "store", lambda: object())
    module = GRU(4, 9)
    compiled(module)(X)
    assert "torch; heuristic: ranks may trace at different times" in module.notes()
    assert timed == []


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")  # of torch.nn's modules too
@pytest.mark.parametrize("is_decided", [False, True])
def test_export_runs_a_decision_and_times_nothing(is_decided: bool, timed: list[str]) -> None:
    module = GRU(4, 9)
    if is_decided:
        module(X)
    torch.backends.cudnn.allow_tf32 = False  # of both of cuDNN's operations, or torch's exporter fails
    try:
        exported = torch.export.export(module, (X,)).module()
        output = exported(X)[0]
    finally:
        torch.backends.cudnn.allow_tf32 = True
    assert ("persistent" in exported.code, len(timed)) == (is_decided, is_decided)
    torch.testing.assert_close(output, module(X)[0])


def test_a_recomputed_graph_runs_as_in_the_first_pass(timed: list[str]) -> None:
    module, outputs = GRU(4, 9), []

    def run(x: Tensor) -> Tensor:
        output = compiled(module)(x)[0]
        outputs.append((module.notes(), output.detach()))
        return output

    checkpoint(run, X.clone().requires_grad_(), use_reentrant=True).sum().backward()
    (first, once), (second, again) = outputs
    assert first.startswith("persistent_gpu compiled")
    assert second == "persistent_gpu, as in the pass that autograd recomputes"
    torch.testing.assert_close(once, again)
    assert len(timed) == 1


def test_nothing_is_timed_for_tensors_that_may_have_no_data(timed: list[str]) -> None:
    class Subclass(Tensor):
        pass

    module = GRU(4, 9)
    compiled(module)(X.as_subclass(Subclass))
    assert "heuristic: tensors have no data" in module.notes()
    assert timed == []


def test_a_status_word_is_real_under_a_fake_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_statuses", {})
    with FakeTensorMode():
        status = kernel.status_of(torch.device("cpu"))
    assert status.address
    status.check()


def test_one_layer_drops_nothing(timed: list[str]) -> None:
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        module = GRU(4, 9, dropout=0.5)
    called(module)
    assert len(timed) == 1
    assert "dropout" not in timed[0]
