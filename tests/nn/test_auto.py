"""The choice of nn's modules: what is timed, what is remembered, and what stays as the user had it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pytest_ecornn.autotune import Decision, selection
from pytest_ecornn.nn import GRU, MinGRU, backend_choice, module_candidates, scan
from tests.helpers import undecided as fixtures
from tests.helpers.requirements import needs_gpu

X = torch.linspace(-1, 1, 2 * 3 * 4).view(2, 3, 4)  # T 2, of which the loop is a candidate


undecided = fixtures.undecided  # used by each test


def decide(monkeypatch: pytest.MonkeyPatch, by_mode: dict[str, str]) -> None:
    """Plants decisions by the case's mode."""

    def select(problem: Any, *given: Any, **options: Any) -> tuple[Decision, bool]:
        return Decision.untimed(by_mode[problem.case.mode], "measured"), True

    for module in (scan, backend_choice):
        monkeypatch.setattr(module, "select", select)


def made(**options: Any) -> MinGRU:
    torch.manual_seed(0)
    return MinGRU(4, 9, **options)


def test_a_choice_is_timed_once_and_said() -> None:
    module = made()
    module(X)
    assert "; measured; scan_cpu" in module.notes() or "not stored" in module.notes()
    assert "decided in" in module.notes()
    assert len(selection.decisions()) == 1
    made()(X + 1)
    copy.deepcopy(module)(X)
    pickle.loads(pickle.dumps(module))(X)
    assert len(selection.decisions()) == 1


