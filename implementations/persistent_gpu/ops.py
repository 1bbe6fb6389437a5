"""persistent_gpu as torch's op `pytest_ecornn::persistent_forward`, differentiable, and as a function that need not be one.

An unobserved call (no compiler, mode or transform, plain tensors alone) bypasses the op: torch's dispatcher, to and from
Python, takes the host longer than a short sequence takes the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.autograd_ops import (
    can_skip_dispatch,
    graph_is_freed,
    is_plain_tensor,
    refuse_forward_mode,
    register_autograd,
    wants_gradient,
)
from pytest_ecornn.implementations._common.cast_work import cast_work
from pytest_ecornn.implementations._common.host_path import PlannedWork, host_path
from pytest_ecornn.implementations.persistent_gpu import backward, forward
from pytest_ecornn.implementations.persistent_gpu.forward import SavedTensors
from pytest_ecornn.implementations.persistent_gpu.kernel import status_of
from pytest_ecornn.implementations.persistent_gpu.parameters import PER_PSEUDO_LAYER, FrozenParameters
from pytest_ecornn.implementations.persistent_gpu.plan import (
    ExecutionPlan,
    RNNOptions,
    get_plan,
    hidden_size_of,
    make_rnn_shape,
)
from pytest_ecornn.reference.held_products import products_of

_GIVEN = "Tensor x, Tensor[] first, Tensor?[] weights, Tensor? lengths"
_OPTIONS_SCHEMA = "str cell, bool batch_first, bool bidirectional, bool projected, bool tf32"
_SAVED = "bool[] wanted, Tensor x, Tensor[] first, Tensor?[] weights, Tensor[] kept, Tensor?[] d_results, Tensor? lengths"
library = torch.library.Library("pytest_ecornn", "FRAGMENT")
library.define(f"persistent_forward({_GIVEN}, {_OPTIONS_SCHEMA}) -> Tensor[]")
library.define(f"persistent_forward_keeping({_GIVEN}, {_OPTIONS_SCHEMA}) -> Tensor[]")
library.define(f"persistent_backward({_SAVED}, {_OPTIONS_SCHEMA}) -> Tensor[]")
_OPS = torch.ops.pytest_ecornn


def _forward(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *how: Any
) -> list[Tensor]:
    return forward.forward(x, first, weights, lengths, RNNOptions(*how))[0]


def _forward_with_reserve(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *how: Any
) -> list[Tensor]:
    """The results, then the saved tensors: outputs of the layers but the last, which is the first result, gates and cells."""
    results, kept = forward.forward(x, first, weights, lengths, RNNOptions(*how), saves_for_backward=True)
    return [*results, *kept.outputs[:-1], *kept.gates, *kept.cells]


def _backward(
    wanted: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], kept: Sequence[Tensor],
    d_results: Sequence[Tensor | None], lengths: Tensor | None, *how: Any,
) -> list[Tensor]:  # fmt: skip
    """The gradients that are wanted. kept: outputs of all layers, gates and cells."""
    found = backward.backward(wanted, x, first, weights, _split_saved(kept, weights), d_results, lengths, RNNOptions(*how))
    return [one for one in found if one is not None]


def _split_saved(kept: Sequence[Tensor], weights: Sequence[Tensor | None]) -> SavedTensors:
    pseudo_layers = len(weights) // PER_PSEUDO_LAYER
    return SavedTensors(
        list(kept[: -2 * pseudo_layers]), list(kept[-2 * pseudo_layers : -pseudo_layers]), list(kept[-pseudo_layers:])
    )


def _fake(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *how: Any
) -> list[Tensor]:
    stack = make_rnn_shape(RNNOptions(*how), x.shape, len(weights), hidden_size_of(weights))
    return [x.new_empty(stack.output), *(x.new_empty(stack.state) for _ in range(stack.num_states))]


def _fake_keeping(x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], *rest: Any) -> list[Tensor]:
    stack = make_rnn_shape(RNNOptions(*rest[1:]), x.shape, len(weights), hidden_size_of(weights))
    inner = [x.new_empty(stack.output) for _ in range(stack.pseudo_layers // stack.directions - 1)]
    gates = [x.new_empty(stack.saved_gates) for _ in range(stack.pseudo_layers)]
    cells = [x.new_empty(stack.saved_cells, dtype=torch.float32) for _ in range(stack.pseudo_layers)]
    return [*_fake(x, first, weights, *rest), *inner, *gates, *cells]


def _fake_backward(
    wanted: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], *rest: Any
) -> list[Tensor]:
    given = (x, *first, *weights)
    return [one.new_empty(one.shape) for one, is_wanted in zip(given, wanted, strict=True) if is_wanted and one is not None]


class CheckedCall:
    """Calls on x, initial states, parameters and lengths of the layouts, dtypes and device of those given, which are checked.

    sizes, dtype, device: of x. first, lengths: without gaps. weights: as `run`'s, which calls read anew, wherever they lie.
    trains: a gradient is wanted. given_dtype: of x where autocast casts all floating tensors to `dtype`, which needs the
    compiled host path, and tensors that an equal call has checked; else None. Raises as `run` does.
    """

    __slots__ = ("_cast", "_is_cast", "_planned", "_work", "parameters", "plan", "trains")

    def __init__(
        self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, first: Sequence[Tensor],
        weights: Sequence[Tensor | None], lengths: Tensor | None, how: RNNOptions, trains: bool,
        given_dtype: torch.dtype | None = None,
    ):  # fmt: skip
        hidden, has_lengths = hidden_size_of(weights), lengths is not None
        self.plan = get_plan(how, sizes, len(weights), hidden, dtype, device, trains, has_lengths)
        if given_dtype is None:
            self.plan.check(first, weights, lengths)
        self.parameters, self.trains = FrozenParameters(weights), trains
        self._work = planned_work(self.plan, len(first)) if host_path().is_enabled else None
        self._planned: Callable[..., Sequence[Tensor]] | None = None
        dtypes = [given_dtype, None, *(None if tensor is None else tensor.dtype for tensor in (*first, *weights))]
        self._is_cast = [given_dtype is not None and given not in (None, dtype) for given in dtypes]  # of the call's tensors
        cast_dtypes = [given for given, is_cast in zip(dtypes, self._is_cast, strict=True) if is_cast and given is not None]
        self._cast = host_path().planned_call(cast_work(dtype, cast_dtypes, device)) if cast_dtypes else None
        assert bool(cast_dtypes) == (self._cast is not None)

    def __call__(self, x: Tensor, first: Sequence[Tensor], lengths: Tensor | None = None) -> Sequence[Tensor]:
        if self._work is not None and self._planned is None:
            self._planned = host_path().planned_call(self._work)
        if self._planned is not None:
            tensors = x, lengths, *first, *self.parameters
            return self._planned(*(tensors if self._cast is None else self._cast_of(tensors, self._cast)))
        self.parameters = self.parameters.where_they_are()
        if self.trains:
            given = len(first), lengths, self.plan.shape.options, x, *first, *self.parameters
            found: Sequence[Tensor] = _apply_directly(self, *given)
            return found
        return forward.run(self.plan, x, first, self.parameters, lengths)[0]

    def _cast_of(self, tensors: Sequence[Any], cast: Callable[..., Sequence[Tensor]]) -> list[Any]:
        copies = iter(cast(*(tensor for tensor, is_cast in zip(tensors, self._is_cast, strict=True) if is_cast)))
        return [next(copies) if is_cast else tensor for tensor, is_cast in zip(tensors, self._is_cast, strict=True)]


def planned_work(plan: ExecutionPlan, states: int) -> PlannedWork:
    """A plan's passes on x, lengths, initial states and weights. states: the number of initial states."""
    stack, device = plan.shape, plan.spec.device
    num_given, num_results = 2 + states + PER_PSEUDO_LAYER * stack.pseudo_layers, 1 + stack.num_states
    inner = num_results + stack.pseudo_layers // stack.directions - 1
    last = inner + 2 * stack.pseudo_layers
    # As autograd's Function saves them: outputs of all layers, gates and cells.
    saved = (*range(num_results, inner), 0, *range(inner, last)) if plan.spec.saves_for_backward else ()

    def run(tensors: Sequence[Any]) -> Sequence[Tensor]:
        x, lengths, *rest = tensors
        results, (outputs, gates, cells) = forward.run(plan, x, rest[:states], rest[states:], lengths)
        return [*results, *outputs[:-1], *gates, *cells] if saved else results

    def gradients(
        needs: Sequence[bool], overwrites: bool, is_observed: bool, tensors: Sequence[Any]
    ) -> Sequence[Tensor | None]:
        count = num_given + len(saved)
        (x, lengths, *rest), kept, d_results = tensors[:num_given], tensors[num_given:count], tensors[count:]
        first, weights, needs = rest[:states], rest[states:], (needs[0], *needs[2:])  # lengths have no gradient
        if is_observed:
            found = _observed_gradients(needs, x, first, weights, lengths, kept, d_results, stack.options, overwrites, plan)
        else:
            given = needs, x, first, weights, _split_saved(kept, weights), d_results, lengths, stack.options
            found = backward.backward(*given, overwrites, plan)
        return [found[0], None, *found[1:]]

    products = products_of(plan.spec.dtype, stack.options.tf32)
    return PlannedWork("persistent_gpu", device, num_results, saved, status_of(device).address, products, run, gradients)


