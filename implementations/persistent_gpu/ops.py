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
    x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *options: Any
) -> list[Tensor]:
    return forward.forward(x, initial_states, weights, lengths, RNNOptions(*options))[0]


def _forward_with_reserve(
    x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *options: Any
) -> list[Tensor]:
    """The results, then the saved tensors: outputs of the layers but the last, which is the first result, gates and cells."""
    results, saved = forward.forward(x, initial_states, weights, lengths, RNNOptions(*options), saves_for_backward=True)
    return [*results, *saved.outputs[:-1], *saved.gates, *saved.cells]


def _backward(
    wanted: Sequence[bool], x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None],
    saved: Sequence[Tensor], d_results: Sequence[Tensor | None], lengths: Tensor | None, *options: Any,
) -> list[Tensor]:  # fmt: skip
    """The gradients that are wanted. saved: outputs of all layers, gates and cells."""
    arguments = wanted, x, initial_states, weights, _split_saved(saved, weights), d_results, lengths, RNNOptions(*options)
    gradients = backward.backward(*arguments)
    return [gradient for gradient in gradients if gradient is not None]


def _split_saved(saved: Sequence[Tensor], weights: Sequence[Tensor | None]) -> SavedTensors:
    pseudo_layers = len(weights) // PER_PSEUDO_LAYER
    return SavedTensors(
        list(saved[: -2 * pseudo_layers]), list(saved[-2 * pseudo_layers : -pseudo_layers]), list(saved[-pseudo_layers:])
    )


def _fake(
    x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *options: Any
) -> list[Tensor]:
    shape = make_rnn_shape(RNNOptions(*options), x.shape, len(weights), hidden_size_of(weights))
    return [x.new_empty(shape.output), *(x.new_empty(shape.state) for _ in range(shape.num_states))]


