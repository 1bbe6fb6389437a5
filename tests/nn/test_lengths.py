"""Padded sequences with lengths: what each gives alone, by torch.nn, by the kernels on clusters of a CPU, and by scans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pytest_ecornn import nn
from pytest_ecornn.implementations._common.weight_gradients import WeightGradients
from pytest_ecornn.nn import functional, lengths_by_torch, short_calls
from pytest_ecornn.reference.precision import fp32_precision
from tests.helpers import nn_kernels, persistent
from tests.helpers.nn_modules import MODULES, tensors
from tests.helpers.onednn import runs_lstm_under_autocast
from tests.helpers.requirements import needs_compiler, needs_gpu

T, B, I, H = 6, 4, 3, 5  # noqa: E741
LENGTHS, SOME_EMPTY = [3, 6, 1, 4], [0, 4, 6, 0]
STRIDED = torch.tensor(LENGTHS).repeat_interleave(3)[::3]
CELLS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    **{cell: (ours, own) for cell, (_, ours, own) in MODULES.items()},
    "mingru": (nn.MinGRU, {}),
    "minlstm": (nn.MinLSTM, {"positive": True}),
}
of_each = pytest.mark.parametrize("cell", CELLS)
of_each_in_torch = pytest.mark.parametrize("cell", MODULES)
# RNN, LSTM and GRU on a CPU by each of what runs them. Padded: as on a GPU and where a compiler looks on.
_BY = ["torch", "torch, padded", pytest.param("kernels", marks=needs_compiler)]
by_each_in_torch = pytest.mark.parametrize("backend", _BY, indirect=True)
by_each = pytest.mark.parametrize(
    ("cell", "backend"),
    [
        *(pytest.param(cell, "kernels", marks=needs_compiler) for cell in MODULES),
        *((cell, backend) for cell in MODULES for backend in ("torch", "torch, padded")),
        *((cell, "scan") for cell in CELLS if cell not in MODULES),
    ],
    indirect=["backend"],
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "bias": False},
    {"num_layers": 2, "batch_first": True},
]
on_cpu, by_kernels = persistent.on_cpu, nn_kernels.by_kernels  # fixtures
NEAR = {"rtol": 1e-4, "atol": 1e-5}
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # read by torch's compiler
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What runs a module on a CPU."""
    if request.param == "kernels":
        request.getfixturevalue("by_kernels")
    if request.param == "torch, padded":
        monkeypatch.setattr(lengths_by_torch, "_can_pack", lambda x: False)
    return str(request.param)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()  # other tests' graphs of forward count to the limit of recompilation
    yield
    torch.compiler.reset()


def made(cell: str, **options: Any) -> Any:
    kind, own = CELLS[cell]
    torch.manual_seed(0)
    return kind(I, H, **own, **options)


def padded(module: Any, lengths: list[int], fill: float = float("nan")) -> Tensor:
    """A leaf of random values whose padding holds `fill`."""
    weight = module.weight_ih_l0
    torch.manual_seed(1)
    x = torch.randn(T, B, I, dtype=weight.dtype).to(weight.device)
    x[torch.arange(T)[:, None] >= torch.tensor(lengths)] = fill
    return (x.transpose(0, 1).contiguous() if module.batch_first else x).requires_grad_()


def states(module: Any) -> Any:
    """Leaves for initial states."""
    weight, tracks = module.weight_ih_l0, module.num_layers * (1 + module.bidirectional)
    is_lstm = isinstance(module, nn.LSTM)
    widths = (getattr(module, "proj_size", 0) or H, H)[: 1 + is_lstm]
    torch.manual_seed(2)
    leaves = [torch.randn(tracks, B, width, dtype=weight.dtype).to(weight.device).requires_grad_() for width in widths]
    return tuple(leaves) if is_lstm else leaves[0]


