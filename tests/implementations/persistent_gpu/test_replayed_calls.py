"""Modules by persistent_gpu whose calls C++ replays: bit-equal to those that Python runs, in whatever they are called."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, reject, settings
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.strategies import SizeLimits, cases
from pytest_ecornn.contract import Case, SupportedCases, cells
from pytest_ecornn.implementations._common.host_path import host_path
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations._cuda.compile import with_index
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu
from pytest_ecornn.implementations.persistent_gpu.ops import planned_work
from pytest_ecornn.implementations.persistent_gpu.plan import plan_of_case
from pytest_ecornn.nn.short_calls import ShortCall
from pytest_ecornn.run.exploration import PROFILES
from tests.helpers.nn_modules import MODULES, tensors
from tests.helpers.replayed_calls import compiled_host, counts
from tests.helpers.requirements import needs_ampere, on_simulator

T, B, I = 5, 3, 4  # noqa: E741
Steps = Callable[[Any], list[Tensor]]

OPTIONS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "layers": {"num_layers": 2},
    "both directions": {"num_layers": 2, "bidirectional": True},
    "batch first, no biases": {"batch_first": True, "bias": False},
}


def make(cell: str, hidden: int, device: str, dtype: torch.dtype, **options: Any) -> Any:
    _, ours, own = MODULES[cell]
    torch.manual_seed(0)
    backend = "persistent_gpu" if device == "cuda" else "auto"
    return ours(I, hidden, **own, **options, device=device, dtype=dtype, backend=backend)


def inputs(module: Any, count: int = 5, steps: int = T, has_state: bool = False) -> Iterator[tuple[Tensor, Any]]:
    """Each time other ones: x that requires a gradient, and initial states."""
    weight, generator = module.weight_hh_l0, torch.Generator().manual_seed(1)
    outer, tracks = (B, steps) if module.batch_first else (steps, B), module.num_layers * (1 + module.bidirectional)

    def leaf(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(weight).requires_grad_()

    for _ in range(count):
        states = [leaf(tracks, B, module.hidden_size) for _ in range(1 + (module.mode == "LSTM"))]
        yield leaf(*outer, I), None if not has_state else states[0] if len(states) == 1 else tuple(states)


def trained(module: Any, **options: Any) -> list[Tensor]:
    """Results and gradients of some steps, between which an optimizer changes the weights."""
    optimizer, seen = torch.optim.SGD(module.parameters(), 1e-3), list[Tensor]()
    for x, hx in inputs(module, **options):
        optimizer.zero_grad()
        results = tensors(module(x, hx))
        sum((one * one.detach().cos()).sum() for one in results).backward()
        leaves = [x, *(() if hx is None else tensors(hx)), *module.parameters()]
        seen += [*(one.detach() for one in results), *(one.grad.clone() for one in leaves)]
        optimizer.step()
    return seen


def replays(module: Any) -> int:
    """Of all calls of a module. Each of them has been recorded."""
    calls = [call for call in module._chooser.short._calls.values() if isinstance(call, ShortCall)]
    made = [counts(call._planned) for short in calls for call in short.run._calls]
    assert made
    assert [reason for _, tapes in made for _, reason in tapes if reason] == []
    return sum(count for _, tapes in made for count, _ in tapes)


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that is allocated is NaN until it is written, in C++ too."""
    torch.use_deterministic_algorithms(True)  # with torch.utils.deterministic.fill_uninitialized_memory, as it is by default
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def compare(module: Any, run: Steps, least_replays: int) -> None:
    """Both executors give the same bits."""
    other = copy.deepcopy(module)
    expected = run(module)
    with compiled_host(), poisoned() if module.weight_hh_l0.is_cpu else nullcontext():
        found = run(other)
        assert replays(other) >= least_replays
    assert len(found) == len(expected)
    for number, (one, wanted) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, wanted), f"tensor {number} of {len(found)}"


on_clusters = on_simulator("by_kernels")


@on_clusters
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", MODULES)
def test_training_on_clusters(cell: str, options: str, dtype: torch.dtype) -> None:
    compare(make(cell, 9, "cpu", dtype, **OPTIONS[options]), trained, 4)