def _fake_keeping(x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], *rest: Any) -> list[Tensor]:
    shape = make_rnn_shape(RNNOptions(*rest[1:]), x.shape, len(weights), hidden_size_of(weights))
    inner = [x.new_empty(shape.output) for _ in range(shape.pseudo_layers // shape.directions - 1)]
    gates = [x.new_empty(shape.saved_gates) for _ in range(shape.pseudo_layers)]
    cells = [x.new_empty(shape.saved_cells, dtype=torch.float32) for _ in range(shape.pseudo_layers)]
    return [*_fake(x, initial_states, weights, *rest), *inner, *gates, *cells]


def _fake_backward(
    wanted: Sequence[bool], x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], *rest: Any
) -> list[Tensor]:
    inputs = zip((x, *initial_states, *weights), wanted, strict=True)
    return [tensor.new_empty(tensor.shape) for tensor, is_wanted in inputs if is_wanted and tensor is not None]


class CheckedCall:
    """Calls on x, initial states, parameters and lengths of the layouts, dtypes and device of those given, which are checked.

    sizes, dtype, device: of x. initial_states, lengths: without gaps. weights: as `run`'s, which calls read anew, wherever they
    lie. trains: a gradient is wanted. given_dtype: of x where autocast casts all floating tensors to `dtype`, which needs the
    compiled host path, and tensors that an equal call has checked; else None. Raises as `run` does.
    """

    __slots__ = ("_cast", "_is_cast", "_planned", "_work", "parameters", "plan", "trains")

    def __init__(
        self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, initial_states: Sequence[Tensor],
        weights: Sequence[Tensor | None], lengths: Tensor | None, options: RNNOptions, trains: bool,
        given_dtype: torch.dtype | None = None,
    ):  # fmt: skip
        hidden, has_lengths = hidden_size_of(weights), lengths is not None
        self.plan = get_plan(options, sizes, len(weights), hidden, dtype, device, trains, has_lengths)
        if given_dtype is None:
            self.plan.check(initial_states, weights, lengths)
        self.parameters, self.trains = FrozenParameters(weights), trains
        self._work = planned_work(self.plan, len(initial_states)) if host_path().is_enabled else None
        self._planned: Callable[..., Sequence[Tensor]] | None = None
        states_and_weights = (*initial_states, *weights)
        dtypes = [given_dtype, None, *(None if tensor is None else tensor.dtype for tensor in states_and_weights)]
        self._is_cast = [given_dtype is not None and source not in (None, dtype) for source in dtypes]  # of the call's tensors
        sources = zip(dtypes, self._is_cast, strict=True)
        cast_dtypes = [source for source, is_cast in sources if is_cast and source is not None]
        self._cast = host_path().planned_call(cast_work(dtype, cast_dtypes, device)) if cast_dtypes else None
        assert bool(cast_dtypes) == (self._cast is not None)

    def __call__(self, x: Tensor, initial_states: Sequence[Tensor], lengths: Tensor | None = None) -> Sequence[Tensor]:
        if self._work is not None and self._planned is None:
            self._planned = host_path().planned_call(self._work)
        if self._planned is not None:
            tensors = x, lengths, *initial_states, *self.parameters
            return self._planned(*(tensors if self._cast is None else self._cast_of(tensors, self._cast)))
        self.parameters = self.parameters.where_they_are()
        if self.trains:
            arguments = len(initial_states), lengths, self.plan.shape.options, x, *initial_states, *self.parameters
            results: Sequence[Tensor] = _apply_directly(self, *arguments)
            return results
        return forward.run(self.plan, x, initial_states, self.parameters, lengths)[0]

    def _cast_of(self, tensors: Sequence[Any], cast: Callable[..., Sequence[Tensor]]) -> list[Any]:
        copies = iter(cast(*(tensor for tensor, is_cast in zip(tensors, self._is_cast, strict=True) if is_cast)))
        return [next(copies) if is_cast else tensor for tensor, is_cast in zip(tensors, self._is_cast, strict=True)]


def planned_work(plan: ExecutionPlan, states: int) -> PlannedWork:
    """A plan's passes on x, lengths, initial states and weights. states: the number of initial states."""
    shape, device = plan.shape, plan.spec.device
    num_inputs, num_results = 2 + states + PER_PSEUDO_LAYER * shape.pseudo_layers, 1 + shape.num_states
    inner = num_results + shape.pseudo_layers // shape.directions - 1
    last = inner + 2 * shape.pseudo_layers
    # As autograd's Function saves them: outputs of all layers, gates and cells.
    saved_results = (*range(num_results, inner), 0, *range(inner, last)) if plan.spec.saves_for_backward else ()

    def run(tensors: Sequence[Any]) -> Sequence[Tensor]:
        x, lengths, *rest = tensors
        results, (outputs, gates, cells) = forward.run(plan, x, rest[:states], rest[states:], lengths)
        return [*results, *outputs[:-1], *gates, *cells] if saved_results else results

    def gradients(
        needs: Sequence[bool], overwrites: bool, is_observed: bool, tensors: Sequence[Any]
    ) -> Sequence[Tensor | None]:
        count = num_inputs + len(saved_results)
        (x, lengths, *rest), saved, d_results = tensors[:num_inputs], tensors[num_inputs:count], tensors[count:]
        initial_states, weights, needs = rest[:states], rest[states:], (needs[0], *needs[2:])  # lengths have no gradient
        options = shape.options
        if is_observed:
            arguments = needs, x, initial_states, weights, lengths, saved, d_results, options, overwrites, plan
            d_x, *others = _observed_gradients(*arguments)
        else:
            saved_tensors = _split_saved(saved, weights)
            d_x, *others = backward.backward(
                needs, x, initial_states, weights, saved_tensors, d_results, lengths, options, overwrites, plan
            )
        return [d_x, None, *others]

    products = products_of(plan.spec.dtype, shape.options.tf32)
    timed_out = status_of(device).address
    return PlannedWork("persistent_gpu", device, num_results, saved_results, timed_out, products, run, gradients)


def _observed_gradients(
    needs_grad: Sequence[bool], x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None],
    lengths: Tensor | None, saved: Sequence[Tensor], d_results: Sequence[Tensor | None], options: RNNOptions, overwrites: bool,
    plan: ExecutionPlan | None,
) -> Sequence[Tensor | None]:  # fmt: skip
    """The gradients of x, the initial states and weights, None where none is wanted, whoever looks on.

    saved: as `_split_saved` takes it.
    """
    refuse_forward_mode("pytest_ecornn::persistent_backward", d_results)
    if torch.is_grad_enabled():  # create_graph is True
        return backward.differentiable_gradients(needs_grad, x, initial_states, weights, lengths, d_results, options)
    tensors = (x, lengths, *initial_states, *weights, *saved, *d_results)
    if can_skip_dispatch(tensors) and all(map(is_plain_tensor, d_results)):
        saved_tensors = _split_saved(saved, weights)
        return backward.backward(
            needs_grad, x, initial_states, weights, saved_tensors, d_results, lengths, options, overwrites, plan
        )
    arguments = needs_grad, x, initial_states, weights, saved, d_results, lengths, *options
    gradients = iter(_OPS.persistent_backward.default(*arguments))
    return [next(gradients) if is_wanted else None for is_wanted in needs_grad]


