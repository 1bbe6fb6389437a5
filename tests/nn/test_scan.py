"""MinGRU and MinLSTM beside the cells' equations, however they are called."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.contract import Case, cells
from pytest_ecornn.nn import MinGRU, MinLSTM
from tests.helpers.requirements import needs_gpu

T, B, I, H = 7, 3, 4, 9  # noqa: E741
MODULES = (MinGRU, MinLSTM)
of_each = pytest.mark.parametrize("kind", MODULES)


def made(kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(I, H, **options)


def inputs(*sizes: int, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(*sizes)


def expected(module: Any, x: Tensor, hx: Tensor | None = None, resets: Tensor | None = None) -> tuple[Tensor, Any]:
    """By the cells' equations in float64."""
    steps, batch = (x.shape[1], x.shape[0]) if module.batch_first else x.shape[:2]
    case = Case(
        cell=module.cell, steps=steps, batch=batch, input_size=I, hidden_size=H, layers=module.num_layers,
        bidirectional=module.bidirectional, batch_first=module.batch_first, bias=module.bias,
    )  # fmt: skip
    weights = {name: one.double() for name, one in module.named_parameters()}
    return cells.reference(case, weights, x.double(), None if hx is None else hx.double(), None, resets)


def near(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@of_each
@pytest.mark.parametrize(
    ("options", "beside_x"),
    [
        *product(
            [
                {},
                {"positive": True, "bias": False},
                {"num_layers": 2, "bidirectional": True},
                {"num_layers": 3, "batch_first": True, "positive": True},
            ],
            ["", "state"],
        ),
        *product([{"bidirectional": True}, {"num_layers": 2, "batch_first": True}], ["resets"]),
    ],
)
def test_results_and_gradients(kind: Any, options: dict[str, Any], beside_x: str) -> None:
    module = made(kind, **options)
    x = (inputs(B, T, I) if module.batch_first else inputs(T, B, I)).requires_grad_()
    hx = inputs(module.num_layers * (1 + module.bidirectional), B, H, seed=2).requires_grad_() if beside_x == "state" else None
    resets = inputs(*x.shape[:2], seed=5) > 0.7 if beside_x == "resets" else None
    assert resets is None or resets.any()
    wants_gradient = [one for one in (x, hx, *module.parameters()) if one is not None]
    gradients = []
    for output, final in ((results := module(x, hx, resets)), (wanted := expected(module, x, hx, resets))):
        loss = (output * output.detach().cos()).sum() + final.square().sum()
        gradients.append(torch.autograd.grad(loss, wants_gradient))
    near(results, wanted)
    near(*gradients)
    assert module.notes() == "scan_cpu"


@of_each
@pytest.mark.parametrize("batch_first", [False, True])
def test_one_sequence_without_a_batch(kind: Any, batch_first: bool) -> None:
    module = made(kind, num_layers=2, batch_first=batch_first)
    x, hx = inputs(T, B, I), inputs(2, B, H)
    whole = made(kind, num_layers=2)(x, hx)
    output, final = module(x[:, 1], hx[:, 1])
    near((output, final), (whole[0][:, 1], whole[1][:, 1]))


@of_each
@pytest.mark.parametrize("is_sorted", [False, True])
def test_packed_sequences(kind: Any, is_sorted: bool) -> None:
    module = made(kind, num_layers=2, bidirectional=True)
    x, hx, lengths = inputs(T, B, I), inputs(4, B, H), [7, 3, 1] if is_sorted else [3, 7, 1]
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=is_sorted)
    output, final = module(packed, hx)
    assert isinstance(output, PackedSequence)
    padded, _ = pad_packed_sequence(output)
    for number, length in enumerate(lengths):
        near(module(x[:length, number], hx[:, number]), (padded[:length, number], final[:, number]))
    with pytest.raises(ValueError, match="expected no resets beside a PackedSequence"):
        module(packed, hx, torch.zeros(T, B, dtype=torch.bool))


@of_each
def test_a_reset_starts_from_zeros(kind: Any) -> None:
    module = made(kind)
    x, resets = inputs(T, B, I), torch.zeros(T, B, dtype=torch.bool)
    resets[4, 1] = True
    output, final = module(x, inputs(1, B, H), resets)
    again = module(x[4:, 1:2])
    near((output[4:, 1], final[:, 1]), (again[0][:, 0], again[1][:, 0]))
    of_one, wanted = module(x[:, 1], None, resets[:, 1]), expected(module, x[:, 1:2], None, resets[:, 1:2])
    near(of_one, [one.squeeze(1) for one in wanted])


