"""Calls that skip what an earlier one of their kind checked: they give the same, and are not taken where anything differs."""

from __future__ import annotations

import copy
import gc
import weakref
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from pytest_ecornn.nn import backend_choice, short_calls
from pytest_ecornn.reference.precision import fp32_precision
from tests.helpers import nn_kernels, nn_modules, persistent
from tests.helpers.nn_modules import MODULES, tensors
from tests.helpers.requirements import needs_compiler, needs_gpu

on_cpu, by_kernels = persistent.on_cpu, nn_kernels.by_kernels  # fixtures
T, B, I, H = 4, 3, 5, 9  # noqa: E741
of_each = pytest.mark.parametrize("cell", MODULES)
by_torch_alone = pytest.mark.parametrize("backend", ["torch"])
pytestmark = pytest.mark.usefixtures("backend")


@pytest.fixture(params=["torch", pytest.param("kernels", marks=needs_compiler)])
def backend(request: pytest.FixtureRequest) -> str:
    """Modules on a CPU are run by torch's functions, and by the kernels on clusters of a CPU."""
    if request.param == "kernels":
        request.getfixturevalue("by_kernels")
    return str(request.param)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The x of each short call."""
    found: list[Any] = []
    for of in (short_calls._TorchCall, short_calls._KernelCall):

        def run(self: Any, module: Any, x: Tensor, hx: Any, usual: Any = of.__call__) -> Any:
            found.append(x)
            return usual(self, module, x, hx)

        monkeypatch.setattr(of, "__call__", run)
    return found


def both(cell: str = "gru", device: str = "cpu", **options: Any) -> tuple[nn.RNNBase, Any]:
    return nn_modules.both(cell, I, H, device=device, **options)


def some(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randn(*(shape or (T, B, I)), device=device)


def expect_alike(reference: nn.RNNBase, module: Any, x: Tensor, hx: Any = None) -> None:
    """The same results, and the same gradients of parameters and of states that want one."""
    found, wanted = tensors(module(x, hx)), tensors(reference(x, hx))
    assert [(one.shape, one.requires_grad) for one in found] == [(one.shape, one.requires_grad) for one in wanted]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if found[0].requires_grad:
        pairs = (found, module), (wanted, reference)
        leaves = [state for state in tensors(() if hx is None else hx) if state.requires_grad]
        gradients = (torch.autograd.grad(of[0].cos().sum(), [*leaves, *to.parameters()]) for of, to in pairs)
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def repeat(reference: nn.RNNBase, module: Any, x: Tensor | None = None) -> None:
    """Makes calls of one kind until they are short."""
    for _ in range(3):
        expect_alike(reference, module, some() if x is None else x)


def repeated() -> tuple[nn.RNNBase, Any]:
    """The modules, of which such calls are short."""
    reference, module = both()
    repeat(reference, module)
    return reference, module


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False},
    {"batch_first": True, "num_layers": 2},
]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("cell", "options"), [*product(MODULES, OPTIONS), ("lstm", {"proj_size": 3, "num_layers": 2})])
@pytest.mark.parametrize("mode", ["training", "evaluation", "inference", "inference mode"])
def test_they_give_the_same(cell: str, options: dict[str, Any], mode: str, taken: list[Any]) -> None:
    reference, module = both(cell, **options)
    for one in (reference, module):
        one.train(mode == "training")
    inference = torch.inference_mode if mode == "inference mode" else torch.no_grad
    with inference() if mode.startswith("inference") else torch.enable_grad():
        repeat(reference, module)
    assert len(taken) == 1  # the third


def test_of_more_kinds_than_are_kept_the_oldest_goes(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_calls, "_MAX_CALLS", 3)
    monkeypatch.setattr(backend_choice, "_MAX_CHOICES", 3)
    reference, module = both()
    inputs = [some(steps, B, I) for steps in range(1, 5)]
    for x in inputs[:3]:
        repeat(reference, module, x)
    module(inputs[3])
    taken.clear()
    for x in (inputs[1], inputs[2], inputs[0]):
        module(x)
    assert [x.shape[0] for x in taken] == [2, 3]


def test_a_first_pass_outlives_choices_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_choice, "_MAX_CHOICES", 3)
    _, module = both()
    inputs = [some(steps, B, I) for steps in range(1, 4)]
    with torch.no_grad():
        for x in inputs:
            module(x)
    for x in inputs[1:]:
        module(x)  # new kinds, of which each takes the place of another
    assert [*module._chooser._first_passes][:1] == [inputs[0].shape]


def test_dropout_is_drawn_anew(taken: list[Any]) -> None:
    _, module = both(num_layers=2, dropout=0.5)
    x = some()
    for trains in (True, False):
        module.train(trains)
        outputs = [module(x)[0] for _ in range(4)]
        assert torch.equal(outputs[2], outputs[3]) != trains


@of_each
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "bias": False}])
@pytest.mark.parametrize("frozen", [0, 2])
def test_the_same_elements_are_dropped(cell: str, frozen: int, options: dict[str, Any], taken: list[Any]) -> None:
    _, module = both(cell, num_layers=3, dropout=0.5, **options)
    for name, one in module.named_parameters():  # lower layers, which run without gradients
        one.requires_grad_(not any(f"_l{layer}" in name for layer in range(frozen)))
    states = [some(3 * (1 + module.bidirectional), B, H) for _ in range(1 + (cell == "lstm"))]
    x, hx = some(), tuple(states) if cell == "lstm" else states[0]

    def results() -> list[Tensor]:
        torch.manual_seed(1)
        found = tensors(module(x, hx))
        wanted = [one for one in module.parameters() if one.requires_grad]
        return [*found, *torch.autograd.grad(found[0].cos().sum() + found[-1].sum(), wanted)]

    first = results()
    for _ in range(3):
        assert all(map(torch.equal, results(), first))
    assert len(taken) == 2


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


CHANGES = {
    "another T": lambda module: some(T + 1, B, I),
    "another B": lambda module: some(T, B + 1, I),
    "no gaps no more": lambda module: some(T, B, 2 * I)[..., ::2],
    "another parameter": lambda module: setattr(module, "weight_hh_l0", nn.Parameter(some(*module.weight_hh_l0.shape))),
    "its data": lambda module: setattr(module.weight_hh_l0, "data", some(*module.weight_hh_l0.shape)),
    "its data transposed": lambda module: setattr(module.weight_hh_l0, "data", some(*reversed(module.weight_hh_l0.shape)).t()),
    "its values": lambda module: setattr(module.weight_hh_l0, "data", module.weight_hh_l0.data.mul_(2)),
    "frozen": lambda module: module.requires_grad_(False),
    "weight_norm": lambda module: parametrizations.weight_norm(module, "weight_hh_l0") and None,
    "the last parameter parametrized": lambda module: (
        parametrize.register_parametrization(module, "bias_hh_l0", Twice()) and None
    ),
    "a parameter over the same memory": lambda module: setattr(
        module, "weight_hh_l0", nn.Parameter(module.weight_hh_l0.detach())
    ),
    "assigned": lambda module: module.load_state_dict(module.state_dict(), assign=True) and None,
    "dropout of one layer": lambda module: setattr(module, "dropout", 0.5),
    "a gradient of x": lambda module: some().requires_grad_(),
}


@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last recurrent layer")
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_is_heeded(change: str, taken: list[Any]) -> None:
    reference, module = repeated()
    assert taken
    x = CHANGES[change](module)
    if parametrize.is_parametrized(module):
        CHANGES[change](reference)
    reference.load_state_dict(module.state_dict())
    for parameter, other in zip(reference.parameters(), module.parameters(), strict=True):
        parameter.requires_grad_(other.requires_grad)
    repeat(reference, module, x if isinstance(x, Tensor) else None)
    repeat(reference, module, some())
    if parametrize.is_parametrized(module):
        for one in (reference, module):
            parametrize.remove_parametrizations(one, next(iter(one.parametrizations)))  # type: ignore[arg-type]
        before = len(taken)
        repeat(reference, module)
        assert len(taken) == before + 1


def test_another_layout_and_another_dropout() -> None:
    reference, module = both(num_layers=2)
    x = some(B, B, I)
    repeat(reference, module, x)
    for name, value in (("batch_first", True), ("dropout", 1.0), ("training", False)):
        for one in (reference, module):
            setattr(one, name, value)
        repeat(reference, module, x)


def test_a_learned_first_state(taken: list[Any]) -> None:
    reference, module = both()
    h = nn.Parameter(some(1, B, H))
    for _ in range(4):
        expect_alike(reference, module, some(), h)
    assert len(taken) == 2


def test_one_tensor_as_both_states_is_given_up(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    usual = short_calls._make_guard
    monkeypatch.setattr(short_calls, "_make_guard", lambda tensors: made.append(1) or usual(tensors))
    reference, module = both("lstm")
    z = torch.zeros(1, B, H)
    for _ in range(5):
        expect_alike(reference, module, some(), (z, z))
    assert len(made) == 1
    assert not taken


def test_a_call_without_gradients_does_not_end_those_with(taken: list[Any]) -> None:
    reference, module = repeated()
    with torch.no_grad():
        module(some(T + 1, B, I))
    before = len(taken)
    repeat(reference, module)
    assert len(taken) == before + 3


def test_replaced_parameters_are_not_held(taken: list[Any]) -> None:
    reference, module = repeated()
    old = weakref.ref(module.weight_hh_l0)
    module.load_state_dict(module.state_dict(), assign=True)
    repeat(reference, module, some(T + 1, B, I))
    gc.collect()
    assert old() is None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch 2.11 uses it
def test_forward_mode_takes_the_long_way(taken: list[Any]) -> None:
    reference, module = repeated()
    x, tangent, found = some(), some(), []
    with forward_ad.dual_level():
        for one in (reference, module):
            output = one(forward_ad.make_dual(x, tangent))[0]
            found.append(forward_ad.unpack_dual(output).tangent)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert len(taken) == 1


@of_each
@pytest.mark.parametrize("trains", [False, True])
def test_states_that_are_carried_on(cell: str, trains: bool, taken: list[Any]) -> None:
    reference, module = both(cell, num_layers=2, bidirectional=True)
    states: list[Any] = [None, None]
    with torch.set_grad_enabled(trains):
        for _ in range(5):
            x, outputs = some(), []
            for i, one in enumerate((reference, module)):
                output, hx = one(x, states[i])
                states[i] = hx.detach() if isinstance(hx, Tensor) else tuple(one.detach() for one in hx)
                outputs.append((output, states[i]))
            torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    assert len(taken) == 2  # the fourth and the fifth: the first has no states


@pytest.mark.usefixtures("taken")
def test_other_states_are_heeded() -> None:
    reference, module = both("lstm")
    h, c = some(1, B, H), some(1, B, H)
    leaf, strided = h.clone().requires_grad_(), some(H, B, 1).transpose(0, 2)
    for states in [(h, c)] * 3 + [(leaf, c)] * 3 + [(strided, c)] * 3 + [[h, c]]:
        expect_alike(reference, module, some(), states)
    for wrong in ((h, c, c), (h,), (h, c.double()), (h, some(1, B + 1, H)), h, (h, None)):
        for one in (reference, module):
            with pytest.raises((AttributeError, IndexError, RuntimeError, TypeError, ValueError)):
                one(some(), wrong)


def test_errors_stay(taken: list[Any]) -> None:
    reference, module = repeated()
    for wrong in (some(T, B, I + 1), some(T, B, I).double(), some(2, T, B, I)):
        for _ in range(3):
            for one in (reference, module):
                with pytest.raises((RuntimeError, ValueError)):
                    one(wrong)
    assert len(taken) == 1


def test_transforms_take_the_long_way(taken: list[Any]) -> None:
    reference, module = repeated()
    x, before = some(), len(taken)
    gradients = []
    for one in (reference, module):

        def loss(given: dict[str, Tensor], of: nn.RNNBase = one) -> Tensor:
            return torch.func.functional_call(of, given, (x,))[0].cos().sum()  # type: ignore[no-any-return]

        gradients.append(torch.func.grad(loss)({name: value.detach() for name, value in one.named_parameters()}))
    torch.testing.assert_close(*gradients)
    assert len(taken) == before
    repeat(reference, module)
    assert len(taken) > before


@by_torch_alone
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning", "ignore:Converting a tensor to a Python")
def test_a_trace_is_of_the_long_way(taken: list[Any]) -> None:
    reference, module = repeated()
    traced = torch.jit.trace(module, (some(),), check_trace=False)
    x = some(T, B + 2, I)
    torch.testing.assert_close(traced(x)[0], reference(x)[0])


@by_torch_alone
def test_autocast_is_heeded(taken: list[Any]) -> None:
    reference, module = repeated()
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            x = some()
            assert [one.dtype for one in tensors(module(x))] == [one.dtype for one in tensors(reference(x))]
    assert len(taken) == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_recompute_by_what_ran_first(reentrant: bool, taken: list[Any]) -> None:
    reference, module = both()
    for _ in range(4):
        x = some().requires_grad_()
        gradients = []
        for one in (reference, module):
            output = checkpoint(lambda x, of=one: of(x)[0], x, use_reentrant=reentrant)
            output.cos().sum().backward()
            gradients.append(x.grad)
            x.grad = None
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert taken


def test_copies_and_moved_modules_start_anew(taken: list[Any]) -> None:
    reference, module = repeated()
    other = copy.deepcopy(module)
    other.weight_ih_l0.data.zero_()
    assert not torch.equal(other(some())[0], module(some())[0])
    repeat(reference, module)
    before = len(taken)
    module.double()
    reference.double()
    x = some().double()
    torch.testing.assert_close(module(x)[0], reference(x)[0])
    assert len(taken) == before


def test_gradients_are_those_of_parameters_that_took_a_step(taken: list[Any]) -> None:
    reference, module = both("lstm", num_layers=2)
    x = some()
    for one in (reference, module):
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            one(x)[0].cos().sum().backward()
            optimizer.step()
    assert len(taken) == 3
    torch.testing.assert_close(dict(module.named_parameters()), dict(reference.named_parameters()), rtol=1e-4, atol=1e-5)


@by_torch_alone
def test_where_torch_has_no_guards_every_call_is_long(monkeypatch: pytest.MonkeyPatch, taken: list[Any]) -> None:
    monkeypatch.setattr(short_calls, "_make_guards", None)
    repeat(*both())
    assert not taken


@needs_gpu
@of_each
@pytest.mark.parametrize("backend", ["auto", "torch", "persistent_gpu"])
def test_on_a_gpu(cell: str, backend: str, taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECORNN_COMPILE", "wait")  # calls that torch.nn runs meanwhile have no short form
    reference, module = both(cell, "cuda", num_layers=2)
    module._backend = backend
    for precision in ("tf32", "ieee"):
        with fp32_precision("rnn", precision):
            for _ in range(4):
                x = some(device="cuda")
                near = 1e-2 if precision == "tf32" else 1e-4
                torch.testing.assert_close(tensors(module(x)), tensors(reference(x)), rtol=near, atol=near)
    assert len(taken) >= 2
    x, graph = some(device="cuda"), torch.cuda.CUDAGraph()
    with torch.no_grad(), fp32_precision("rnn", "ieee"):
        for _ in range(3):
            module(x)
        with torch.cuda.graph(graph):
            output = module(x)[0]
        x.copy_(some(device="cuda"))
        graph.replay()
        torch.testing.assert_close(output, reference(x)[0], rtol=1e-3, atol=1e-4)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            output = module(x)[0]
        side.synchronize()
        torch.testing.assert_close(output, reference(x)[0], rtol=1e-3, atol=1e-4)