@on_clusters
@pytest.mark.parametrize("cell", MODULES)
def test_initial_states_and_one_step_on_clusters(cell: str) -> None:
    compare(make(cell, 9, "cpu", torch.float16), lambda module: trained(module, has_state=True), 4)
    compare(make(cell, 9, "cpu", torch.float16), lambda module: trained(module, steps=1), 4)
    compare(make(cell, 9, "cpu", torch.float16, num_layers=2), lambda module: trained(module, steps=1, has_state=True), 4)


def inferred(module: Any) -> list[Tensor]:
    with torch.inference_mode():
        return [one.clone() for x, hx in inputs(module) for one in tensors(module(x, hx))]


@on_clusters
@pytest.mark.parametrize("cell", MODULES)
def test_inference_on_clusters(cell: str) -> None:
    compare(make(cell, 9, "cpu", torch.float16, num_layers=2), inferred, 2)


def with_lengths(module: Any) -> list[Tensor]:
    lengths, seen = torch.tensor([T, 1, 3], device=module.weight_hh_l0.device), list[Tensor]()
    for x, _ in inputs(module):
        results = tensors(module(x, lengths=lengths))
        seen += [*results, *torch.autograd.grad(sum(one.sum() for one in results), [x, *module.parameters()])]
    return [one.detach() for one in seen]


def packed(module: Any) -> list[Tensor]:
    """Of as many steps and other lengths in each call."""
    seen = list[Tensor]()
    for number, (x, _) in enumerate(inputs(module)):
        rows = pack_padded_sequence(x, torch.tensor([1 + number, T, 2]), module.batch_first, enforce_sorted=False)
        results = tensors(module(rows))
        seen += [*results, *torch.autograd.grad(sum(one.sum() for one in results), [x, *module.parameters()])]
    return [one.detach() for one in seen]


@on_clusters
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("run", [with_lengths, packed])
def test_lengths_on_clusters(cell: str, run: Steps) -> None:
    compare(make(cell, 9, "cpu", torch.float16, bidirectional=True), run, 4)


def moved(module: Any) -> list[Tensor]:
    """Steps after each of which the weights lie elsewhere, or are others."""
    seen = list[Tensor]()
    for number in range(3):
        seen += trained(module)
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()
        if number:
            module.weight_hh_l0 = nn.Parameter(module.weight_hh_l0.detach() * 2)
    return seen


@on_clusters
def test_weights_that_move_on_clusters() -> None:
    compare(make("lstm", 9, "cpu", torch.float16), moved, 4)


@on_clusters
def test_weights_that_move_are_not_recorded_again_on_clusters() -> None:
    with compiled_host():
        module = make("lstm", 9, "cpu", torch.float16)
        for _ in range(4):
            trained(module)
            for parameter in module.parameters():
                parameter.data = torch.cat([parameter.data.flatten()] * 2)[: parameter.numel()].view_as(parameter)
        (short,) = (call for call in module._chooser.short._calls.values() if isinstance(call, ShortCall))
        python_runs, tapes = counts(short.run._calls[0]._planned)
        assert (python_runs, [count for count, _ in tapes]) == (2, [17, 17])


def with_dropout(module: Any) -> list[Tensor]:
    seen = list[Tensor]()
    for x, _ in inputs(module):
        torch.manual_seed(3)
        results = tensors(module(x))
        seen += [*results, *torch.autograd.grad(results[0].sum(), [x, *module.parameters()])]
    return [one.detach() for one in seen]


@on_clusters
def test_dropout_between_layers_on_clusters() -> None:
    compare(make("gru", 9, "cpu", torch.float16, num_layers=2, dropout=0.5), with_dropout, 8)


def in_many_ways(module: Any) -> list[Tensor]:
    trained(module)
    seen = list[Tensor]()
    for x, _ in inputs(module, 3):
        leaves = [x, *module.parameters()]
        output, _ = module(x)
        output.register_hook(lambda gradient: 2 * gradient)
        for _ in range(2):
            seen += torch.autograd.grad(output.sum(), leaves, retain_graph=True)
        output, _ = checkpoint(module, x, use_reentrant=False)
        seen += torch.autograd.grad(output.sum(), leaves)
        with torch.autograd.graph.save_on_cpu():
            output, _ = module(x)
        seen += torch.autograd.grad(output.sum(), leaves)
        (of_x,) = torch.autograd.grad(module(x)[0].sum(), [x], create_graph=True)
        seen += torch.autograd.grad(of_x.square().sum(), [x])
    return seen