@pytest.mark.parametrize(
    ("backend", "forced", "times_longer", "notes"),
    [
        ("heuristic", "", 1, "scan_cpu; heuristic: nothing is timed"),
        ("scan_cpu", "", 1, "scan_cpu"),
        ("auto", "", 8, "scan_cpu"),
        ("auto", "sequential", 1, "sequential; forced: ECORNN_AUTO=sequential"),
    ],
    ids=["heuristic", "a backend", "best by far", "a backend by the environment"],
)
def test_a_module_that_times_nothing(
    backend: str, forced: str, times_longer: int, notes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECORNN_AUTO", forced)
    module = made(backend=backend)
    module(X.repeat(times_longer, 1, 1))
    assert module.notes() == notes
    assert not any(decision.timings for decision in selection.decisions().values())


def test_what_the_user_has_is_untouched() -> None:
    module, calls = made(), []
    module.register_forward_hook(lambda *given: calls.append(1))
    for parameter in module.parameters():
        parameter.register_hook(lambda gradient: calls.append(2))
    before = torch.random.get_rng_state()
    module(X)
    assert calls == [1]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("device", "by_mode"),
    [
        ("cpu", ("scan_cpu", "sequential")),
        ("cpu", ("sequential", "scan_cpu")),
        pytest.param("cuda", ("torch", "persistent_gpu"), marks=needs_gpu),
        pytest.param("cuda", ("persistent_gpu", "torch"), marks=needs_gpu),
    ],
)
def test_a_recomputed_pass_runs_as_the_first(
    reentrant: bool, device: str, by_mode: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(monkeypatch, dict(zip(("inference", "training"), by_mode, strict=True)))
    module: Any = made() if device == "cpu" else GRU(4, 9, device=device)
    ran: list[str] = []

    def run(x: Tensor) -> Tensor:
        output: Tensor = module(x)[0]
        ran.append(module.notes().partition(";")[0])
        return output

    x = X.to(device, copy=True).requires_grad_()
    for _ in range(2):
        with set_checkpoint_early_stop(False):
            checkpoint(run, x, use_reentrant=reentrant).sum().backward()
    assert ran == [by_mode[0 if reentrant else 1]] * 4  # reentrant: the first pass computes no gradients
    run(x)
    assert ran[4] == by_mode[1]


@pytest.fixture
def gru() -> tuple[nn.GRU, GRU, Tensor]:
    reference = nn.GRU(64, 64, device="cuda")
    module = GRU(64, 64, device="cuda")
    module.load_state_dict(reference.state_dict())
    return reference, module, torch.randn(20, 8, 64, device="cuda")


@needs_gpu
def test_a_choice_on_a_gpu(gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    reference, module, x = gru
    states, stream = (torch.random.get_rng_state(), torch.cuda.get_rng_state()), torch.cuda.current_stream()
    output = module(x)[0]
    assert all(
        torch.equal(*pair) for pair in zip(states, (torch.random.get_rng_state(), torch.cuda.get_rng_state()), strict=True)
    )
    assert torch.cuda.current_stream() == stream
    assert all(parameter.grad is None for parameter in module.parameters())
    torch.testing.assert_close(output, reference(x)[0], rtol=1e-2, atol=1e-2)
    (decision,) = selection.decisions().values()
    assert set(decision.timings) == {"torch", "persistent_gpu"}
    assert decision.failures == {}


@needs_gpu
def test_a_captured_call_before_any_decision(gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    reference, module, x = gru
    GRU(64, 64, device="cuda", backend="persistent_gpu")(x)  # which compiles
    reference(x)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        output = module(x)[0]
    assert "heuristic: a graph is being captured" in module.notes()
    assert selection.decisions() == {}
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(output, reference(x)[0], rtol=1e-2, atol=1e-2)
    module(x)
    assert len(selection.decisions()) == 1


@needs_gpu
@pytest.mark.parametrize("trains", [False, True])
def test_a_compiled_call_before_any_decision(trains: bool, gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    reference, module, x = gru
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    with torch.set_grad_enabled(trains):
        output = torch.compile(module, backend="aot_eager", fullgraph=True)(x)[0]
        torch.testing.assert_close(output, reference(x)[0], rtol=1e-2, atol=1e-2)
    assert "; measured" in module.notes()
    assert len(selection.decisions()) == 1
    if trains:
        output.sum().backward()
        assert all(parameter.grad is not None for parameter in module.parameters())


@needs_gpu
@pytest.mark.parametrize(("failing", "winner"), [("torch", "persistent_gpu"), ("persistent_gpu", "torch")])
def test_out_of_memory_costs_one_candidate(
    failing: str, winner: str, gru: tuple[nn.GRU, GRU, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = module_candidates.ModuleProblem._make_call

    def fail(self: Any, name: str, steps: int) -> Any:
        return prepare(self, name, steps) if name != failing else torch.empty(2**60, device="cuda")

    monkeypatch.setattr(module_candidates.ModuleProblem, "_make_call", fail)
    reference, module, x = gru
    torch.testing.assert_close(module(x)[0], reference(x)[0], rtol=1e-2, atol=1e-2)
    (decision,) = selection.decisions().values()
    assert decision.called == winner
    assert decision.failures[failing].startswith("OutOfMemoryError: ")


@needs_gpu
@pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled")
def test_deterministic_mode_leaves_the_kernels(gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    _, module, x = gru
    torch.use_deterministic_algorithms(True)
    try:
        module(x)
        assert module.notes().startswith("persistent_gpu: cuDNN is not deterministic")
    finally:
        torch.use_deterministic_algorithms(False)


@needs_gpu
def test_gradients_in_evaluation_are_the_kernels(gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    _, module, x = gru
    module.eval()(x)[0].sum().backward()  # of which cuDNN has no backward pass
    assert module.notes().startswith("persistent_gpu: cuDNN has no backward pass")


@needs_gpu
def test_a_choice_on_another_stream(gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    reference, module, x = gru
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.mul_(2)
        output = module(x)[0]
    torch.cuda.synchronize()
    torch.testing.assert_close(output, reference(x)[0], rtol=1e-2, atol=1e-2)


@needs_gpu
def test_a_setting_that_changes_is_seen(gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    _, module, x = gru
    for _ in range(3):
        with torch.no_grad():
            module(x)
    with torch.autocast("cuda", torch.float16), torch.no_grad():
        assert module(x)[0].dtype == torch.float16
    module.eval()
    module(x)
    assert len(selection.decisions()) == 3


@needs_gpu
def test_shapes_that_cudnn_gets_wrong_are_the_kernels() -> None:
    if not 91900 <= (torch.backends.cudnn.version() or 0) < 92000:
        pytest.skip("cuDNN 9.19 alone is wrong there")
    module = GRU(48, 48, device="cuda", dtype=torch.float16)
    module(torch.randn(16, 8, 48, device="cuda", dtype=torch.float16))
    assert module.notes().startswith("persistent_gpu: cuDNN 9.19 is wrong here")


@needs_gpu
def test_autocast_of_bfloat16_computes_in_bfloat16(gru: tuple[nn.GRU, GRU, Tensor]) -> None:
    reference, module, x = gru
    with torch.autocast("cuda", torch.bfloat16):
        assert module(x)[0].dtype == torch.bfloat16
        assert reference(x)[0].dtype == torch.float16  # once it is bfloat16, torch.nn may be a candidate again