def _observed_gradients(
    needs_grad: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None,
    kept: Sequence[Tensor], d_results: Sequence[Tensor | None], how: RNNOptions, overwrites: bool, plan: ExecutionPlan | None,
) -> Sequence[Tensor | None]:  # fmt: skip
    """The gradients of x, the initial states and weights, None where none is wanted, whoever looks on. kept: as saved."""
    refuse_forward_mode("pytest_ecornn::persistent_backward", d_results)
    if torch.is_grad_enabled():  # create_graph is True
        return backward.differentiable_gradients(needs_grad, x, first, weights, lengths, d_results, how)
    if can_skip_dispatch((x, lengths, *first, *weights, *kept, *d_results)) and all(map(is_plain_tensor, d_results)):
        given = needs_grad, x, first, weights, _split_saved(kept, weights), d_results, lengths, how
        return backward.backward(*given, overwrites, plan)
    by_op = iter(_OPS.persistent_backward.default(needs_grad, x, first, weights, kept, d_results, lengths, *how))
    return [next(by_op) if is_wanted else None for is_wanted in needs_grad]


class _Differentiable(torch.autograd.Function):
    """Gradient of persistent_forward.

    Its arguments: a checked call or whether the call is unobserved, the number of states, lengths, options, x, states, weights.
    """

    @staticmethod
    def forward(
        ctx: Any, call: CheckedCall | bool, states: int, lengths: Tensor | None, how: RNNOptions, x: Tensor, *rest: Any
    ) -> Any:
        first, weights = rest[:states], rest[states:]
        if isinstance(call, CheckedCall):
            results, (outputs, gates, cells) = forward.run(call.plan, x, first, call.parameters, lengths)
        elif call:
            results, (outputs, gates, cells) = forward.forward(x, first, weights, lengths, how, saves_for_backward=True)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                found = _OPS.persistent_forward_keeping.default(x, first, weights, lengths, *how)
            results, kept = found[: 2 + (how.cell == "lstm")], found[2 + (how.cell == "lstm") :]
            outputs, gates, cells = _split_saved(kept, weights)
            outputs.append(results[0])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, lengths, *rest, *outputs, *gates, *cells)
        ctx.states, ctx.options, ctx.given = states, how, len(rest)
        ctx.plan = call.plan if isinstance(call, CheckedCall) else None
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> Any:
        x, lengths, *saved = ctx.saved_tensors  # read once: each read unpacks them anew
        rest, kept = saved[: ctx.given], saved[ctx.given :]
        first, weights = rest[: ctx.states], rest[ctx.states :]
        # A CUDA graph of the backward pass alone may be replayed more often than the forward pass before it.
        overwrites = graph_is_freed() and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
        given = ctx.needs_input_grad[4:], x, first, weights, lengths, kept, d_results, ctx.options, overwrites, ctx.plan
        return None, None, None, None, *_observed_gradients(*given)


