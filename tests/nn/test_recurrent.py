"""pytest_ecornn.nn where torch.nn runs: gradients of gradients, torch.compile, torch.export and transforms of torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pytest_ecornn.nn
from tests.helpers.nn_modules import MODULES, both, tensors

of_each = pytest.mark.parametrize("cell", MODULES)


@of_each
def test_gradients_of_gradients(cell: str) -> None:
    module = both(cell, 3, 2, 2, dtype=torch.float64)[1]
    x = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)

    def outputs(x: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(dict(module.named_parameters()), weights, strict=True))
        output: Tensor = torch.func.functional_call(module, named, (x,))[0]
        return output

    assert torch.autograd.gradgradcheck(outputs, (x, *module.parameters()))


@of_each
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # read by torch's compiler
@pytest.mark.parametrize("trains", [False, True])
def test_torch_compile_takes_it_as_one_graph(cell: str, trains: bool) -> None:
    reference, module = both(cell, 4, 9, 2, batch_first=True)
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    with torch.set_grad_enabled(trains):
        found = torch.compile(module, backend="aot_eager", fullgraph=True)(torch.ones(3, 5, 4))
        wanted = reference(torch.ones(3, 5, 4))
    torch.testing.assert_close(tensors(found), tensors(wanted))
    if trains:
        pairs = (found, module), (wanted, reference)
        torch.testing.assert_close(*(torch.autograd.grad(of[0].square().sum(), to.parameters()) for of, to in pairs))


@of_each
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False}])
@pytest.mark.parametrize("in_dims", [(0, None), (0, 0), (None, 0)])
def test_vmap_runs_several_models(cell: str, options: dict[str, Any], in_dims: tuple[int | None, int | None]) -> None:
    models = [both(cell, 4, 6, **options)[1] for _ in range(3)]
    for number, model in enumerate(models):
        model.weight_hh_l0.data += 0.1 * number
    stacked, x = torch.func.stack_module_state(models)[0], torch.randn(3, 5, 2, 4)
    lengths = torch.tensor([2, 5] if options else [1, 4])

    def call(weights: dict[str, Tensor], x: Tensor, lengths: Tensor | None) -> Any:
        return torch.func.functional_call(models[0], weights, (x, None, None, lengths))

    weights = stacked if in_dims[0] == 0 else dict(models[0].named_parameters())
    for given in (None, lengths if not options else torch.full((5,), 2)):
        found = torch.vmap(call, (*in_dims, None))(weights, x if in_dims[1] == 0 else x[0], given)
        for number, model in enumerate(models):
            own, rows = model if in_dims[0] == 0 else models[0], x[number] if in_dims[1] == 0 else x[0]
            for one, wanted in zip(tensors(found), tensors(own(rows, lengths=given)), strict=True):
                torch.testing.assert_close(one[number], wanted)
    if in_dims[0] == 0:
        found[0].square().sum().backward()
        expected = torch.autograd.grad(models[1](rows_of(x, in_dims), lengths=given)[0].square().sum(), models[1].parameters())
        torch.testing.assert_close([weight.grad[1] for weight in weights.values()], [*expected])


@of_each
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by torch's forward mode
def test_gradients_of_each_sample_and_forward_mode(cell: str) -> None:
    module = both(cell, 4, 6)[1].double()
    x, weights = torch.randn(3, 5, 2, 4, dtype=torch.float64), dict(module.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(module, weights, (x,))[0]
        return output.square().sum()

    found = torch.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    for number in range(3):
        expected = torch.autograd.grad(loss(weights, x[number]), list(weights.values()))
        torch.testing.assert_close([one[number] for one in found.values()], [*expected])
    module.float()
    slopes = [of(lambda x: module(x)[0].sum((1, 2)))(x[0].float()) for of in (torch.func.jacfwd, torch.func.jacrev)]
    torch.testing.assert_close(*slopes)


def rows_of(x: Tensor, in_dims: tuple[int | None, int | None]) -> Tensor:
    return x[1] if in_dims[1] == 0 else x[0]


@of_each
@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")  # of torch.nn's modules too
def test_torch_export_takes_it(cell: str) -> None:
    reference, module = both(cell, 4, 9, bidirectional=True)
    exported = torch.export.export(module, (torch.ones(5, 3, 4),)).module()
    found, wanted = exported(torch.ones(5, 3, 4)), reference(torch.ones(5, 3, 4))
    assert all(torch.equal(*pair) for pair in zip(tensors(found), tensors(wanted), strict=True))


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_backend_is_a_modules_for_good(backend: str) -> None:
    module = pytest_ecornn.nn.GRU(4, 9, backend=backend)
    assert module.backend == backend
    with pytest.raises(AttributeError):
        module.backend = "persistent_gpu"


@of_each
def test_resets_are_not_run_yet(cell: str) -> None:
    with pytest.raises(NotImplementedError, match=r"(RNN|LSTM|GRU) takes no resets yet; MinGRU and MinLSTM do"):
        both(cell, 4, 9)[1](torch.ones(5, 3, 4), resets=torch.zeros(5, 3, dtype=torch.bool))
