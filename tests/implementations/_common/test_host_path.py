"""The compiled host path on a CPU: what is recorded of a call is done again by C++, whose backward pass autograd runs."""

from __future__ import annotations

import ctypes
import gc
import resource
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pytest_ecornn.implementations._common.host_path import PlannedWork, executor_of, host_path
from pytest_ecornn.implementations._common.tensor_views import halves
from pytest_ecornn.implementations._cuda.driver import address_of
from pytest_ecornn.implementations._cuda.host.recorder import Kind, Recorder, current_recorder
from pytest_ecornn.implementations._cuda.launch import Launch, Launcher
from pytest_ecornn.implementations._cuda.memory import empty
from pytest_ecornn.reference.precision import current
from tests.helpers.replayed_calls import compiled_host, counts
from tests.helpers.requirements import needs_compiler
from tests.simulator.compiled_on_cpu import Library

pytestmark = [needs_compiler, pytest.mark.usefixtures("compiled")]

# A driver whose only kernel is z = scale x + y, of `grid * block` elements; it refuses an x of NaN.
_DRIVER = Library("""
struct Params { const float* x; int scale; const float* y; float* z; };
static int run(unsigned elements, void** params) {
    auto [x, scale, y, z] = *(Params*)*params;
    if (*x != *x) return 1;
    for (unsigned i = 0; i < elements; i++) z[i] = scale * x[i] + (y ? y[i] : 0);
    return 0;
}
extern "C" long last_stream = 0;
extern "C" int cuLaunchKernel(void*, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned,
                              void* stream, void** params, void**) {
    last_stream = 10 * last_stream + (long)stream + 1;
    return run(grid * block, params);
}
extern "C" int cuLaunchCooperativeKernel(void*, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned,
                                         void*, void** params) { return run(grid * block, params); }
extern "C" int context = 1;  // of the thread
extern "C" int cuStreamIsCapturing(void*, int* status) { return context ? *status = 0 : 201; }
extern "C" int cuCtxSetCurrent(long next) { return context = next, 0; }
""")
_CPU = torch.device("cpu")
ROWS, INPUTS, UNITS = 3, 4, 5


@pytest.fixture
def compiled() -> Iterator[None]:
    with compiled_host():
        yield


@cache
def kernel(is_cooperative: bool) -> Launcher:
    return Launcher(1, "PiPP", is_cooperative, _DRIVER.loaded)


def scaled(x: Tensor, scale: int, y: Tensor | None, z: Tensor, skipped: int = 0, is_cooperative: bool = False) -> None:
    """z = scale x + y but for the first elements, which are skipped."""
    bytes_before = skipped * z.itemsize
    addresses = [0 if one is None else one.data_ptr() + bytes_before for one in (x, y, z)]
    kernel(is_cooperative)(Launch(z.numel() - skipped, 1), 0, (addresses[0], scale, *addresses[1:]))


def forward(tensors: Sequence[Any]) -> list[Tensor]:
    """x [R, I] -> tanh(2 (x W^T) + b), and its first column: results; and what tanh took, saved."""
    x, weight, bias = tensors
    product = torch.mm(x, weight.t())
    before, doubled = empty((ROWS, UNITS), torch.float32, _CPU), empty((ROWS, UNITS), torch.float32, _CPU)
    scaled(product, 2, None, doubled)
    before.copy_(doubled[:, :UNITS])
    if bias is not None:
        scaled(doubled, 1, bias.expand(ROWS, UNITS).contiguous(), before, is_cooperative=True)
    output = torch.tanh(before)
    return [output, output[:, 0].clone(), output.detach().clone()]


def backward(needs: Sequence[bool], overwrites: bool, is_observed: bool, tensors: Sequence[Any]) -> list[Tensor | None]:
    x, weight, bias, tanh, d_output, d_column = tensors
    if is_observed:
        return differentiable(needs, x, weight, bias, d_output, d_column)
    d_output = torch.zeros_like(tanh) if d_output is None else d_output.contiguous()
    if d_column is not None:
        d_output = d_output.clone()
        d_output.select(1, 0).add_(d_column)
    d_before = d_output * (1 - tanh * tanh)
    d_product = tanh if overwrites else empty((ROWS, UNITS), torch.float32, _CPU)
    d_product[0] = 2 * d_before[0]
    scaled(d_before, 2, None, d_product, skipped=UNITS)
    of_x = torch.mm(d_product, weight) if needs[0] else None
    of_weight = torch.mm(d_product.t(), x) if needs[1] else None
    return [of_x, of_weight, d_before.sum(0) if needs[2] else None]