@on_clusters
def test_hooks_retain_graph_checkpoint_and_double_backward_on_clusters() -> None:
    compare(make("gru", 9, "cpu", torch.float32), in_many_ways, 8)


def under_autocast(run: Steps, dtype: torch.dtype = torch.bfloat16) -> Steps:
    def within(module: Any) -> list[Tensor]:
        with torch.autocast(module.weight_hh_l0.device.type, dtype):
            return run(module)

    return within


@on_clusters
@pytest.mark.parametrize("run", [trained, inferred, with_dropout, in_many_ways, with_lengths, moved])
def test_autocast_on_clusters(run: Steps) -> None:
    layers = 2 if run is with_dropout else 1
    module = make("gru", 9, "cpu", torch.float32, num_layers=layers, dropout=0.5 * (layers > 1))
    compare(module, under_autocast(run), 2 if run is inferred else 4)


@on_clusters
def test_a_checkpoint_under_autocast_recomputes_what_the_other_executor_saved_on_clusters() -> None:
    with compiled_host():
        module = make("lstm", 9, "cpu", torch.float32)
        for number, (x, _) in enumerate(inputs(module, 8)):
            with torch.autocast("cpu", torch.bfloat16):
                output, _ = checkpoint(module, x, use_reentrant=False)
            if number == 6:
                assert replays(module) > 0
                module._chooser.forget()  # so that Python recomputes
            output.sum().backward()


@on_clusters
def test_autocast_saves_copies_alone_on_clusters() -> None:
    with compiled_host():
        module = make("lstm", 9, "cpu", torch.float32)
        for x, _ in inputs(module, 6):
            y = x * 2
            with torch.autocast("cpu", torch.bfloat16):
                output, _ = module(y)
            with torch.no_grad():
                y += 1
                for parameter in module.parameters():
                    parameter += 1e-3
            reference = weakref.ref(y)
            del y
            assert reference() is None
            output.sum().backward()
        assert replays(module) > 0


@on_clusters
def test_autocast_keeps_the_parameters_dtype_and_its_own_tapes_on_clusters() -> None:
    with compiled_host():
        module = make("lstm", 9, "cpu", torch.float32)
        for dtype in (torch.bfloat16, torch.float16, None):
            for x, _ in inputs(module):
                with nullcontext() if dtype is None else torch.autocast("cpu", dtype):
                    output, _ = module(x)
                assert output.dtype == (dtype or torch.float32)
                output.sum().backward()
                assert x.grad.dtype == torch.float32
        assert {parameter.grad.dtype for parameter in module.parameters()} == {torch.float32}
        assert replays(module) == 3 * 2 * 2
        for call in module._chooser.short._calls.values():
            assert isinstance(call, ShortCall)
            cast = call.run._calls[0]._cast
            assert cast is None or counts(cast) == (2, [(2, ""), (2, "")])


def distributed(module: Any) -> list[Tensor]:
    wrapped, seen = DistributedDataParallel(module), list[Tensor]()
    for x, _ in inputs(module):
        module.zero_grad()
        wrapped(x)[0].sum().backward()
        seen += [parameter.grad.clone() for parameter in module.parameters()]
    return seen


@contextmanager
def process_group(backend: str, folder: Path) -> Iterator[None]:
    """Of this process alone."""
    torch.distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@on_clusters
def test_distributed_data_parallel_on_clusters(tmp_path: Path) -> None:
    with process_group("gloo", tmp_path):
        compare(make("gru", 9, "cpu", torch.float32, bidirectional=True), distributed, 4)


@on_clusters
def test_the_notes_say_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make("lstm", 9, "cpu", torch.float16)
    with compiled_host():
        module(next(inputs(module))[0])
        assert "host" not in module.notes()  # Python runs a first call
        trained(module)
        assert module.notes().endswith("; host: compiled")


