"""Training that torch.compile traces on a CPU is torch.nn's training: results, gradients, and what dropout drops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from tests.helpers.nn_modules import MODULES, both, tensors
from tests.helpers.onednn import runs_lstm_under_autocast

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf",  # read by torch's compiler
    "ignore:LSTM with projections is not supported with oneDNN",
)
of_each = pytest.mark.parametrize("cell", MODULES)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.4},
    {"num_layers": 3, "bias": False, "dropout": 0.5},
]
X = torch.linspace(-1, 1, 60).view(5, 3, 4)
LENGTHS = torch.tensor([0, 3, 1])


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    yield
    torch.compiler.reset()


def step(call: Any, module: nn.Module, x: Tensor, **given: Any) -> list[Tensor]:
    """Results of a call and its gradients, of a seed."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_(given.pop("x_grad", False))
    results = tensors(call(x, **given))
    random = torch.rand(1)
    loss = torch.stack([(result * result).sum() for result in results]).sum()
    return [*results, random, *torch.autograd.grad(loss, [one for one in (x, *module.parameters()) if one.requires_grad])]


@of_each
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("x_grad", [False, True])
def test_it_trains_as_torch_does(cell: str, options: dict[str, Any], backend: str, x_grad: bool) -> None:
    reference, module = both(cell, 4, 6, **options)
    compiled = torch.compile(nn.Sequential(module), backend=backend, fullgraph=True)
    module.weight_ih_l0.requires_grad_(False)
    reference.weight_ih_l0.requires_grad_(False)
    torch.testing.assert_close(step(compiled, module, X, x_grad=x_grad), step(reference, reference, X, x_grad=x_grad))


@of_each
def test_with_states_and_one_sequence(cell: str) -> None:
    reference, module = both(cell, 4, 6, batch_first=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for x in (X, X[0]):
        state = torch.ones(1, *x.shape[:-2], 6)
        hx = (state, 2 * state) if cell == "lstm" else state
        torch.testing.assert_close(step(compiled, module, x, hx=hx), step(reference, reference, x, hx=hx))


@of_each
def test_with_lengths_it_trains_as_uncompiled(cell: str) -> None:
    module = both(cell, 4, 6, 2, bidirectional=True, dropout=0.4)[1]
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    results = [step(call, module, X, lengths=LENGTHS) for call in (compiled, module)]
    torch.testing.assert_close(*results)


def test_projections_float64_and_autocast() -> None:
    reference, module = both("lstm", 4, 6, proj_size=3)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(compiled, module, X), step(reference, reference, X))
    reference, module = both("gru", 4, 6, dtype=torch.float64)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(compiled, module, X.double()), step(reference, reference, X.double()))
    for cell in (cell for cell in MODULES if cell != "lstm" or runs_lstm_under_autocast()):
        reference, module = both(cell, 4, 6)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        with torch.autocast("cpu"):
            found, expected = step(compiled, module, X), step(reference, reference, X)
        assert [one.dtype for one in found] == [one.dtype for one in expected]
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.05)


@of_each
def test_graphs_do_not_grow_with_time(cell: str) -> None:
    module, sizes = both(cell, 4, 6)[1], list[int]()

    def count(graph: Any, inputs: Any) -> Any:
        sizes.append(len(graph.graph.nodes))
        return make_boxed_func(graph.forward)

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(module, backend=aot_autograd(fw_compiler=count), dynamic=True)
    for steps in (7, 40, 41):
        compiled(torch.ones(steps, 3, 4))[0].sum().backward()
    assert max(sizes) < 60
    assert len(sizes) == 2, "other T are traced again"


def test_a_checkpoint_drops_the_same() -> None:
    module = both("gru", 4, 6, 2, dropout=0.5)[1]
    expected = step(module, module, X)
    checkpointed = torch.compile(
        lambda x: torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False), backend="aot_eager", fullgraph=True
    )
    with _disable_current_modes():  # that which poisons memory does not take what saves random states
        torch.testing.assert_close(step(checkpointed, module, X), expected)


@of_each
@pytest.mark.parametrize(("lengths", "dropout"), [(None, 0.4), (LENGTHS, 0.0)])
def test_the_ops_are_as_torch_wants_them(cell: str, lengths: Tensor | None, dropout: float) -> None:
    module = both(cell, 4, 6, 2, bidirectional=True)[1]
    states = [torch.randn(4, 3, 6) for _ in range(2 if cell == "lstm" else 1)]
    options = module.mode, True, 2, dropout, True, True, False
    weights = [weight.detach() for weight in module.parameters()]
    tensors = X, states, weights, lengths
    *results, random_state = torch.ops.pytest_ecornn.torch_rnn.default(*tensors, *options)
    needs_grad = [number % 3 > 0 for number in range(1 + len(states) + len(weights))]
    backward = *tensors, needs_grad, random_state, [None, *results[1:]], *options
    with _disable_current_modes():  # that which poisons memory does not take what saves random states
        for op, arguments in (
            (torch.ops.pytest_ecornn.torch_rnn, (X, states, list(module.parameters()), lengths, *options)),
            (torch.ops.pytest_ecornn.torch_rnn, (*tensors, *options)),
            (torch.ops.pytest_ecornn.torch_rnn_backward, backward),
        ):
            outcome = torch.library.opcheck(op.default, arguments)
            assert set(outcome.values()) == {"SUCCESS"}, outcome