@of_each
def test_replicas_read_their_own_weights(kind: Any) -> None:
    """As torch.nn.DataParallel makes them, anew for each call."""
    module, x = made(kind), inputs(T, B, I)
    wanted = module(x)
    for factor in (1.0, 2.0):
        replica = module._replicate_for_data_parallel()
        for name, parameter in module.named_parameters():
            setattr(replica, name, parameter.detach() * factor)
        near(replica(x), wanted if factor == 1 else expected(multiplied(module, factor), x))
        del replica
    near(module(x), wanted)


def multiplied(module: Any, factor: float) -> Any:
    """A copy whose parameters are multiplied."""
    other = copy.deepcopy(module)
    other.load_state_dict({name: one.detach() * factor for name, one in module.named_parameters()})
    return other


@of_each
def test_dropout_is_between_layers_in_training_only(kind: Any) -> None:
    module, plain = made(kind, num_layers=2, dropout=0.5), made(kind, num_layers=2)
    x = inputs(T, B, I)
    near(module.eval()(x), plain(x))
    module.train()
    assert not torch.equal(module(x)[0], module(x)[0])
    near(module(x)[1][:1], plain(x)[1][:1])
    whole = made(kind, num_layers=2, dropout=1.0, bias=False)
    assert not whole(x)[0].any()


@of_each
def test_weights_are_read_in_each_call(kind: Any) -> None:
    module, x = made(kind, num_layers=2), inputs(T, B, I)
    module(x)
    with torch.no_grad():
        module.weight_ih_l1.mul_(2)
    near(module(x), expected(module, x))
    other = multiplied(module, 0.5)
    near(torch.func.functional_call(module, dict(other.named_parameters()), (x,)), other(x))
    torch.nn.utils.parametrizations.weight_norm(module, "weight_ih_l0")
    with torch.no_grad():
        module.parametrizations.weight_ih_l0.original0.mul_(3)
    other.load_state_dict({name: getattr(module, name).detach() for name, _ in other.named_parameters()})
    near(module(x), expected(other, x))
    module(x)[0].sum().backward()
    assert module.parametrizations.weight_ih_l0.original0.grad is not None


@of_each
def test_a_copy_and_a_pickle_are_the_same_module(kind: Any) -> None:
    module, x = made(kind, bidirectional=True, positive=True), inputs(T, B, I)
    wanted = module(x)
    for one in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(one) is kind
        assert all(torch.equal(*pair) for pair in zip(one(x), wanted, strict=True))


@of_each
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, when its forward mode is first used
def test_a_loop_runs_what_a_scan_does_not(kind: Any) -> None:
    module, x = made(kind), inputs(T, B, I)
    by_func = torch.func.grad(lambda x: module(x)[0].square().sum())(x)
    assert module.notes() == "loop: scan_cpu has no transforms of torch.func"
    leaf = x.clone().requires_grad_()
    near(torch.autograd.grad(module(leaf)[0].square().sum(), leaf), [by_func])
    with torch.autograd.forward_ad.dual_level():
        output, _ = module(torch.autograd.forward_ad.make_dual(x, x.cos()))
        tangent = torch.autograd.forward_ad.unpack_dual(output).tangent
    assert module.notes() == "loop: scan_cpu has no forward-mode gradient"
    near([tangent], [torch.func.jvp(lambda x: module(x)[0], (x,), (x.cos(),))[1]])
    assert module.to("meta")(x.to("meta"))[0].shape == (T, B, H)


@of_each
def test_gradients_of_gradients_by_the_loop(kind: Any) -> None:
    module = made(kind, backend="loop", dtype=torch.float64, positive=True)
    x = inputs(3, 2, I).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: module(x)[0], (x,))
    (once,) = torch.autograd.grad(made(kind, backend="scan_cpu")(x.float())[0].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="scan_cpu_forward is differentiable once"):
        once.sum().backward()


@of_each
def test_autocast_computes_in_its_dtype(kind: Any) -> None:
    module, x = made(kind, num_layers=2), inputs(T, B, I)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(x)
        by_loop = made(kind, num_layers=2, backend="loop")(x.bfloat16())
    assert {one.dtype for one in found} == {torch.bfloat16}
    near(found, expected(module, x), 3e-2)
    near(by_loop, found, 3e-2)


@of_each
def test_layers_of_few_sizes_are_remembered(kind: Any) -> None:
    module = made(kind)
    for steps in range(1, 80):
        module(torch.ones(steps, 1, I))
    assert len(module._built) == 64
    module(torch.ones(20, 1, I))  # used again: the last that is forgotten
    module(torch.ones(80, 1, I))
    assert [key[1] for key in list(module._built)[-2:]] == [(20, 1, I), (80, 1, I)]
    assert [kind[1] for kind in list(module._recent)[-2:]] == [(79, 1, I), (80, 1, I)]  # what a checkpoint may recompute


