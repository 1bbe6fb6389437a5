"""torch's tests of its modules, on the calls of torch's own tests: RNN, GRU and LSTM do on a CPU what torch.nn's do."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.nn.utils.rnn import PackedSequence

import pytest_ecornn.nn
from tests.helpers.nn_modules import tensors
from tests.helpers.requirements import needs_gpu
from tests.helpers.torch_module_db import Call, ModuleInput, torch_error_inputs, torch_inputs

CLASSES = {
    "RNN": (nn.RNN, pytest_ecornn.nn.RNN),
    "GRU": (nn.GRU, pytest_ecornn.nn.GRU),
    "LSTM": (nn.LSTM, pytest_ecornn.nn.LSTM),
}
of_each = pytest.mark.parametrize("name", CLASSES)
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def inputs(name: str, dtype: torch.dtype = torch.float32, every: int = 13, device: str = "cpu") -> list[ModuleInput]:
    """One in `every` of torch's calls, in which each option comes on and off."""
    calls = torch_inputs(CLASSES[name][0], dtype, device)[::every]
    for option in ("bias", "batch_first", "bidirectional"):
        assert {made.kwargs[option] for made, _ in calls} == {False, True}
    return calls


def both(name: str, made: Call, **options: Any) -> tuple[nn.RNNBase, Any]:
    """torch.nn's module and this project's, of equal weights."""
    modules = []
    for kind in CLASSES[name]:
        torch.manual_seed(0)
        modules.append(kind(*made.args, **made.kwargs, **options))
    return modules[0], modules[1]


def pairs(name: str, dtype: torch.dtype = torch.float32, every: int = 13) -> Iterator[tuple[nn.RNNBase, Any, Call]]:
    """Both modules, and arguments of a call."""
    for made, call in inputs(name, dtype, every):
        yield *both(name, made, dtype=dtype), call


def leaves(call: Call) -> list[Tensor]:
    return tensors(call.args)


def gradients(module: nn.Module, results: Any, call: Call, change: Callable[[Tensor], Tensor] = torch.clone) -> list[Tensor]:
    """Of arguments and parameters, all of which are used. change: of the incoming gradients."""
    outputs = tensors(results)
    incoming = [change(output.detach().cos()) for output in outputs]
    return list(torch.autograd.grad(outputs, [*leaves(call), *module.parameters()], incoming))


def assert_equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_same_calls(module: nn.Module, reference: nn.Module, call: Call) -> None:
    """Results, their forms and gradients are bit for bit the same."""
    results, expected = module(*call.args, **call.kwargs), reference(*call.args, **call.kwargs)
    assert list(map(type, results)) == list(map(type, expected))
    assert_equal(tensors(results), tensors(expected))
    assert_equal(gradients(module, results, call), gradients(reference, expected, call))


@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_calls_are_torchs(name: str, dtype: torch.dtype) -> None:
    for reference, module, call in pairs(name, dtype, every=7):
        for trains in (True, False):
            assert_same_calls(module.train(trains), reference.train(trains), call)
            assert module.notes().startswith("torch: ")


@needs_gpu
@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "heuristic", "torch"])
def test_calls_on_a_gpu_are_torchs(name: str, dtype: torch.dtype, backend: str) -> None:
    for made, call in inputs(name, dtype, device="cuda"):
        reference, module = both(name, made, dtype=dtype, device="cuda")
        module._backend = backend
        for _ in range(2):  # the first decides
            results, expected = module(*call.args), reference(*call.args)
            torch.testing.assert_close(tensors(results), tensors(expected))
            torch.testing.assert_close(gradients(module, results, call), gradients(reference, expected, call))


def apart(x: Tensor) -> Tensor:
    """The same values with gaps between them."""
    return torch.stack([x.detach(), torch.full_like(x, torch.nan)], -1)[..., 0]


def map_tensors(change: Callable[[Tensor], Tensor], argument: Any) -> Any:
    """An argument whose tensors are changed, in turn."""
    if isinstance(argument, PackedSequence):
        return argument._replace(data=change(argument.data))
    return tuple(map(change, argument)) if isinstance(argument, tuple) else change(argument)


def with_leaves(change: Callable[[Tensor], Tensor], argument: Any) -> Any:
    return map_tensors(lambda x: change(x.detach()).requires_grad_(), argument)


@of_each
def test_arguments_that_are_not_contiguous(name: str) -> None:
    for _, module, call in pairs(name):
        results = module(*call.args)
        expected = gradients(module, results, call)
        for changes in product((torch.clone, apart), repeat=1 + len(call.args)):
            of_gradients, *of_arguments = changes
            args = Call(tuple(map(with_leaves, of_arguments, call.args)), {})
            assert all(tensor.is_contiguous() for tensor in leaves(args)) == (apart not in of_arguments)
            again = module(*args.args)
            assert_equal(tensors(again), tensors(results))
            torch.testing.assert_close(gradients(module, again, args, of_gradients), expected)


def checked(call: Call, module: nn.Module) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """Results as a function of all that has a gradient, and its arguments."""
    parameters = dict(module.named_parameters())

    def function(*changed: Tensor) -> tuple[Tensor, ...]:
        values = iter(changed)
        args = tuple(map_tensors(lambda _: next(values), argument) for argument in call.args)
        return tuple(tensors(torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), args)))

    return function, [*leaves(call), *parameters.values()]


@of_each
def test_gradients_are_slopes(name: str) -> None:
    """Of gradients too, in one call."""
    for number, (_, module, call) in enumerate(pairs(name, torch.float64)):
        function, arguments = checked(call, module)
        assert torch.autograd.gradcheck(function, arguments, fast_mode=True)
        assert number or torch.autograd.gradgradcheck(function, arguments, fast_mode=True)