_differentiable: Callable[..., Any] = _Differentiable.apply
# `apply` without what it does for torch.func, in Python, for each argument.
_apply_directly: Callable[..., Any] = super(torch.autograd.Function, _Differentiable).apply


def _apply(x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *how: Any) -> Any:
    unobserved = can_skip_dispatch((x, *first, *weights, lengths))
    return _differentiable(unobserved, len(first), lengths, RNNOptions(*how), x, *first, *weights)


for _name, _run, _faked in (
    ("persistent_forward", _forward, _fake), ("persistent_forward_keeping", _forward_with_reserve, _fake_keeping),
    ("persistent_backward", _backward, _fake_backward),
):  # fmt: skip
    library.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _faked, lib=library)
register_autograd(library, "persistent_forward", _apply)


def run(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, how: RNNOptions
) -> Sequence[Tensor]:
    """Output [.., D*H] in x's layout, and final states [L*D, B, H], differentiable more than once.

    x: [T, B, I], or [B, T, I] with `how.batch_first`, of bfloat16, float16 or float32, on a CUDA device; with `how.projected`
    W_ih x without biases, [.., D*G*H]. first: the initial states [L*D, B, H], () for zeros. weights: of each layer and
    direction weight_ih (None where x is projected), weight_hh, bias_ih and bias_hh (None for none), as torch.nn has them.
    lengths: int64 [B] on the same device, None for T. What is below 0 or above T counts as these. Nothing depends on x in the
    padding, where the output and x's gradient are 0. Raises ValueError for other shapes, dtypes, cells and devices, and for H
    that does not fit; RuntimeError where an earlier launch is known to have timed out, which a replayed graph does not check.
    """
    lengths = None if lengths is None else lengths.contiguous()
    tensors = (x, *first, *weights, lengths)
    if not can_skip_dispatch(tensors):
        found: Sequence[Tensor] = _OPS.persistent_forward.default(x, first, [*weights], lengths, *how)
    elif wants_gradient(tensors):
        found = _differentiable(True, len(first), lengths, how, x, *first, *weights)
    else:
        found, _ = forward.forward(x, first, weights, lengths, how)
    return found