def differentiable(
    needs: Sequence[bool], x: Tensor, weight: Tensor, bias: Tensor | None, *d_results: Tensor | None
) -> list[Any]:
    with torch.enable_grad():
        given = [None if one is None else one.view_as(one) for one in (x, weight, bias)]
        results = by_torch(*given)
        pairs = [(one, gradient) for one, gradient in zip(results, d_results, strict=True) if gradient is not None]
        inputs = [one for one, is_wanted in zip(given, needs, strict=True) if is_wanted]
        found = iter(torch.autograd.grad([one for one, _ in pairs], inputs, [one for _, one in pairs], create_graph=True))
    return [next(found) if is_wanted else None for is_wanted in needs]


def by_torch(x: Any, weight: Any, bias: Any) -> tuple[Tensor, Tensor]:
    before = 2 * (x @ weight.t())
    output = torch.tanh(before if bias is None else before + bias)
    return output, output[:, 0].clone()


def planned(**changes: Any) -> Callable[..., Any]:
    of_work = {"name": "tested", "device": _CPU, "num_results": 2, "saved": (2,), "timed_out": 0, "products": None}
    made = host_path().planned_call(PlannedWork(**{**of_work, "forward": forward, "backward": backward, **changes}))
    assert made is not None
    return made


def arrays(seed: int = 0, has_bias: bool = True) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [(ROWS, INPUTS), (UNITS, INPUTS), (UNITS,)][: 2 + has_bias]
    return [torch.randn(size, generator=generator).requires_grad_() for size in sizes] + [None] * (not has_bias)


def by_python(given: Sequence[Any], d_results: Sequence[Tensor | None], needs: Sequence[bool] = (True, True, True)) -> Any:
    """Results and gradients as the functions above have them."""
    with torch.no_grad():
        *results, saved = forward(given)
        return results, backward(needs, False, False, [*given, saved, *d_results])


