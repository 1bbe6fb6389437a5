"""MinGRU and MinLSTM under torch.compile and torch.export: whole graphs, the eager module's results and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ecornn.implementations.scan_cpu import ops
from pytest_ecornn.nn import MinGRU, MinLSTM
from tests.helpers.requirements import needs_gpu

T, B, I, H = 7, 3, 5, 9  # noqa: E741
of_each = pytest.mark.parametrize("kind", [MinGRU, MinLSTM])
NEAR = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 2e-2, torch.float16: 2e-2}
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by torch's compiler


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def expect_alike(module: nn.Module, compiled: Any, x: Tensor, *others: Tensor) -> None:
    near = {"rtol": NEAR[x.dtype], "atol": NEAR[x.dtype]}
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, *others), module(x, *others), **near)
    results, given = [], [x.requires_grad_(), *module.parameters()]
    for call in (compiled, module):
        output, final = call(x, *others)
        loss = (output * output.detach().cos()).sum() + final.square().sum()
        results.append((output, final, torch.autograd.grad(loss, given)))
    torch.testing.assert_close(*results, **near)


def arguments(module: Any, dtype: torch.dtype, device: str = "cpu") -> list[tuple[Tensor, ...]]:
    """Arguments without a state, with one, and with resets too."""
    torch.manual_seed(1)
    x = torch.randn(*((B, T, I) if module.batch_first else (T, B, I)), dtype=dtype, device=device)
    hx = torch.randn(module.num_layers * (1 + module.bidirectional), B, H, dtype=dtype, device=device)
    return [(x,), (x, hx), (x, hx, torch.rand(x.shape[:2], device=device) < 0.3)]


@pytest.mark.test_all(keep=3)
@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "batch_first": True, "positive": True, "bias": False}],
)
def test_it_is_one_graph(kind: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = kind(I, H, **options, dtype=dtype)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for given in arguments(module, dtype):
        compiled(*given)
        assert module.notes() == "scan_cpu; chosen without timing, as torch.compile traced the call"
        expect_alike(module, compiled, *given)


@of_each
def test_one_graph_is_for_any_length_and_batch(kind: Any) -> None:
    module = kind(I, H)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    for sizes in ((T, B), (2 * T, B), (T, B + 2)):
        expect_alike(module, compiled, torch.randn(*sizes, I))


@of_each
def test_export_takes_it(kind: Any) -> None:
    module = kind(I, H, 2, bidirectional=True).eval()
    x = torch.randn(T, B, I)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("steps", min=2)},))
    for one in (x, torch.randn(3 * T, B, I)):
        torch.testing.assert_close(exported.module()(one), module(one))


@pytest.mark.parametrize("backend", ["loop", "auto"])
def test_another_backend_breaks_the_graph(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "auto":
        monkeypatch.setenv("ECORNN_AUTO", "sequential")
    module = MinGRU(I, H, 2, backend=backend)
    compiled = torch.compile(module, backend="eager")
    x = torch.randn(T, B, I)
    torch.testing.assert_close(compiled(x), module(x))
    assert module.notes().partition(":")[0] in ("loop", "sequential; forced")
    with pytest.raises(Exception, match=r"torch\.compiler\.disable|fullgraph"):
        torch.compile(MinGRU(I, H, backend=backend), backend="eager", fullgraph=True)(x)


@of_each
def test_torch_func_within_a_compiled_function(kind: Any) -> None:
    module, x = kind(I, H), torch.randn(T, B, I)
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(given: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, given, (x,))[0].cos().sum()  # type: ignore[no-any-return]

    gradients = torch.func.grad(loss)
    torch.testing.assert_close(torch.compile(gradients, backend="aot_eager")(parameters), gradients(parameters))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_masks", [False, True])
def test_the_op_is_as_torch_wants_it(dtype: torch.dtype, has_masks: bool) -> None:
    x = torch.randn(T, B, 3 * H, requires_grad=True)
    first = torch.randn(B, H, dtype=dtype, requires_grad=True)
    masks = (torch.tensor([T, 2, 1]), torch.rand(T, B) < 0.3) if has_masks else (None, None)
    given = x, first, *masks, "minlstm", dtype, False, True, False
    outcome = torch.library.opcheck(torch.ops.pytest_ecornn.scan_cpu_forward.default, given)
    assert set(outcome.values()) == {"SUCCESS"}
    without = x.detach(), first.detach(), *given[2:]
    assert set(torch.library.opcheck(torch.ops.pytest_ecornn.scan_cpu_forward.default, without).values()) == {"SUCCESS"}
    output, final, saved = (one.detach() for one in torch.ops.pytest_ecornn.scan_cpu_forward.default(*given[:-1], True))
    saved = saved if saved.numel() else output
    backward = *without[:2], saved, *masks, torch.randn_like(output), torch.randn_like(final), *given[4:-1]
    assert set(torch.library.opcheck(torch.ops.pytest_ecornn.scan_cpu_backward.default, backward).values()) == {"SUCCESS"}
    output = ops.scan_by_op(x, first, *masks, "minlstm", dtype, False, True)[0]
    (gradient,) = torch.autograd.grad(output.float().square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        gradient.sum().backward()


@needs_gpu
@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_on_a_gpu_it_is_one_graph(kind: Any, dtype: torch.dtype) -> None:
    module = kind(I, H, 2, bidirectional=True, device="cuda", dtype=dtype)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for given in arguments(module, dtype, "cuda"):
        expect_alike(module, compiled, *given)
        assert "scan_gpu" in module.notes()