def one_by_one(module: Any, x: Tensor, hx: Any, lengths: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Output and final states of calls of one sequence each, without its padding."""
    rows, outputs, finals = x.unbind(0 if module.batch_first else 1), [], []
    for number, length in enumerate(lengths):
        first = None if hx is None else [state[:, number].contiguous() for state in tensors(hx)]
        if length == 0:
            widths = [H] * (1 + isinstance(module, nn.LSTM))
            zeros = [x.new_zeros(module.num_layers * (1 + module.bidirectional), width) for width in widths]
            output, final = x.new_zeros(T, H * (1 + module.bidirectional)), first or zeros
        else:
            given = first if first is None else tuple(first) if len(first) > 1 else first[0]
            output, state = module(rows[number][:length], given)
            output, final = torch.nn.functional.pad(output, (0, 0, 0, T - length)), tensors(state)
        outputs.append(output)
        finals.append(final)
    output = torch.stack(outputs, 0 if module.batch_first else 1)
    return output, [torch.stack(of_all, 1) for of_all in zip(*finals, strict=True)]


def gradients(results: Any, leaves: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    loss = sum((one * one.detach().cos()).sum() + one.square().sum() for one in tensors(results))
    return torch.autograd.grad(loss, leaves, **options)  # type: ignore[arg-type]


def expect_alike(module: Any, lengths: list[int], has_states: bool = True, call: Any = None, given: Any = None) -> None:
    """A call's results and gradients are those of its sequences alone. given: the lengths as the call has them."""
    x, hx = padded(module, lengths), states(module) if has_states else None
    leaves = [x, *(tensors(hx) if has_states else []), *module.parameters()]
    given = torch.tensor(lengths) if given is None else given
    results = (module if call is None else call)(x, hx, lengths=given)
    expected = one_by_one(module, x, hx, lengths)
    torch.testing.assert_close(tensors(results), tensors(expected), **NEAR)
    of_x, *others = gradients(results, leaves)
    torch.testing.assert_close([of_x, *others], [*gradients(expected, leaves)], **NEAR)
    assert not tensors(results)[0][x.detach().isnan().any(-1)].any()
    assert not of_x[x.detach().isnan().any(-1)].any()


@pytest.mark.test_all(keep=3)
@by_each
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("lengths", [LENGTHS, SOME_EMPTY])
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.usefixtures("backend")
def test_each_sequence_gives_what_it_gives_alone(
    cell: str, options: dict[str, Any], lengths: list[int], has_states: bool
) -> None:
    expect_alike(made(cell, **options), lengths, has_states)


@by_each_in_torch
@pytest.mark.parametrize("lengths", [LENGTHS, SOME_EMPTY])
@pytest.mark.usefixtures("backend")
def test_projected_states(lengths: list[int]) -> None:
    module = made("lstm", proj_size=2, num_layers=2, bidirectional=True)
    x, hx = padded(module, lengths), states(module)
    results = module(x, hx, lengths=lengths)
    for number, length in enumerate(lengths):
        first = tuple(state[:, number] for state in hx)
        output, final = module(x[:length, number], first) if length else (x.new_zeros(0, 4), first)
        found = results[0][:length, number], tuple(state[:, number] for state in results[1])
        torch.testing.assert_close(found, (output, final), **NEAR)
    assert not any(one.isnan().any() for one in gradients(results, [x, *hx, *module.parameters()]))


@pytest.mark.test_all(keep=2)
@by_each
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("backend")
def test_they_are_those_of_packed_sequences(cell: str, options: dict[str, Any]) -> None:
    module = made(cell, **options)
    x, hx = padded(module, LENGTHS, fill=0.0), states(module)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), module.batch_first, enforce_sorted=False)
    output, final = module(packed, hx)
    output, _ = pad_packed_sequence(output, module.batch_first, total_length=T)
    results, leaves = module(x, hx, lengths=LENGTHS), [x, *tensors(hx), *module.parameters()]
    torch.testing.assert_close(results, (output, final), **NEAR)
    torch.testing.assert_close(gradients(results, leaves), gradients((output, final), leaves), **NEAR)


@pytest.mark.parametrize(
    ("cell", "backend"),
    [("gru", "torch"), pytest.param("gru", "kernels", marks=needs_compiler), ("mingru", "scan")],
    indirect=["backend"],
)
@pytest.mark.parametrize(
    "given",
    [LENGTHS, tuple(LENGTHS), torch.tensor(LENGTHS, dtype=torch.int32), torch.tensor(LENGTHS, dtype=torch.uint8), STRIDED],
    ids=["list", "tuple", "int32", "uint8", "strided"],
)
@pytest.mark.usefixtures("backend")
def test_lengths_as_they_come(cell: str, given: Any) -> None:
    expect_alike(made(cell, bidirectional=True), LENGTHS, given=given)