class _Differentiable(torch.autograd.Function):
    """Gradient of persistent_forward.

    Its arguments: a checked call or whether the call is unobserved, the number of states, lengths, options, x, states, weights.
    """

    @staticmethod
    def forward(
        ctx: Any, call: CheckedCall | bool, states: int, lengths: Tensor | None, options: RNNOptions, x: Tensor, *rest: Any
    ) -> Any:
        initial_states, weights = rest[:states], rest[states:]
        if isinstance(call, CheckedCall):
            results, (outputs, gates, cells) = forward.run(call.plan, x, initial_states, call.parameters, lengths)
        elif call:
            results, (outputs, gates, cells) = forward.forward(
                x, initial_states, weights, lengths, options, saves_for_backward=True
            )
        else:
            with torch._C._AutoDispatchBelowAutograd():
                tensors = _OPS.persistent_forward_keeping.default(x, initial_states, weights, lengths, *options)
            num_results = 2 + (options.cell == "lstm")
            results = tensors[:num_results]
            outputs, gates, cells = _split_saved(tensors[num_results:], weights)
            outputs.append(results[0])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, lengths, *rest, *outputs, *gates, *cells)
        ctx.states, ctx.options, ctx.num_inputs = states, options, len(rest)
        ctx.plan = call.plan if isinstance(call, CheckedCall) else None
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *d_results: Tensor | None) -> Any:
        x, lengths, *tensors = ctx.saved_tensors  # read once: each read unpacks them anew
        inputs, saved = tensors[: ctx.num_inputs], tensors[ctx.num_inputs :]
        initial_states, weights = inputs[: ctx.states], inputs[ctx.states :]
        # A CUDA graph of the backward pass alone may be replayed more often than the forward pass before it.
        overwrites = graph_is_freed() and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
        gradients = _observed_gradients(
            ctx.needs_input_grad[4:], x, initial_states, weights, lengths, saved, d_results, ctx.options, overwrites, ctx.plan
        )
        return None, None, None, None, *gradients


_differentiable: Callable[..., Any] = _Differentiable.apply
# `apply` without what it does for torch.func, in Python, for each argument.
_apply_directly: Callable[..., Any] = super(torch.autograd.Function, _Differentiable).apply


def _apply(
    x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, *options: Any
) -> Any:
    unobserved = can_skip_dispatch((x, *initial_states, *weights, lengths))
    return _differentiable(unobserved, len(initial_states), lengths, RNNOptions(*options), x, *initial_states, *weights)


for _name, _run, _faked in (
    ("persistent_forward", _forward, _fake), ("persistent_forward_keeping", _forward_with_reserve, _fake_keeping),
    ("persistent_backward", _backward, _fake_backward),
):  # fmt: skip
    library.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _faked, lib=library)
register_autograd(library, "persistent_forward", _apply)


def run(
    x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, options: RNNOptions
) -> Sequence[Tensor]:
    """Output [.., D*H] in x's layout, and final states [L*D, B, H], differentiable more than once.

    x: [T, B, I], or [B, T, I] with `options.batch_first`, of bfloat16, float16 or float32, on a CUDA device; with
    `options.projected` W_ih x without biases, [.., D*G*H]. initial_states: [L*D, B, H] each, () for zeros. weights: of each
    layer and direction weight_ih (None where x is projected), weight_hh, bias_ih and bias_hh (None for none), as torch.nn has
    them. lengths: int64 [B] on the same device, None for T. What is below 0 or above T counts as these. Nothing depends on x in
    the padding, where the output and x's gradient are 0. Raises ValueError for other shapes, dtypes, cells and devices, and for
    H that does not fit; RuntimeError where an earlier launch is known to have timed out, which a replayed graph does not check.
    """
    lengths = None if lengths is None else lengths.contiguous()
    tensors = (x, *initial_states, *weights, lengths)
    if not can_skip_dispatch(tensors):
        results: Sequence[Tensor] = _OPS.persistent_forward.default(x, initial_states, [*weights], lengths, *options)
    elif wants_gradient(tensors):
        results = _differentiable(True, len(initial_states), lengths, options, x, *initial_states, *weights)
    else:
        results, _ = forward.forward(x, initial_states, weights, lengths, options)
    return results