def compare_on(case: Case) -> None:
    """Both executors give the same bits on a drawn case."""
    device = torch.device("cpu") if case.device == "cpu" else with_index(case.device)
    problem = contents.problem(case)
    if device.type == "cuda" and PersistentGpu().unsupported(case, device) is not None:
        reject()
    names = [name + suffix for _, _, suffix in cells.parameter_suffixes(case) for name in PARAMETERS]
    floats = [problem.x, *cells.unpack_state(problem.state), *(problem.weights.get(name) for name in names)]
    x, *others = [None if tensor is None else tensor.to(device) for tensor in floats]
    lengths = None if problem.lengths is None else problem.lengths.to(device)
    states = len(cells.unpack_state(problem.state))
    tensors = [contiguous_last_dim(x), lengths, *(state.contiguous() for state in others[:states]), *others[states:]]
    leaves = [tensor.requires_grad_(case.training) for tensor in tensors if tensor is not None and tensor is not lengths]
    work = planned_work(plan_of_case(case, device), states)
    call = host_path().planned_call(work)
    with torch.no_grad():
        *results, _ = forward = [*work.forward(tensors), None]
        results = results[: work.num_results]
        d_results = [torch.ones_like(result) for result in results]
        saved, needs = [forward[at] for at in work.saved], [tensor is not None and tensor is not lengths for tensor in tensors]
        given = [*tensors, *saved, *d_results]
        gradients = [d for d in work.backward(needs, False, False, given) if d is not None] if case.training else []
    for _ in range(3):
        outputs = call(*tensors)
        replayed = torch.autograd.grad(outputs, leaves, d_results) if case.training else []
        for number, (ours, expected) in enumerate(zip([*outputs, *replayed], [*results, *gradients], strict=True)):
            bits = torch.int16 if expected.itemsize == 2 else torch.int32  # which are equal of NaN, too
            assert torch.equal(ours.view(bits), expected.view(bits)), f"tensor {number} of {case}"
    assert [*counts(call)[1]] == [(2, "")] * (1 + case.training), str(case)