@by_each
@pytest.mark.usefixtures("backend")
def test_without_gradients(cell: str) -> None:
    module = made(cell, num_layers=2)
    x, hx = padded(module, SOME_EMPTY), states(module)
    with torch.no_grad():
        for lengths in (SOME_EMPTY, [0] * B, [T] * B):
            rows = padded(module, lengths)
            found, expected = module(rows, hx, lengths=lengths), one_by_one(module, rows, hx, lengths)
            torch.testing.assert_close(tensors(found), tensors(expected), **NEAR)
        one_step = module(x[:1], hx, lengths=[1, 0, 1, 0])
        torch.testing.assert_close([one[:, 1] for one in tensors(one_step[1])], [one[:, 1] for one in tensors(hx)])
        assert not one_step[0][0, 1].any()


@of_each_in_torch
@by_each_in_torch
@pytest.mark.parametrize("lengths", [LENGTHS, SOME_EMPTY])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}])
@pytest.mark.usefixtures("backend")
def test_gradients_of_gradients(cell: str, lengths: list[int], options: dict[str, Any]) -> None:
    module = made(cell, **options)
    x, hx = padded(module, lengths), states(module)
    leaves, second = [x, *tensors(hx), *module.parameters()], []
    for results in (module(x, hx, lengths=lengths), one_by_one(module, x, hx, lengths)):
        first = gradients(results, leaves, create_graph=True)
        second.append(gradients(first, leaves))
    torch.testing.assert_close(*second, rtol=1e-3, atol=1e-3)


def test_gradients_of_gradients_by_the_loop() -> None:
    module = made("mingru", backend="loop")
    x = padded(module, SOME_EMPTY)
    first = gradients(module(x, lengths=SOME_EMPTY), [x, *module.parameters()], create_graph=True)
    second = gradients(first, [x, *module.parameters()])
    assert not any(one.isnan().any() for one in second)


@pytest.mark.parametrize("cell", ["mingru", "minlstm"])
@pytest.mark.parametrize("backend", ["scan_cpu", "loop"])
def test_backends_of_scans(cell: str, backend: str) -> None:
    module = made(cell, num_layers=2, bidirectional=True, backend=backend)
    expect_alike(module, SOME_EMPTY)
    assert module.notes().startswith(backend)


def test_resets_beside_lengths() -> None:
    module = made("mingru", bidirectional=True)
    x, resets = padded(module, LENGTHS), torch.zeros(T, B, dtype=torch.bool)
    resets[2, 1] = resets[2, 3] = resets[5, 0] = True
    output, final = module(x, None, resets, LENGTHS)
    for number, length in enumerate(LENGTHS):
        alone = module(x[:length, number], None, resets[:length, number])
        torch.testing.assert_close((output[:length, number], final[:, number]), alone, **NEAR)


@by_each
@pytest.mark.usefixtures("backend")
def test_the_functional_form(cell: str) -> None:
    module, form = made(cell, num_layers=2), getattr(functional, cell.partition("_")[0])
    x, hx = padded(module, SOME_EMPTY), states(module)
    options = {"nonlinearity": "relu"} if cell == "rnn_relu" else CELLS[cell][1]
    found = form(x, dict(module.named_parameters()), hx, lengths=SOME_EMPTY, **options)
    torch.testing.assert_close(found, module(x, hx, lengths=SOME_EMPTY))


@by_each
@pytest.mark.usefixtures("backend")
def test_dropout_between_layers(cell: str) -> None:
    module, x = made(cell, num_layers=2, dropout=1.0), padded(made(cell), SOME_EMPTY)
    kind, own = CELLS[cell]
    second = kind(H, H, **own)
    weights = {name.replace("_l1", "_l0"): value for name, value in module.state_dict().items() if name.endswith("_l1")}
    second.load_state_dict(weights)
    output = module(x, lengths=SOME_EMPTY)[0]
    torch.testing.assert_close(output, second(x.new_zeros(T, B, H), lengths=SOME_EMPTY)[0])
    assert not any(one.isnan().any() for one in gradients(output, [x, *module.parameters()]))
    module.dropout = 0.5
    assert not torch.equal(module(x, lengths=SOME_EMPTY)[0], module(x, lengths=SOME_EMPTY)[0])