def expect_equal(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


@pytest.mark.parametrize("has_bias", [True, False])
def test_replays_are_bit_equal_to_python_and_gradients_are_right(has_bias: bool) -> None:
    call, gradient = planned(), torch.randn(ROWS, UNITS)
    for seed in range(5):
        given = arrays(seed, has_bias)
        results, gradients = by_python(given, (gradient, None), (True, True, has_bias))
        found = call(*given)
        found[0].backward(gradient)
        expect_equal(found, results)
        expect_equal([one.grad for one in given if one is not None], [one for one in gradients if one is not None])
        expected = by_torch(*given)
        torch.testing.assert_close(found, expected)
        leaves = [one for one in given if one is not None]
        torch.testing.assert_close([one.grad for one in leaves], list(torch.autograd.grad(expected[0], leaves, gradient)))
    assert counts(call) == (2, [(4, ""), (4, "")])


def test_each_layout_alignment_and_choice_of_gradients_has_a_tape_of_its_own() -> None:
    call, given = planned(), arrays()
    shifted = torch.randn(ROWS * INPUTS + 1)[1:].view(ROWS, INPUTS)
    for x in (given[0].detach(), shifted, torch.randn(INPUTS, ROWS).t()):
        for _ in range(3):
            tensors = [x, *given[1:]]
            found, expected = call(*tensors), by_python(tensors, (None, None))[0]
            expect_equal(found, expected)
    assert [replays for replays, _ in counts(call)[1]] == [2, 2, 2]
    gradient = torch.randn(UNITS, ROWS).t()
    for wanted in ([0], [1], [0, 2], [0, 1, 2]):
        for d_results in ((gradient, None), (None, torch.randn(ROWS)), (gradient.contiguous(), torch.randn(ROWS))):
            needs = [number in wanted for number in range(3)]
            for _ in range(2):
                results = [(one, d) for one, d in zip(call(*given), d_results, strict=True) if d is not None]
                outputs, incoming = zip(*results, strict=True)
                found = torch.autograd.grad(outputs, [given[number] for number in wanted], incoming)
                expected = by_python(given, d_results, needs)[1]
                expect_equal(found, [one for one in expected if one is not None])
    assert all(replays for replays, _ in counts(call)[1])


def test_beyond_so_many_tapes_python_runs() -> None:
    call = planned()
    weight, bias = arrays()[1:]
    for offset in range(40):
        x = torch.randn(ROWS, INPUTS + offset)[:, :INPUTS]
        expect_equal(call(x, weight, bias), by_python([x, weight, bias], (None, None))[0])
    python_runs, tapes = counts(call)
    assert (python_runs, len(tapes)) == (40, 32)


@pytest.mark.parametrize("retains", [False, True])
def test_saved_memory_is_overwritten_only_when_the_graph_is_freed(retains: bool) -> None:
    call, given, gradient = planned(), arrays(), torch.randn(ROWS, UNITS)
    expected = by_python(given, (gradient, None))[1]
    for _ in range(3):
        found = call(*given)
        for _ in range(1 + retains):
            expect_equal(torch.autograd.grad(found[0], given, gradient, retain_graph=retains), expected)
        if not retains:
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                torch.autograd.grad(found[0], given, gradient)


def test_hooks_run_and_gradients_accumulate() -> None:
    call, given, gradient = planned(), arrays(), torch.ones(ROWS, UNITS)
    expected, seen = by_python(given, (3 * gradient, None))[1], list[str]()
    for number in range(1, 4):
        found, _ = call(*given)
        assert found.grad_fn.name() == "tested"
        found.register_hook(lambda d_output: 3 * d_output)
        found.grad_fn.register_prehook(lambda gradients: seen.append("before"))
        found.grad_fn.register_hook(lambda inputs, outputs: seen.append("after"))
        found.backward(gradient)
        torch.testing.assert_close([one.grad for one in given], [number * one for one in expected])
    assert seen == ["before", "after"] * 3


def test_a_change_in_place_of_what_was_saved_raises() -> None:
    call, given = planned(), arrays()
    for _ in range(2):
        found, _ = call(*given)
        with torch.no_grad():
            given[1].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            found.sum().backward()


def test_weights_that_an_optimizer_changes_are_read_anew() -> None:
    def losses(call: Callable[..., Any]) -> list[float]:
        x, *parameters = arrays()
        optimizer = torch.optim.SGD(parameters, 0.5)
        found = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = call(x.detach(), *parameters)[0].square().sum()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(planned()) == pytest.approx(losses(by_torch), rel=1e-5)


def test_double_backward_runs_in_python() -> None:
    call, given = planned(), arrays()

    def second(function: Callable[..., Any]) -> tuple[Tensor, ...]:
        (of_x,) = torch.autograd.grad(function(*given)[0].sum(), given[:1], create_graph=True)
        return torch.autograd.grad(of_x.square().sum(), given)

    for _ in range(2):
        torch.testing.assert_close(second(call), second(by_torch))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpoint_and_hooks_of_saved_tensors(is_reentrant: bool) -> None:
    call, given, gradient = planned(), arrays(), torch.randn(ROWS, UNITS)
    expected = by_python(given, (gradient, None))[1]
    for _ in range(3):
        found = checkpoint(call, *given, use_reentrant=is_reentrant)[0]
        expect_equal(grads(found, given, gradient), expected)
        packed = list[Tensor]()

        def pack(one: Tensor, packed: list[Tensor] = packed) -> Tensor:
            packed.append(one)
            return one.double()

        with torch.autograd.graph.saved_tensors_hooks(pack, Tensor.float):
            found = call(*given)[0]
        assert len(packed) == 4
        expect_equal(torch.autograd.grad(found, given, gradient), expected)


def grads(found: Tensor, given: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    for one in given:
        one.grad = None
    found.backward(gradient)
    return [one.grad for one in given]


def test_threads_share_a_call() -> None:
    call, failures = planned(), list[BaseException]()

    def steps(seed: int) -> None:
        try:
            for number in range(50):
                given, gradient = arrays(100 * seed + number), torch.randn(ROWS, UNITS)
                results, gradients = by_python(given, (gradient, None))
                found = call(*given)
                expect_equal(found, results)
                expect_equal(torch.autograd.grad(found[0], given, gradient), gradients)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=steps, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_nothing_is_left_of_ten_thousand_steps() -> None:
    call, given, gradient = planned(), arrays(), torch.randn(ROWS, UNITS)

    def steps(count: int) -> None:
        for _ in range(count):
            call(*given)[0].backward(gradient)

    steps(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps(10_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1024, "KB more"
    x = given[0].clone()
    saved, found = weakref.ref(x), call(x, *given[1:])
    del x
    assert saved() is not None
    del found
    gc.collect()
    assert saved() is None
    work = weakref.ref(held := lambda tensors: forward(tensors))
    other = planned(forward=held)
    other(*given)[0].backward(gradient)
    del other, held
    assert work() is None


def test_what_python_raises_is_raised_in_both_passes() -> None:
    def refuse(*given: Any) -> Any:
        raise LookupError("not here")

    with pytest.raises(LookupError, match="not here"):
        planned(forward=refuse)(*arrays())
    found, _ = planned(backward=refuse)(*arrays())
    with pytest.raises(LookupError, match="not here"):
        found.sum().backward()


def test_a_launch_that_the_driver_refuses_raises() -> None:
    call = planned(forward=lambda tensors: [launched(*tensors)], num_results=1, saved=())
    call(torch.ones(2), torch.ones(2))
    with pytest.raises(RuntimeError, match="the CUDA driver could not launch a kernel: error 1"):
        call(torch.full((2,), torch.nan), torch.ones(2))
    assert call(torch.ones(2), torch.ones(2))[0].tolist() == [2, 2]


def test_python_runs_after_a_kernel_gave_up() -> None:
    word = torch.zeros(1, dtype=torch.int32)
    call, given = planned(timed_out=word.data_ptr()), arrays()
    for is_stuck in (0, 0, 1, 0):
        word.fill_(is_stuck)
        call(*given)
    assert counts(call) == (2, [(2, "")])


KEPT = torch.ones(ROWS, INPUTS)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * x.sum().item(), "aten::_local_scalar_dense returns other than tensors"),
        (lambda x: x + KEPT, "a tensor is used that the call has not made"),
        (lambda x: x.to("meta"), "tensors are on 2 devices"),
        (lambda x: x, "a result is what was given"),
        (lambda x: torch.view_as_real(torch.complex(x, x)), "returns a view in another way"),
        (lambda x: launched(x, KEPT), "in the memory of 0 tensors"),
        (lambda x: torch.rand(3, generator=torch.Generator()), "an operator takes <torch._C.Generator"),
    ],
)
def test_what_cannot_be_replayed_is_python_s(function: Callable[[Tensor], Tensor], reason: str) -> None:
    call = planned(forward=lambda tensors: [function(tensors[0])], num_results=1, saved=())
    for _ in range(3):
        call(torch.ones(ROWS, INPUTS))
    python_runs, [(replays, refusal)] = counts(call)
    assert (python_runs, replays) == (3, 0)
    assert reason in refusal


def launched(x: Tensor, y: Tensor) -> Tensor:
    result = torch.empty_like(x)
    scaled(x, 1, y, result)
    return result


def test_a_tensor_given_twice_is_not_recorded_and_memory_of_two_is_refused() -> None:
    call = planned(forward=lambda tensors: [launched(*tensors)], num_results=1, saved=())
    x = torch.ones(ROWS, INPUTS)
    call(x, x)  # no tape is made of it
    call(x[:2], x[1:])
    for _ in range(2):
        call(x, x + 1)
    (result,) = call(x, x)
    assert torch.equal(result, x + x)
    assert counts(call)[1] == [(0, "an address that a launch takes is in the memory of 2 tensors"), (2, "")]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor")  # torch's own
def test_compiled_autograd_takes_the_backward_pass_as_one_function(has_bias: bool) -> None:
    from torch._dynamo import compiled_autograd  # which takes long to import

    call, tensors, gradient = planned(), arrays(has_bias=has_bias), torch.randn(ROWS, UNITS)
    leaves = [tensor for tensor in tensors if tensor is not None]
    expected = grads(call(*tensors)[0], leaves, gradient)
    for _ in range(2):
        output = call(*tensors)[0]
        with compiled_autograd._enable(torch.compile(backend="eager")):
            expect_equal(grads(output, leaves, gradient), expected)


def test_modes_see_what_runs() -> None:
    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names, call, given = list[str](), planned(), arrays()
    call(*given)
    with Seen():
        call(*given)[0].sum().backward()
    assert names.count("aten.mm.default") >= 1
    assert "aten.tanh.default" in names


@pytest.mark.parametrize("in_inference_mode", [False, True])
def test_replays_compute_products_in_the_plans_precision(in_inference_mode: bool) -> None:
    library = torch.library.Library("ecornn_tested", "DEF")
    library.define("probe(Tensor x) -> Tensor")
    library.impl("probe", lambda x: seen.append(current("matmul")) or x.clone(), "CPU")

    def work(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.ops.ecornn_tested.probe(torch.matmul(tensors[0], tensors[0].t()))]

    seen, before = list[Any](), current("matmul")
    call = planned(forward=work, num_results=1, saved=(), products="tf32")
    with torch.inference_mode(in_inference_mode):
        for _ in range(3):
            call(torch.ones(ROWS, INPUTS))
            assert current("matmul") == before
    assert seen == [before, "tf32", "tf32"]  # Python's executor holds its own
    assert counts(call) == (1, [(2, "")])
    library._destroy()


def test_autocast_does_not_change_what_was_recorded() -> None:
    call, given = planned(), [one.detach() for one in arrays()]
    expected = call(*given)
    with torch.autocast("cpu", torch.bfloat16):
        expect_equal(call(*given), expected)


def test_inference_mode_and_gradients_that_nobody_wants() -> None:
    call, given = planned(), arrays()
    for _ in range(2):
        with torch.inference_mode():
            assert all(one.is_inference() for one in call(*given))
        with torch.no_grad():
            assert not any(one.requires_grad for one in call(*given))
        assert not any(one.requires_grad for one in call(*(one.detach() for one in given)))
        assert all(one.requires_grad for one in call(*given))


def test_recording_keeps_no_tensor_alive_and_takes_no_other_for_it() -> None:
    with torch.inference_mode(), Recorder([x := torch.ones(1000, 100)]) as recorder:  # where a view keeps no base
        first = x + 1
        view, address = first[10:].t(), first.data_ptr()
        reference = weakref.ref(first)
        del first
        assert reference() is None
        kernel(False)(Launch(3, 1), 0, (x.data_ptr(), 1, 0, view.data_ptr() + 4))  # in what the view alone keeps
        del view
        assert recorder._tensors_at(address) == []  # where the next value may lie
        second = x + 2
        kernel(False)(Launch(3, 1), 0, (x.data_ptr(), 1, 0, second.data_ptr() + 8))
    tape = recorder.tape([second])
    assert not isinstance(tape, str)
    launches = [instruction[-1] for instruction in tape[0] if instruction[0] == Kind.LAUNCH]
    assert launches == [[(0, 0, 0), (24, 3, 4)], [(0, 0, 0), (24, 4, 8)]]


def test_memory_and_views_are_recorded_without_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    operators, dispatch = list[str](), Recorder.__torch_dispatch__

    def counted(self: Recorder, function: Any, *rest: Any) -> Any:
        operators.append(function.name())
        return dispatch(self, function, *rest)

    monkeypatch.setattr(Recorder, "__torch_dispatch__", counted)
    with Recorder([]) as recorder:
        stacked = empty((2, ROWS, UNITS), torch.float16, _CPU)
        _, second = halves(stacked)
        second.zero_()
        tape = recorder.tape([second])
    assert operators == ["aten::zero_"]
    assert not isinstance(tape, str)
    code, _, outputs = tape
    assert code[0] == (Kind.EMPTY, 0, [2, ROWS, UNITS], [ROWS * UNITS, UNITS, 1], torch.float16)
    assert code[1:4] == [
        (Kind.VIEW, 1, 0, [ROWS, UNITS], [UNITS, 1], 0), (Kind.FREE, [1]),
        (Kind.VIEW, 2, 0, [ROWS, UNITS], [UNITS, 1], ROWS * UNITS),
    ]  # fmt: skip
    assert outputs == [2]


def test_recording_imports_no_compiler_of_torchs() -> None:
    assert not hasattr(Recorder.__torch_dispatch__, "__wrapped__")  # by a function that does, for seconds


def test_threads_that_record_at_once_make_one_tape() -> None:
    barrier = threading.Barrier(4, timeout=30)

    def slow(tensors: Sequence[Tensor]) -> list[Tensor]:
        barrier.wait()
        return forward(tensors)

    call = planned(forward=slow)
    threads = [threading.Thread(target=call, args=[tensor.detach() for tensor in arrays()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(call) == (4, [(0, "")])


@pytest.mark.parametrize("tape", [([(2, "aten::no_such", "", [], [])], 3, [0]), ([(2, "aten::mm", "", [1], [0])], 3, [0])])
def test_a_tape_that_cannot_be_read_is_a_refusal(tape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "tape", lambda recorder, results: tape)
    call, tensors = planned(), arrays()
    for _ in range(3):
        expect_equal(call(*tensors), by_python(tensors, (None, None))[0])
    python_runs, ((replays, refusal),) = counts(call)
    assert (python_runs, replays) == (3, 0)
    assert refusal


def test_an_error_while_recording_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "_encode", lambda *arguments: 1 / 0)
    call, tensors = planned(), arrays()
    for _ in range(2):
        expect_equal(call(*tensors), by_python(tensors, (None, None))[0])
    assert counts(call) == (2, [(0, "ZeroDivisionError: division by zero")])


def test_a_thread_without_a_context_gets_the_devices() -> None:
    work = PlannedWork("tested", _CPU, 2, (2,), 0, None, forward, backward)
    addresses = [address_of(function) for function in (_DRIVER.loaded.cuStreamIsCapturing, _DRIVER.loaded.cuCtxSetCurrent)]
    call = host_path()._library().make(executor_of(work), work.name, "cpu", 2, [2], 0, -1, True, *addresses, 1)
    context, tensors = ctypes.c_int.in_dll(_DRIVER.loaded, "context"), arrays()
    for _ in range(3):
        context.value = 0
        call(*tensors)[0].sum().backward()
        assert context.value == 1
    assert counts(call)[1] == [(2, ""), (2, "")]


def test_values_are_dropped_after_their_last_use_and_on_a_side_stream_after_the_join() -> None:
    x = torch.ones(ROWS, INPUTS)
    with Recorder([x]) as recorder:
        assert current_recorder() is recorder
        on_side = [torch.empty(ROWS, INPUTS)]
        first, second = recorder.side_by_side(lambda: None, lambda: scaled(x, 1, None, on_side[0]))
        second()
        first()
        summed = x + x
        result = summed.t() + 1
        del summed
    assert current_recorder() is None
    tape = recorder.tape([result])
    assert not isinstance(tape, str)
    kinds = [Kind(instruction[0]).name for instruction in tape[0]]
    assert kinds == ["EMPTY", "FORK", "LAUNCH", "BACK", "JOIN", "FREE", "OPERATOR", "VIEW", "FREE", "OPERATOR", "FREE"]


# Streams in a CPU's place: 0, and a pool of 0 and 7. What is done is told, a letter each: e to switch, r to record, w to wait.
_STREAMS = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <string>
using namespace c10;
static std::string told;
static thread_local StreamId current = 0;
static StreamId next_of_pool = 0;
static Device cpu(kCPU);
static Stream stream(StreamId id) { return Stream(Stream::UNSAFE, cpu, id); }
struct Told final : impl::DeviceGuardImplInterface {
    DeviceType type() const override { return kCPU; }
    Device exchangeDevice(Device) const override { return cpu; }
    Device getDevice() const override { return cpu; }
    void setDevice(Device) const override {}
    void uncheckedSetDevice(Device) const noexcept override {}
    Stream getStream(Device) const override { return stream(current); }
    Stream getStreamFromGlobalPool(Device, bool) const override { return stream(std::exchange(next_of_pool, 7)); }
    Stream exchangeStream(Stream next) const override {
        told += "e" + std::to_string(next.id());
        return stream(std::exchange(current, next.id()));
    }
    void record(void** event, const Stream& awaited, DeviceIndex, EventFlag) const override {
        *event = (void*)(awaited.id() + 1), told += "r" + std::to_string(awaited.id());
    }
    void block(void* event, const Stream& waiting) const override {
        told += "w" + std::to_string((long)event - 1) + std::to_string(waiting.id());
    }
    DeviceIndex deviceCount() const noexcept override { return 1; }
};
static const impl::DeviceGuardImplInterface* before;
extern "C" void begin() { before = impl::device_guard_impl_registry[0].exchange(new Told); }
extern "C" const char* end() { return impl::device_guard_impl_registry[0] = before, told.c_str(); }
"""


def test_side_streams_wait_and_are_waited_for_and_are_others() -> None:
    def work(tensors: Sequence[Tensor]) -> list[Tensor]:
        results = [torch.empty(ROWS, INPUTS) for _ in range(3)]
        first, second = (lambda to=to: scaled(tensors[0], to, None, results[to]) for to in (1, 2))
        if (recorder := current_recorder()) is not None:
            first, second = recorder.side_by_side(first, second)
        second()
        first()
        scaled(results[1], 1, results[2], results[0])
        return results[:1]

    folder = Path(torch.__file__).parent
    options = (f"-I{folder / 'include'}", "-std=c++20", "-Wl,--no-as-needed", str(folder / "lib/libc10.so"))
    streams = Library(_STREAMS, options=options).loaded
    streams.end.restype = ctypes.c_char_p
    launches, x = ctypes.c_long.in_dll(_DRIVER.loaded, "last_stream"), torch.randn(ROWS, INPUTS)
    streams.begin()
    try:
        call = planned(forward=work, num_results=1, saved=())
        call(x)
        launches.value = 0
        (found,) = call(x)
    finally:
        told = streams.end()
    assert torch.equal(found, 1 * x + 2 * x)
    assert counts(call) == (1, [(1, "")])
    assert told == b"r0w07e7e0r7w70"
    assert launches.value == 811  # on stream 7, then on 0, each by one more


def test_params_have_the_addresses_of_each_replay_and_all_other_bytes() -> None:
    with Recorder([x := torch.ones(2, 4)]) as recorder:
        kernel(False)(Launch(3, 1, 64), 0, (x.data_ptr() + 4, -2, 0, x.data_ptr() + 20))
    recorder._code, ((_, _, is_cooperative, function, grid, block, shared_bytes, params, pointers),) = [], recorder._code
    assert (is_cooperative, function, grid, block, shared_bytes) == (False, 1, 3, 1, 64)
    assert struct.unpack("@PiPP", params) == (x.data_ptr() + 4, -2, 0, x.data_ptr() + 20)
    assert pointers == [(0, 0, 4), (24, 0, 20)]


def test_without_a_compiler_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_ecornn.implementations._common import host_path as module

    path = module.HostPath()
    monkeypatch.setattr(module, "host_library", lambda: "no C++ compiler: g++")
    work = PlannedWork("tested", _CPU, 2, (2,), 0, None, forward, backward)
    assert path.planned_call(work) is None
    assert path.notes == "host: Python, no C++ compiler: g++"


def test_an_unknown_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, is_enabled in (("compiled", True), ("python", False), ("", True)):
        monkeypatch.setenv("ECORNN_HOST", setting)
        assert host_path().is_enabled == is_enabled
    monkeypatch.setenv("ECORNN_HOST", "c++")
    with pytest.raises(ValueError, match=r"expected ECORNN_HOST as compiled or python, got 'c\+\+'"):
        _ = host_path().is_enabled
