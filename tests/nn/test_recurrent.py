"""pytest_ecornn.nn where torch.nn runs: torch's own test inputs, gradients of gradients, torch.compile and torch.export."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pytest_ecornn.nn
from tests.helpers.nn_modules import MODULES, both, tensors, torch_inputs
from tests.helpers.requirements import needs_gpu

of_each = pytest.mark.parametrize("cell", MODULES)


@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_torchs_own_inputs(cell: str, dtype: torch.dtype) -> None:
    inputs = torch_inputs(MODULES[cell][0], dtype)
    assert len(inputs) >= 8
    for one in inputs:
        made, given = one.constructor_input, one.forward_input
        reference, module = both(cell, *made.args, **made.kwargs, dtype=dtype)
        found, wanted = (tensors(of(*given.args, **given.kwargs)) for of in (module, reference))
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
        assert module.notes() == "torch: on cpu: the kernels run on a CUDA device"


@needs_gpu
@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "heuristic", "torch"])
def test_torchs_own_inputs_on_a_gpu(cell: str, dtype: torch.dtype, backend: str) -> None:
    for one in torch_inputs(MODULES[cell][0], dtype, "cuda"):
        made, given = one.constructor_input, one.forward_input
        reference, module = both(cell, *made.args, **made.kwargs, dtype=dtype, device="cuda")
        module._backend = backend
        for _ in range(2):  # the first decides
            found, wanted = (tensors(of(*given.args, **given.kwargs)) for of in (module, reference))
            torch.testing.assert_close(found, wanted)
            pairs = (found, module), (wanted, reference)
            torch.testing.assert_close(*(torch.autograd.grad(of[0].sum(), to.parameters()) for of, to in pairs))


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
    # torch 2.13 fails on oneDNN's LSTM under aot_eager in training, on torch.nn's module too.
    backend = "eager" if cell == "lstm" and trains else "aot_eager"
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    with torch.set_grad_enabled(trains):
        found = torch.compile(module, backend=backend, fullgraph=True)(torch.ones(3, 5, 4))
        wanted = reference(torch.ones(3, 5, 4))
    assert all(torch.equal(*pair) for pair in zip(tensors(found), tensors(wanted), strict=True))
    if trains:
        pairs = (found, module), (wanted, reference)
        torch.testing.assert_close(*(torch.autograd.grad(of[0].square().sum(), to.parameters()) for of, to in pairs))


@of_each
@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")  # of torch.nn's modules too
def test_torch_export_takes_it(cell: str) -> None:
    reference, module = both(cell, 4, 9, bidirectional=True)
    exported = torch.export.export(module, (torch.ones(5, 3, 4),)).module()
    found, wanted = exported(torch.ones(5, 3, 4)), reference(torch.ones(5, 3, 4))
    assert all(torch.equal(*pair) for pair in zip(tensors(found), tensors(wanted), strict=True))


@of_each
def test_tensors_without_data(cell: str) -> None:
    module = MODULES[cell][1](4, 9, device="meta")
    assert module(torch.empty(5, 3, 4, device="meta"))[0].shape == (5, 3, 9)


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