@by_each
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.usefixtures("backend")
def test_checkpoints(cell: str, reentrant: bool) -> None:
    module = made(cell)
    found = []
    for run in (module, lambda *given, **named: torch.utils.checkpoint.checkpoint(module, *given, use_reentrant=reentrant)):
        x = padded(module, SOME_EMPTY)
        output = run(x, None, None, torch.tensor(SOME_EMPTY))[0]
        module.zero_grad()
        output.square().sum().backward()
        found.append([x.grad, *(parameter.grad for parameter in module.parameters())])
    torch.testing.assert_close(*found)


@by_each
def test_autocast(cell: str, backend: str) -> None:
    module = made(cell)
    x, hx = padded(module, SOME_EMPTY), states(module)
    wanted = module(x, hx, lengths=SOME_EMPTY)[0]
    whole = padded(module, [T] * B)
    packed = pack_padded_sequence(whole, torch.tensor(LENGTHS), enforce_sorted=False)  # torch casts no such LSTM
    like = packed if backend == "torch" else whole
    if backend == "torch, padded" and cell == "lstm" and not runs_lstm_under_autocast():
        pytest.skip("torch.nn.LSTM raises under autocast")
    with torch.autocast("cpu", torch.bfloat16):
        found, dtypes = tensors(module(x, hx, lengths=SOME_EMPTY)), {one.dtype for one in tensors(module(like, hx))}
    assert {one.dtype for one in found} == dtypes
    torch.testing.assert_close(found[0].float(), wanted, rtol=5e-2, atol=5e-2)
    assert not found[0][x.isnan().any(-1)].any()


@needs_compiler
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}])
@pytest.mark.parametrize("by", ["a launch", "products"])
@pytest.mark.usefixtures("by_kernels")
def test_gradients_of_all_of_a_layers_weights_at_once(
    cell: str, has_states: bool, options: dict[str, Any], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, by_products, in_one_launch = [], WeightGradients.for_layer, WeightGradients.in_one_launch

    def for_layer(gradients: WeightGradients, *given: Any, **options: Any) -> Any:
        computed.append(given[2])
        return by_products(gradients, *given, **options)

    def of_layers(gradients: WeightGradients, layers: Any) -> Any:
        computed.extend(layer.inputs for layer in layers)
        return in_one_launch(gradients, layers)

    if by == "products":
        monkeypatch.setattr(WeightGradients, "suit_one_launch", lambda self, width: False)
    monkeypatch.setattr(WeightGradients, "for_layer", for_layer)
    monkeypatch.setattr(WeightGradients, "in_one_launch", of_layers)
    module = made(cell, **options)
    expect_alike(module, SOME_EMPTY, has_states)
    starts_apart = has_states and module.bidirectional
    assert sum(inputs.shape[:2] == (T, B) for inputs in computed) == (0 if starts_apart else module.num_layers)


# Compilers.


@pytest.mark.parametrize(
    ("cell", "by"),
    [*((cell, "torch") for cell in CELLS), *(pytest.param(cell, "kernels", marks=needs_compiler) for cell in MODULES)],
)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}])
@pytest.mark.usefixtures("fresh_compiler")
def test_torch_compile(cell: str, options: dict[str, Any], by: str, request: pytest.FixtureRequest) -> None:
    if by == "kernels":
        request.getfixturevalue("by_kernels")
    module = made(cell, **options)
    # torch 2.13 fails on oneDNN's LSTM under aot_eager in training, on torch.nn's module too.
    backend = "eager" if (cell, by) == ("lstm", "torch") else "aot_eager"
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    for lengths in (LENGTHS, SOME_EMPTY):
        expect_alike(module, lengths, call=compiled)
    found = compiled(padded(module, [T, T, 0, 0]), lengths=torch.tensor([T + 1, T, 0, -1]))
    torch.testing.assert_close(found, module(padded(module, [T, T, 0, 0]), lengths=[T, T, 0, 0]), **NEAR)


@of_each
@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")  # of torch.nn's modules too
def test_torch_export(cell: str) -> None:
    module = made(cell, bidirectional=True)
    given = padded(module, LENGTHS).detach(), states(module), None, torch.tensor(LENGTHS)
    exported = torch.export.export(module, given).module()
    for lengths in (LENGTHS, SOME_EMPTY):
        x, others = padded(module, lengths).detach(), (states(module), None, torch.tensor(lengths))
        torch.testing.assert_close(exported(x, *others), module(x, *others), **NEAR)