def compare_drawn(cell: str, dtype: str, device: str, examples: int, sizes: SizeLimits) -> None:
    domain = SupportedCases(cells=(cell,), sparse=False, projected=False)  # as modules have them
    options = settings(max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    with compiled_host():
        options(given(cases(domain, cell, dtype, device, sizes))(compare_on))()


@on_clusters
def test_drawn_cases_on_clusters() -> None:
    compare_drawn("gru", "float16", "cpu", 6, SizeLimits(steps=8, batch=5, hidden=17, inputs=9))


# On a GPU, where autograd runs the backward pass on a thread of its own.

GPU_CASES: dict[str, tuple[str, int, torch.dtype, dict[str, Any]]] = {
    "LSTM 512 float16": ("lstm", 512, torch.float16, {}),
    "LSTM 650 bfloat16, padded": ("lstm", 650, torch.bfloat16, {"num_layers": 2}),
    "LSTM 2 x 200 float16, a wavefront": ("lstm", 200, torch.float16, {"num_layers": 2}),
    "GRU 128 float32": ("gru", 128, torch.float32, {}),
    "GRU 3 x 96, both directions": ("gru", 96, torch.float32, {"num_layers": 3, "bidirectional": True}),
    "LSTM 1024, both directions, batch first": ("lstm", 1024, torch.float16, {"bidirectional": True, "batch_first": True}),
    "RNN 1760": ("rnn_tanh", 1760, torch.float16, {}),
}
on_each_gpu_case = pytest.mark.parametrize("case", GPU_CASES)


def of_case(case: str) -> Any:
    cell, hidden, dtype, options = GPU_CASES[case]
    return make(cell, hidden, "cuda", dtype, **options)


@needs_ampere
@on_each_gpu_case
@pytest.mark.parametrize("has_state", [False, True])
def test_training_on_a_gpu(case: str, has_state: bool) -> None:
    compare(of_case(case), lambda module: trained(module, has_state=has_state, steps=20), 4)


@needs_ampere
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_precisions_of_products_on_a_gpu(precision: str) -> None:
    from pytest_ecornn.reference.precision import current, fp32_precision

    with fp32_precision("rnn", precision):
        before = current("matmul"), torch._C._get_cublas_allow_fp16_reduced_precision_reduction()
        compare(of_case("GRU 128 float32"), trained, 4)
        compare(of_case("LSTM 512 float16"), trained, 4)
        assert before == (current("matmul"), torch._C._get_cublas_allow_fp16_reduced_precision_reduction())


@needs_ampere
@on_each_gpu_case
def test_two_hundred_steps_on_a_gpu(case: str) -> None:
    compare(of_case(case), lambda module: trained(module, count=200)[-3:], 190)


@needs_ampere
def test_inference_lengths_and_dropout_on_a_gpu() -> None:
    for case in GPU_CASES:
        compare(of_case(case), inferred, 2)
    for run in (with_lengths, packed):
        compare(of_case("LSTM 512 float16"), run, 4)
        compare(of_case("GRU 3 x 96, both directions"), run, 4)
    compare(make("gru", 96, "cuda", torch.float16, num_layers=2, dropout=0.5), with_dropout, 8)


@needs_ampere
def test_weights_that_move_on_a_gpu() -> None:
    compare(of_case("LSTM 512 float16"), moved, 4)


@needs_ampere
@on_each_gpu_case
def test_other_streams_on_a_gpu(case: str) -> None:
    def on_streams(module: Any) -> list[Tensor]:
        seen = list[Tensor]()
        for stream in (None, torch.cuda.Stream(), torch.cuda.Stream()):
            torch.cuda.synchronize()
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                seen += trained(module, steps=50)
            torch.cuda.synchronize()
        return seen

    compare(of_case(case), on_streams, 8)


@needs_ampere
@on_each_gpu_case
def test_a_captured_step_on_a_gpu(case: str) -> None:
    def captured(module: Any) -> list[Tensor]:
        trained(module)
        (x, _), (other, _) = inputs(module, 2)
        leaves, stream = [x, *module.parameters()], torch.cuda.Stream()

        def step() -> list[Tensor]:
            results = tensors(module(x))
            return [*results, *torch.autograd.grad(results[0].sum(), leaves)]

        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = step()
        x.data.copy_(other)
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        return [one.detach().clone() for one in outputs]

    compare(of_case(case), captured, 8)


@needs_ampere
def test_hooks_retain_graph_checkpoint_and_double_backward_on_a_gpu() -> None:
    compare(of_case("GRU 128 float32"), in_many_ways, 8)


@needs_ampere
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cell", MODULES)
def test_drawn_cases_on_a_gpu(cell: str, dtype: str) -> None:
    compare_drawn(cell, dtype, "cuda", 25, SizeLimits(steps=PROFILES["thorough"].steps))


@needs_ampere
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_on_a_gpu(dtype: torch.dtype) -> None:
    for run in (trained, inferred, in_many_ways, with_lengths):
        compare(make("lstm", 512, "cuda", torch.float32), under_autocast(run, dtype), 2)
    dropped = make("gru", 96, "cuda", torch.float32, num_layers=2, dropout=0.5)
    compare(dropped, under_autocast(with_dropout, dtype), 4)


@needs_ampere
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # a new thread makes its context by it
def test_threads_on_a_gpu() -> None:
    module, failures = of_case("LSTM 512 float16"), list[BaseException]()
    cases = list(inputs(module, 8))

    def gradients(x: Tensor) -> list[Tensor]:
        output, _ = module(x)
        return [output.detach(), *torch.autograd.grad(output.sum(), [x, *module.parameters()])]

    expected = [gradients(x) for x, _ in cases]

    def steps(number: int) -> None:
        try:
            for _ in range(50):
                found = gradients(cases[number][0])
                assert all(torch.equal(one, other) for one, other in zip(found, expected[number], strict=True))
        except BaseException as error:
            failures.append(error)

    with compiled_host():
        module._chooser.forget()
        threads = [threading.Thread(target=steps, args=(number,)) for number in range(len(cases))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


@needs_ampere
def test_distributed_data_parallel_on_a_gpu(tmp_path: Path) -> None:
    with process_group("nccl", tmp_path):
        compare(of_case("GRU 3 x 96, both directions"), distributed, 4)


@needs_ampere
def test_nothing_is_left_of_many_steps_on_a_gpu() -> None:
    with compiled_host():
        module = of_case("GRU 3 x 96, both directions")
        ((x, _),) = inputs(module, 1)

        def steps(count: int) -> int:
            for _ in range(count):
                module.zero_grad()
                module(x)[0].sum().backward()
            torch.cuda.synchronize()
            return torch.cuda.memory_allocated()

        steps(20)
        assert steps(2000) == steps(2000)
        assert replays(module) > 4000