@of_each
def test_printed_it_is_torchs(name: str) -> None:
    for reference, module, _ in pairs(name):
        assert repr(module) == repr(reference)


@of_each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameters_are_made_as_they_are_asked_for(name: str, dtype: torch.dtype, device: str) -> None:
    for made, _ in inputs(name):
        reference, module = both(name, made, device=device, dtype=dtype)
        with torch.device(device):
            torch.manual_seed(0)
            within = CLASSES[name][1](*made.args, **made.kwargs, dtype=dtype)
        for own in (module, within):
            assert list(own.state_dict()) == list(reference.state_dict())
            for parameter, expected in zip(own.parameters(), reference.parameters(), strict=True):
                assert (parameter.device, parameter.dtype, parameter.shape) == (expected.device, dtype, expected.shape)
                assert device == "meta" or torch.equal(parameter, expected)


def shapes(module: nn.Module, call: Call) -> list[tuple[Any, ...]]:
    """Of results and gradients."""
    results = module(*call.args)
    outputs = [*tensors(results), *gradients(module, results, call)]
    return [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in outputs]


@of_each
def test_tensors_without_data(name: str) -> None:
    for made, call in inputs(name):
        empty = Call(tuple(with_leaves(lambda x: x.to("meta"), argument) for argument in call.args), {})
        reference, module = both(name, made, device="meta")
        actual = shapes(module, empty)
        assert actual == shapes(reference, empty)
        assert {device.type for *_, device in actual} == {"meta"}
        module.to_empty(device="cpu").load_state_dict(both(name, made)[0].state_dict())
        assert_same_calls(module, both(name, made)[0], call)


@of_each
def test_skip_init_is_torchs(name: str) -> None:
    messages = []
    for kind in CLASSES[name]:
        with pytest.raises(RuntimeError, match="must support a 'device' arg") as caught:
            skip_init(kind, 3, 4)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))


def saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@of_each
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copy_is_a_module_of_its_own(name: str, copied: Callable[[nn.Module], Any]) -> None:
    for number, (reference, module, call) in enumerate(pairs(name)):
        if number % 2:
            module(*call.args)  # which leaves what a call remembers
        other = copied(module.eval())
        assert type(other) is type(module)
        assert not other.training
        assert repr(other) == repr(module)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        assert_same_calls(other, reference.eval(), call)


@of_each
@pytest.mark.parametrize("assigns", [False, True])
def test_a_state_dict_is_loaded_after_a_call(name: str, assigns: bool) -> None:
    for reference, module, call in pairs(name):
        module(*call.args)
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.mul_(2)
        file = io.BytesIO()
        torch.save(reference.state_dict(), file)
        file.seek(0)
        module.load_state_dict(torch.load(file, weights_only=True), assign=assigns)
        assert_same_calls(module, reference, call)


@contextmanager
def swapping(swaps: bool) -> Iterator[None]:
    """Context in which new contents are swapped into parameters, which stay the objects that they are."""
    torch.__future__.set_swap_module_params_on_conversion(swaps)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


CONVERSIONS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "to float64": lambda module: module.to(torch.float64),
    "half and back": lambda module: module.half().bfloat16().float(),
    "cpu": lambda module: module.cpu(),
    "shared": lambda module: module.share_memory(),
    "off and back": lambda module: module.to("meta").to_empty(device="cpu"),
}


def converted(module: nn.RNNBase, conversion: str, call: Call) -> list[tuple[Any, ...]]:
    """What became of each parameter of a module that has been called. All have new values then."""
    module(*call.args)
    before = list(module.parameters())
    versions = [parameter._version for parameter in before]
    assert CONVERSIONS[conversion](module) is module
    after = list(module.parameters())
    assert [id(weight) for weight in module._flat_weights] == list(map(id, after))
    became = [
        (old is new, new._version - version, new.dtype, new.is_shared(), new.requires_grad)
        for old, new, version in zip(before, after, versions, strict=True)
    ]
    for number, parameter in enumerate(after):
        nn.init.constant_(parameter, 0.1 * number)
    return became


@of_each
@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("swaps", [False, True])
def test_conversions_are_torchs(name: str, conversion: str, swaps: bool) -> None:
    for reference, module, call in pairs(name):
        with swapping(swaps):
            assert converted(module, conversion, call) == converted(reference, conversion, call)
        dtype = module.weight_hh_l0.dtype
        cast = Call(tuple(with_leaves(lambda x, dtype=dtype: x.to(dtype), argument) for argument in call.args), {})
        assert_same_calls(module, reference, cast)


@of_each
def test_calls_leave_parameters_and_arguments_alone(name: str) -> None:
    for _, module, call in pairs(name):
        kept = [*leaves(call), *module.parameters()]
        before = [(tensor.data_ptr(), tensor._version, tensor.clone()) for tensor in kept]
        first, *_, last = [module(*call.args) for _ in range(3)]
        assert_equal(tensors(last), tensors(first))
        gradients(module, last, call)
        assert all(tensor is old for tensor, old in zip([*leaves(call), *module.parameters()], kept, strict=True))
        for tensor, (address, version, value) in zip(kept, before, strict=True):
            assert (tensor.data_ptr(), tensor._version, tensor.grad, tensor.requires_grad) == (address, version, None, True)
            assert torch.equal(tensor, value)


@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_are_torchs(name: str, dtype: torch.dtype) -> None:
    errors = torch_error_inputs(CLASSES[name][0], dtype)
    assert len(errors) >= 3
    for made, call, error, message in errors:
        messages = []
        for kind in CLASSES[name]:
            run = partial(kind, *made.args, **made.kwargs)
            if call is not None:
                run = partial(run(), *call.args, **call.kwargs)
            with pytest.raises(error, match=message) as caught:
                run()
            assert caught.type is error
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