@of_each
def test_torch_func(cell: str) -> None:
    module, x = made(cell, bidirectional=True), padded(made(cell), SOME_EMPTY).detach()
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(given: dict[str, Tensor]) -> Tensor:
        output: Tensor = torch.func.functional_call(module, given, (x,), {"lengths": torch.tensor(SOME_EMPTY)})[0]
        return output.square().sum()

    module(x, lengths=SOME_EMPTY)[0].square().sum().backward()
    found = torch.func.grad(loss)(parameters)
    torch.testing.assert_close(found, {name: one.grad for name, one in module.named_parameters()}, **NEAR)


@of_each
def test_tensors_without_data(cell: str) -> None:
    module = CELLS[cell][0](I, H, device="meta", **CELLS[cell][1])
    output, _ = module(torch.empty(T, B, I, device="meta"), lengths=torch.tensor(LENGTHS))
    assert output.shape == (T, B, H)


# What is refused, and what runs.


@of_each
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 6, 1], r"expected lengths as \(4,\) of integers, got \(3,\) of torch.int64"),
        (torch.tensor([LENGTHS]), r"expected lengths as \(4,\) of integers, got \(1, 4\) of torch.int64"),
        (torch.tensor(3), r"expected lengths as \(4,\) of integers, got \(\) of torch.int64"),
        ([3.0, 6.0, 1.0, 4.0], r"expected lengths as \(4,\) of integers, got \(4,\) of torch.float32"),
        (torch.ones(B, dtype=torch.bool), r"expected lengths as \(4,\) of integers, got \(4,\) of torch.bool"),
        ([3, 7, 1, 4], "expected lengths from 0 to 6, got 1 to 7"),
        (torch.tensor([3, -1, 1, 4], dtype=torch.int8), "expected lengths from 0 to 6, got -1 to 4"),
    ],
)
def test_other_lengths_are_refused(cell: str, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(cell)(torch.ones(T, B, I), lengths=lengths)


@of_each
def test_lengths_beside_other_inputs_are_refused(cell: str) -> None:
    module, x = made(cell), torch.ones(T, B, I)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    with pytest.raises(ValueError, match="expected no lengths beside a PackedSequence, which has its own"):
        module(packed, lengths=LENGTHS)
    with pytest.raises(ValueError, match=r"expected an input of three dimensions beside lengths, got \(6, 3\)"):
        module(x[:, 0], lengths=[3])


@of_each_in_torch
@by_each_in_torch
@pytest.mark.usefixtures("backend")
def test_torchs_own_errors(cell: str) -> None:
    module, x = made(cell), torch.ones(T, B, I)
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
        module(torch.ones(T, B, I + 1), lengths=LENGTHS)
    with pytest.raises(RuntimeError, match="Expected hidden"):
        module(x, tuple(state[:, 1:] for state in states(module)) if cell == "lstm" else states(module)[:, 1:], lengths=LENGTHS)
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0"):
        module(x[:0], lengths=[0] * B)
    assert module(x[:, :0], lengths=torch.ones(0, dtype=torch.int8))[0].shape == (T, 0, H)


def test_what_ran_is_said() -> None:
    module = made("gru")
    module(torch.ones(T, B, I), lengths=LENGTHS)
    assert module.notes() == "torch: a test compares with torch.nn"
    with pytest.raises(ValueError, match="on cpu: the kernels run on a CUDA device"):
        made("gru", backend="persistent_gpu")(torch.ones(T, B, I), lengths=LENGTHS)


@needs_compiler
@pytest.mark.usefixtures("by_kernels")
def test_the_kernels_run_wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in ("auto", "heuristic", "persistent_gpu"):
        module = made("gru", backend=backend)
        for _ in range(3):
            module(torch.ones(T, B, I), lengths=torch.tensor(LENGTHS))
            assert module.notes().startswith("persistent_gpu: with lengths the kernels run wherever they can, untimed")
    module = made("gru", backend="torch")
    module(torch.ones(T, B, I), lengths=LENGTHS)
    assert module.notes() == "torch: backend is torch"
    module = made("lstm", proj_size=2)
    module(torch.ones(T, B, I), lengths=LENGTHS)
    assert module.notes() == "torch: expected proj_size 0, got 2: the kernels do not project states"
    monkeypatch.setenv("ECORNN_AUTO", "torch")
    module = made("gru")
    module(torch.ones(T, B, I), lengths=LENGTHS)
    assert module.notes() == "torch; forced: ECORNN_AUTO=torch"


# Short calls.


@needs_compiler
@of_each_in_torch
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.usefixtures("by_kernels")
def test_repeated_calls_are_short(cell: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    taken, usual = [], short_calls._KernelCall.__call__

    def run(self: Any, module: Any, x: Tensor, hx: Any, *lengths: Tensor) -> Any:
        taken.append(lengths)
        return usual(self, module, x, hx, *lengths)

    monkeypatch.setattr(short_calls._KernelCall, "__call__", run)
    module = made(cell, **options)
    for lengths in (LENGTHS, SOME_EMPTY, [1, 2, 3, 4], [6, 5, 0, 1]):
        expect_alike(module, lengths)
    assert [of.tolist() for (of,) in taken] == [[1, 2, 3, 4], [6, 5, 0, 1]]
    expect_alike(module, LENGTHS, given=torch.tensor(LENGTHS, dtype=torch.int32))
    expect_alike(module, LENGTHS, given=STRIDED)
    expect_alike(module, LENGTHS, given=LENGTHS)
    assert len(taken) == 2
    expect_alike(module, LENGTHS)
    assert len(taken) == 3
    x = padded(module, [T] * B)
    for _ in range(3):
        module(x)
    assert taken[3:] == [()]


# On a GPU.


def own_backend(cell: str) -> str:
    return "scan_gpu" if cell.startswith("min") else "persistent_gpu"


@pytest.fixture
def in_full_precision() -> Iterator[None]:
    with fp32_precision("rnn", "ieee"):
        yield
    torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize(
    ("cell", "backend"), [*((cell, own_backend(cell)) for cell in CELLS), *((cell, "torch") for cell in MODULES)]
)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}])
@pytest.mark.usefixtures("in_full_precision")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_a_gpu(cell: str, backend: str, options: dict[str, Any]) -> None:
    module = made(cell, backend=backend, **options).cuda()
    for given in (torch.tensor(LENGTHS, device="cuda"), torch.tensor(LENGTHS, dtype=torch.int32, device="cuda"), LENGTHS):
        x, hx = padded(module, LENGTHS), states(module)
        leaves, expected = [x, *tensors(hx), *module.parameters()], one_by_one(module, x, hx, LENGTHS)
        of_expected = gradients(expected, leaves)
        for mode in ("default", "error", "error", "error"):  # the first compiles kernels
            torch.cuda.set_sync_debug_mode(mode)
            results = module(x, hx, lengths=given)
            of_results = gradients(results, leaves)
            torch.cuda.set_sync_debug_mode("default")
            torch.testing.assert_close(tensors(results), tensors(expected), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(of_results, of_expected, rtol=1e-3, atol=1e-4)
    assert module.notes().partition(":")[0] == backend


@needs_gpu
@of_each
def test_what_is_out_of_range_on_a_gpu_counts_as_what_is_in_it(cell: str) -> None:
    module = made(cell, bidirectional=True, backend=own_backend(cell)).cuda()
    x, hx = padded(module, [T, T, 0, 0]), states(module)
    leaves, found = [x, *tensors(hx), *module.parameters()], []
    for lengths in ([T + 1, 2**40, -1, -(2**40)], [T, T, 0, 0]):
        results = module(x, hx, lengths=torch.tensor(lengths, device="cuda"))
        found.append([*tensors(results), *gradients(results, leaves)])
    torch.testing.assert_close(*found)


@needs_gpu
@of_each
def test_a_graph_reads_the_lengths_anew(cell: str) -> None:
    module, lengths = made(cell, bidirectional=True, backend=own_backend(cell)).cuda(), torch.tensor(LENGTHS, device="cuda")
    x, graph = padded(module, [T] * B).detach(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3):
            module(x, lengths=lengths)
        with torch.cuda.graph(graph):
            output = module(x, lengths=lengths)[0]
        lengths.copy_(torch.tensor(SOME_EMPTY))
        graph.replay()
        torch.testing.assert_close(output, module(x, lengths=SOME_EMPTY)[0])
