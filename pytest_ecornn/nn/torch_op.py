"""torch's recurrent functions as one op, `pytest_ecornn::torch_rnn`, for training that torch.compile traces on a CPU.

torch's own decompositions unroll all time steps, which takes minutes to compile, and that of oneDNN's LSTM has no gradient.
The op's gradients compute its results again, and drop what they dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.contract import State, cells
from pytest_ecornn.implementations._common.autograd_ops import differentiable_once, register_autograd, wants_gradient
from pytest_ecornn.nn.autocast import autocast_of, cast_parameters
from pytest_ecornn.nn.calls import map_states
from pytest_ecornn.nn.lengths_by_torch import run_packed, zero_states
from pytest_ecornn.reference.precision import is_autocast

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu,
}  # fmt: skip
_RANDOM_STATE_BYTES = 5056  # of a CPU's generator
_ARGUMENTS = "Tensor x, Tensor[] first, Tensor[] weights, Tensor? lengths"
_OPTIONS_SCHEMA = "str mode, bool bias, int layers, float dropout, bool training, bool bidirectional, bool batch_first"
_SAVED = "bool[] wanted, Tensor random_state, Tensor?[] d_results"
_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define(f"torch_rnn({_ARGUMENTS}, {_OPTIONS_SCHEMA}) -> Tensor[]", tags=torch.Tag.nondeterministic_seeded)
_library.define(f"torch_rnn_backward({_ARGUMENTS}, {_SAVED}, {_OPTIONS_SCHEMA}) -> Tensor[]")


def _drops(layers: int, dropout: float, training: bool) -> bool:
    return training and dropout > 0 and layers > 1


def _forward(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor | None, mode: str, *options: Any
) -> list[Tensor]:
    """Output, final states, and the random state before the call, without elements where nothing is dropped."""
    random_state = torch.get_rng_state() if _drops(*options[1:4]) else torch.empty(0, dtype=torch.uint8)
    return [*_run(x, first, weights, lengths, mode, *options), random_state]


def _run(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor | None, mode: str, *options: Any
) -> list[Tensor]:
    function, (*others, batch_first) = FUNCTIONS[mode], options

    def run(*rows: Tensor, hx: State, last: Sequence[bool]) -> tuple[Tensor, State]:
        output, *final = function(*rows, hx if mode == "LSTM" else cells.unpack_state(hx)[0], [*weights], *others, *last)
        return output, tuple(final)

    def run_by_length(packed: PackedSequence, hx: State) -> tuple[PackedSequence, State]:
        data, sizes, order, order_back = packed
        assert order is not None
        assert order_back is not None
        data, final = run(data, sizes, hx=map_states(hx, lambda state: state.index_select(1, order)), last=())
        return PackedSequence(data, sizes, order, order_back), map_states(
            final, lambda state: state.index_select(1, order_back)
        )

    with torch.autocast("cpu", enabled=False):
        if lengths is None:
            output, final = run(x, hx=tuple(first), last=(batch_first,))
        else:
            output, final = run_packed(run_by_length, x, tuple(first), lengths, batch_first)
    return [output.contiguous(), *cells.unpack_state(final)]


@contextmanager
def _below_modes() -> Iterator[None]:
    """Turns autograd on where a dispatch mode, which runs below it, has called the op."""
    keys = torch._C.DispatchKey
    with (
        torch._C._SetExcludeDispatchKeyGuard(keys.AutogradFunctionality, False),
        torch._C._SetExcludeDispatchKeyGuard(keys.ADInplaceOrView, False),
    ):
        yield


def _backward(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor | None, wanted: Sequence[bool],
    random_state: Tensor, d_results: Sequence[Tensor | None], *options: Any,
) -> list[Tensor]:  # fmt: skip
    """The gradients that are wanted, of x, states and weights in turn."""
    leaves = [one.detach().requires_grad_(is_wanted) for one, is_wanted in zip((x, *first, *weights), wanted, strict=True)]
    states = leaves[1 : 1 + len(first)]
    with _below_modes(), torch.enable_grad(), torch.random.fork_rng(devices=[], enabled=random_state.numel() > 0):
        if random_state.numel():
            torch.set_rng_state(random_state)
        results = _run(leaves[0], states, leaves[1 + len(first) :], lengths, *options)
    outputs, incoming = zip(*[pair for pair in zip(results, d_results, strict=True) if pair[1] is not None], strict=True)
    return [*torch.autograd.grad(outputs, [one for one in leaves if one.requires_grad], incoming, materialize_grads=True)]


def _fake_forward(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor | None, mode: str, *options: Any
) -> list[Tensor]:
    width = first[0].shape[2] * (1 + options[4])
    random_state = x.new_empty(_RANDOM_STATE_BYTES if _drops(*options[1:4]) else 0, dtype=torch.uint8)
    return [x.new_empty((*x.shape[:2], width)), *(state.new_empty(state.shape) for state in first), random_state]


def _fake_backward(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor | None, wanted: Sequence[bool], *rest: Any
) -> list[Tensor]:
    given = zip((x, *first, *weights), wanted, strict=True)
    return [one.new_empty(one.shape) for one, is_wanted in given if is_wanted]


class _Differentiable(torch.autograd.Function):
    """Its arguments: the number of states, lengths, options, x, states, weights."""

    @staticmethod
    def forward(ctx: Any, states: int, lengths: Tensor | None, options: Any, x: Tensor, *rest: Tensor) -> Any:
        *results, random_state = _below_autograd(x, rest[:states], rest[states:], lengths, *options)
        ctx.states, ctx.options = states, options
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(random_state)
        ctx.save_for_backward(x, lengths, random_state, *rest)
        return *results, random_state

    @staticmethod
    @differentiable_once("pytest_ecornn::torch_rnn")
    def backward(ctx: Any, *d_results: Tensor | None) -> Any:
        x, lengths, random_state, *rest = ctx.saved_tensors
        wanted, given = ctx.needs_input_grad[3:], (x, rest[: ctx.states], rest[ctx.states :], lengths)
        gradients = iter(
            torch.ops.pytest_ecornn.torch_rnn_backward.default(*given, wanted, random_state, d_results[:-1], *ctx.options)
        )
        return None, None, None, *(next(gradients) if is_wanted else None for is_wanted in wanted)


def _apply(x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor | None, *options: Any) -> Any:
    return list(_Differentiable.apply(len(first), lengths, options, x, *first, *weights))  # type: ignore[no-untyped-call]


for _name, _kernel, _fake in (("torch_rnn", _forward, _fake_forward), ("torch_rnn_backward", _backward, _fake_backward)):
    _library.impl(_name, _kernel, "CPU")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _fake, lib=_library)
_below_autograd = register_autograd(_library, "torch_rnn", _apply)


def runs_as_op(module: Any, input: Any, hx: Any) -> bool:
    """Whether a call that torch runs is one op in a graph: in training on a CPU. torch.export has torch's own ops."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting() or not isinstance(input, Tensor):
        return False
    if not input.is_cpu or not wants_gradient([input, *cells.unpack_state(hx), *module._flat_weights]):
        return False
    is_mixed = module.mode == "GRU" or module.proj_size > 0  # under autocast, which leaves states in float32
    return not (is_mixed and is_autocast(input.device))


def run_as_op(module: Any, x: Tensor, hx: State, lengths: Tensor | None) -> tuple[Tensor, State]:
    """Output and final states. x: [T, B, I], or [B, T, I] with `batch_first`. lengths: int64 [B], from 0 to T."""
    cast = autocast_of(x.device)
    rows = x.transpose(0, 1) if module.batch_first else x
    first = [cast(state) for state in cells.unpack_state(hx) or zero_states(module, rows)]
    options = module.bias, module.num_layers, module.dropout, module.training, module.bidirectional, module.batch_first
    weights = cast_parameters(module._flat_weights, x.device)
    output, *final, _ = torch.ops.pytest_ecornn.torch_rnn.default(cast(x), first, weights, lengths, module.mode, *options)
    return output, tuple(final) if len(final) > 1 else final[0]
