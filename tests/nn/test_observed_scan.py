"""MinGRU and MinLSTM where a mode, tracer, transform, exporter or subclass of Tensor observes a call: right, or refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import _disable_current_modes

from pytest_ecornn.nn import MinGRU, MinLSTM, functional
from tests.helpers.operators import Operators

T, B, I, H = 5, 3, 4, 6  # noqa: E741
of_each = pytest.mark.parametrize("kind", [MinGRU, MinLSTM])
of_layers = pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "positive": True, "bias": False}]
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning"),  # of torch, in that exporter
]


@pytest.fixture(autouse=True)
def plain_memory() -> Iterator[None]:
    """Without the mode of this project's tests, beside which TorchScript's interpreter runs no constants."""
    with _disable_current_modes():
        yield


class Marked(Tensor):
    """A subclass that keeps itself through torch's functions."""


class Beside(nn.Module):
    """A module whose call takes lengths in the second place."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.module(x, lengths=lengths)


def made(kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(I, H, **options)


def drawn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(len(sizes) + sum(sizes)))


def gradients(call: Callable[..., Any], x: Tensor, module: nn.Module) -> Any:
    output, final = call(x)
    return torch.autograd.grad(output.cos().sum() + final.square().sum(), list(module.parameters()))


@of_each
@of_layers
@pytest.mark.parametrize("trains", [False, True])
def test_fake_tensors_give_fake_results(kind: Any, options: dict[str, Any], trains: bool) -> None:
    real = [one.shape for one in made(kind, **options)(drawn(T, B, I))]
    with FakeTensorMode(), torch.set_grad_enabled(trains):
        module, x = made(kind, **options), torch.randn(T, B, I)
        lengths = [1, 0, 2, 3, 1] if module.batch_first else [T, 0, 2]
        for results in (module(x), module(x, lengths=lengths), module(x, resets=torch.ones(T, B) > 0)):
            assert [(type(one).__name__, one.shape) for one in results] == [("FakeTensor", shape) for shape in real]
        if trains:
            results[0].sum().backward()
            assert module.weight_ih_l0.grad.shape == module.weight_ih_l0.shape
        weights = dict(module.named_parameters())
        form = functional.mingru if kind is MinGRU else functional.minlstm
        switches = {name: options[name] for name in ("batch_first", "positive") if name in options}
        assert type(form(x, weights, **switches)[0]).__name__ == "FakeTensor"


@of_each
@of_layers
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_graph_of_make_fx_computes_anew(kind: Any, options: dict[str, Any], mode: str, pre_dispatch: bool) -> None:
    module, x = made(kind, **options), drawn(T, B, I)
    graph = make_fx(lambda x: module(x), tracing_mode=mode, pre_dispatch=pre_dispatch, _allow_non_fake_inputs=True)(x)
    for other in (2 * x, drawn(2 * T, B + 1, I))[: 2 if mode == "symbolic" else 1]:
        torch.testing.assert_close(graph(other), module(other))


@of_each
def test_a_graph_of_make_fx_takes_lengths_and_computes_gradients(kind: Any) -> None:
    module, x = made(kind), drawn(T, B, I)
    graph = make_fx(lambda x, lengths: module(x, lengths=lengths))(x, torch.tensor([T, 2, 0]))
    lengths = torch.tensor([1, 4, 3])
    torch.testing.assert_close(graph(2 * x, lengths), module(2 * x, lengths=lengths))

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(module(x)[0].cos().sum(), x)[0]

    graph, other = make_fx(gradient)(x.clone().requires_grad_()), (2 * x).requires_grad_()
    torch.testing.assert_close(graph(other), gradient(other))


@of_each
@pytest.mark.parametrize("backend", ["loop", "scan_torch"])
def test_a_backend_without_an_op_is_traced_for_one_length(kind: Any, backend: str) -> None:
    module, x = made(kind, backend=backend, positive=True).requires_grad_(requires_grad=False), drawn(3, B, I)
    torch.testing.assert_close(make_fx(lambda x: module(x))(x)(2 * x), module(2 * x))
    traced = torch.jit.trace(module, x)
    torch.testing.assert_close(traced(2 * x), module(2 * x))
    if backend == "loop":
        with pytest.raises(RuntimeError, match="Expected 3 elements in a list but found 4"):
            traced(drawn(4, B, I))


@of_each
@of_layers
def test_torch_jit_traces_it_for_any_length_and_batch(kind: Any, options: dict[str, Any]) -> None:
    module = made(kind, **options)
    traced = torch.jit.trace(module, drawn(T, B, I))
    stored = io.BytesIO()
    torch.jit.save(traced, stored)
    stored.seek(0)
    x = drawn(2 * T, B + 1, I)
    for one in (traced, torch.jit.load(stored)):
        torch.testing.assert_close(one(x), module(x))
    torch.testing.assert_close(gradients(traced, x, traced), gradients(module, x, module))


@of_each
def test_torch_jit_traces_states_resets_lengths_and_one_sequence(kind: Any) -> None:
    module = made(kind, num_layers=2)
    others = drawn(2, B, H), drawn(T, B) > 0
    x, hx, resets = drawn(7, 2, I), drawn(2, 2, H), drawn(7, 2) > 0
    torch.testing.assert_close(torch.jit.trace(module, (drawn(T, B, I), *others))(x, hx, resets), module(x, hx, resets))
    torch.testing.assert_close(torch.jit.trace(module, drawn(T, I))(x[:, 0]), module(x[:, 0]))
    traced, lengths = torch.jit.trace(Beside(module), (drawn(T, B, I), torch.tensor([T, 2, 1]))), torch.tensor([0, 7])
    torch.testing.assert_close(traced(x, lengths), module(x, lengths=lengths))


@of_each
def test_aot_autograd_trains_it(kind: Any) -> None:
    compilers = pytest.importorskip("functorch.compile")
    module, x = made(kind, num_layers=2), drawn(T, B, I)
    compiled = compilers.aot_module(module, compilers.nop)
    torch.testing.assert_close(gradients(compiled, x, compiled), gradients(module, x, module))


@of_each
def test_a_subclass_of_tensor_is_kept(kind: Any) -> None:
    module, x, hx = made(kind), drawn(T, B, I), drawn(1, B, H)
    expected = module(x, hx)
    for given in ((x.as_subclass(Marked), hx), (x, hx.as_subclass(Marked))):  # type: ignore[type-var]
        results = module(*given)
        assert {type(one) for one in results} == {Marked} == {type(one) for one in nn.GRU(I, H)(*given)}
        torch.testing.assert_close([one.as_subclass(Tensor) for one in results], list(expected))


@of_each
def test_wrappers_of_tensors_are_computed_or_refused(kind: Any) -> None:
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    x = drawn(T, B, I)
    module = made(kind)
    output, _ = module(two_tensor.TwoTensor(x, 2 * x))
    torch.testing.assert_close([output.a, output.b], [module(x)[0], module(2 * x)[0]])
    with pytest.raises(NotImplementedError, match="pytest_ecornn"):
        module(torch.nested.nested_tensor([drawn(3, I), drawn(2, I)], layout=torch.jagged))


@of_each
def test_modes_see_the_op(kind: Any) -> None:
    module, x = made(kind), drawn(T, B, I)
    expected = module(x)
    with Operators() as operators:
        results = module(x)
    assert "pytest_ecornn::scan_cpu_forward" in operators.names
    torch.testing.assert_close(results, expected)
    with torch.device("meta"):  # the device of what is made without one, as which a scan's results count
        torch.testing.assert_close(made(kind, device="cpu")(x), expected)


@of_each
def test_vmap_runs_the_op_once_for_all(kind: Any) -> None:
    modules, x = [kind(I, H) for _ in range(3)], drawn(T, B, I)
    weights, _ = torch.func.stack_module_state(modules)  # type: ignore[arg-type]
    module = made(kind)

    def output(weights: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(module, weights, (x,))[0]  # type: ignore[no-any-return]

    results = torch.func.vmap(output, (0, None))(weights, x)
    assert module.notes().startswith("scan_cpu")
    torch.testing.assert_close(results, torch.stack([one(x)[0] for one in modules]))
    results.square().sum().backward()
    of_each_alone = [torch.autograd.grad(one(x)[0].square().sum(), one.weight_ih_l0)[0] for one in modules]
    torch.testing.assert_close(weights["weight_ih_l0"].grad, torch.stack(of_each_alone))


@of_each
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_batched_gradients(kind: Any, dtype: torch.dtype) -> None:
    module, x = made(kind, dtype=dtype), drawn(T, B, I).to(dtype).requires_grad_()
    output, _ = module(x)
    incoming = drawn(4, *output.shape).to(dtype)
    batched = torch.autograd.grad(output, x, incoming, is_grads_batched=True, retain_graph=True)[0]
    each = [torch.autograd.grad(output, x, one, retain_graph=True)[0] for one in incoming]
    torch.testing.assert_close(batched, torch.stack(each))
    jacobian = torch.autograd.functional.jacobian(lambda x: module(x)[0], x, vectorize=True)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(lambda x: module(x)[0], x))


@of_each
@of_layers
def test_a_batch_without_sequences(kind: Any, options: dict[str, Any]) -> None:
    reference = nn.GRU(
        I, H, options.get("num_layers", 1), batch_first="batch_first" in options, bidirectional="bidirectional" in options
    )
    x = drawn(*((0, T, I) if reference.batch_first else (T, 0, I))).requires_grad_()
    hx = drawn(reference.num_layers * (1 + reference.bidirectional), 0, H)
    for backend in ("auto", "loop", "scan_cpu"):
        module = made(kind, **options, backend=backend)
        results = module(x, hx, torch.ones(x.shape[:2]) > 0, torch.ones(0, dtype=torch.int64))
        assert [one.shape for one in results] == [one.shape for one in reference(x, hx)]
        assert not any(one.any() for one in gradients(module, x, module))


@of_each
def test_a_parametrized_weight_is_computed_once_in_a_call(kind: Any) -> None:
    class Doubled(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            self.calls += 1
            return 2 * weight

    module, x, doubled = made(kind), drawn(T, B, I), Doubled()
    parametrize.register_parametrization(module, "weight_ih_l0", doubled)
    for _ in range(2):
        doubled.calls = 0
        module(x)
        assert doubled.calls == 1


# Exporters to ONNX.


@of_each
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "positive": True}])
def test_what_onnx_exporters_trace_is_for_any_length_and_batch(
    kind: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, dim = made(kind, **options).eval(), torch.export.Dim.DYNAMIC
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    exported = torch.export.export(module, (drawn(T, B, I),), dynamic_shapes=({0: dim, 1: dim},)).run_decompositions()
    assert not any("pytest_ecornn" in str(node.target) for node in exported.graph.nodes)
    traced = torch.jit.trace(module, drawn(T, B, I), check_trace=False)
    assert "pytest_ecornn::" not in str(traced.inlined_graph)
    monkeypatch.undo()
    for x in (drawn(2, 2, I), drawn(70, B + 1, I)):
        for graph in (exported.module(), traced):
            torch.testing.assert_close(graph(x), module(x))


@of_each
@pytest.mark.parametrize("by_dynamo", [False, True])
def test_onnx_computes_it(kind: Any, by_dynamo: bool) -> None:
    runtime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
    module, stored, dim = made(kind, num_layers=2, bidirectional=True).eval(), io.BytesIO(), torch.export.Dim.DYNAMIC
    if by_dynamo:
        torch.onnx.export(module, (drawn(T, B, I),), dynamo=True, dynamic_shapes=({0: dim, 1: dim},)).save(stored)
    else:
        names: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "T", 1: "B"}}}
        torch.onnx.export(module, (drawn(T, B, I),), stored, dynamo=False, **names)
    session = runtime.InferenceSession(stored.getvalue(), providers=["CPUExecutionProvider"])
    for x in (drawn(2, 1, I), drawn(70, B + 1, I)):
        results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(tuple(map(torch.from_numpy, results)), module(x))