def test_what_it_says_of_itself() -> None:
    assert repr(MinGRU(I, H)) == "MinGRU(4, 9)"
    module = MinLSTM(I, H, 2, positive=True, dropout=0.5, backend="loop")
    assert repr(module) == "MinLSTM(4, 9, num_layers=2, dropout=0.5, positive=True, backend='loop')"
    assert module.backend == "loop"
    assert [(name, tuple(one.shape)) for name, one in module.named_parameters()] == [
        ("weight_ih_l0", (27, 4)), ("bias_ih_l0", (27,)), ("weight_ih_l1", (27, 9)), ("bias_ih_l1", (27,)),
    ]  # fmt: skip


def call_of(x: Tensor | None = None, hx: Tensor | None = None, resets: Tensor | None = None, **options: Any) -> Any:
    """A call that is yet to be made, of a module that is yet to be."""
    return lambda: MinGRU(I, H, **options)(inputs(T, B, I) if x is None else x, hx, resets)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            call_of(backend="cudnn"),
            "expected backend as one of auto, heuristic, scan_cpu, scan_gpu, scan_torch, loop, got 'cudnn'",
        ),
        (call_of(dropout=1.5), "expected dropout from 0 to 1, got 1.5"),
        (call_of(dropout=True), "expected dropout from 0 to 1, got True"),
        (call_of(dropout="half"), "expected dropout from 0 to 1, got 'half'"),
        (lambda: MinGRU(0, H), "expected input_size of at least 1, got 0"),
        (lambda: MinLSTM(I, 0), "expected hidden_size of at least 1, got 0"),
        (call_of(num_layers=0), "expected num_layers of at least 1, got 0"),
        (call_of(backend="scan_gpu"), r"scan_gpu does not run mingru-T7-B3-.*: runs on a CUDA device"),
        (call_of(torch.ones(T, B, I + 1)), r"expected input as \[T, B, 4\].*, got \(7, 3, 5\)"),
        (call_of(torch.ones(0, B, I)), r"T not 0, got \(0, 3, 4\)"),
        (call_of(torch.ones(T, B, I).double()), "expected weights of the input's dtype, torch.float64, got torch.float32"),
        (call_of(hx=torch.ones(2, B, H)), r"expected hx as \(1, 3, 9\), got \(2, 3, 9\)"),
        (call_of(hx=torch.ones(1, B, H).half()), "expected hx of the input's dtype, torch.float32, got torch.float16"),
        (call_of(hx=torch.ones(1, B, H, device="meta")), "expected hx on the input's device, cpu, got meta"),
        (
            call_of(resets=torch.ones(T, B, dtype=torch.bool, device="meta")),
            "expected resets on the input's device, cpu, got meta",
        ),
        (call_of(resets=torch.ones(T, B)), r"expected resets as \(7, 3\) of torch.bool, got .* of torch.float32"),
    ],
)
def test_arguments_and_calls_that_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MinGRU(4.0, H), "expected input_size as an int, got float"),  # type: ignore[arg-type]
        (call_of(num_layers=1.0), "expected num_layers as an int, got float"),
        (call_of(bias=1), "expected bias as a bool, got int"),
        (call_of(batch_first="yes"), "expected batch_first as a bool, got str"),
        (call_of(hx=(torch.ones(1, B, H), torch.ones(1, B, H))), r"expected hx as a tensor \[L\*D, B, H\] or None, got tuple"),  # type: ignore[arg-type]
        (call_of([[1.0]]), r"expected input as a tensor \[T, B, I\] or a PackedSequence, got list"),  # type: ignore[arg-type]
        (call_of(resets=[True]), r"expected resets as a tensor \[T, B\] or None, got list"),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_another_type_is_refused(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@of_each
def test_it_has_what_torch_nn_has(kind: Any) -> None:
    for options in ({}, {"num_layers": 2, "bidirectional": True}, {"bias": False}):
        module = made(kind, **options)
        module.flatten_parameters()
        names = {id(one): name for name, one in module.named_parameters()}
        suffixes = [
            f"_l{layer}{end}" for layer in range(module.num_layers) for end in ("", "_reverse")[: 1 + module.bidirectional]
        ]
        kinds = ("weight_ih", "bias_ih")[: 1 + module.bias]
        found = [[names[id(one)] for one in of_one] for of_one in module.all_weights]
        assert found == [[kind + suffix for kind in kinds] for suffix in suffixes]
    with pytest.warns(UserWarning, match="dropout 0.5 is between layers, of which there is one"):
        made(kind, dropout=0.5)


@needs_gpu
@of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_on_a_gpu(kind: Any, dtype: torch.dtype) -> None:
    module = made(kind, num_layers=2, bidirectional=True)
    x = inputs(T, B, I)
    wanted = module(x)
    found = module.to("cuda", dtype)(x.to("cuda", dtype))
    assert module.notes() == "scan_gpu"
    near([one.cpu() for one in found], wanted, 1e-5 if dtype == torch.float32 else 1e-2)
