"""The transposed-layout layer as torch's ops `pytest_ecornn::transposed_forward` and `transposed_backward`.

Each replays a CUDA graph of the whole pass. A graph has fixed addresses: what it is given is copied in, its results are copied
out. While the caller's stream is being captured, or where the weights lie elsewhere than those that the graph was made for,
the same pass is launched plainly. Registered below `torch.library.custom_op`, whose checks of every call cost more host time
than the launches of a small layer.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Layer, State, Weights, cells
from pytest_ecornn.implementations._common.autograd_ops import differentiable_once
from pytest_ecornn.implementations.transposed_gpu.buffers import reserve_bytes
from pytest_ecornn.implementations.transposed_gpu.layer import Plan, Tensors, run_backward, run_forward

_layer_ids = count()
_layers: weakref.WeakValueDictionary[int, TransposedLayer] = weakref.WeakValueDictionary()


def capture(plan: Plan, launch: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Captures in a graph what `launch` launches under the plan's settings. Returns the graph and what `launch` returned."""
    graph, cuda_stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(plan.form.device)
    cuda_stream.wait_stream(torch.cuda.current_stream())
    with plan.settings():
        with torch.cuda.stream(cuda_stream):
            launch()  # what libraries set up at first use cannot be captured
        torch.cuda.current_stream().wait_stream(cuda_stream)
        with torch.cuda.graph(graph, stream=cuda_stream, capture_error_mode="thread_local"):
            results = launch()
    return graph, results


_SMALL = 2**17  # elements
_this_thread = threading.local()


def _make_blas_handle(device: torch.device) -> None:
    """Makes cuBLAS ready on this thread (autograd has its own), so that a caller may capture what until now was replayed."""
    ready = _this_thread.__dict__.setdefault("ready", set())
    if device not in ready:
        torch.cuda.current_blas_handle()
        ready.add(device)


def _copy(targets: Tensors, sources: Tensors) -> None:
    """Small tensors in one launch, which has too few blocks for large ones: those each in its own."""
    small = [number for number, target in enumerate(targets) if target.numel() <= _SMALL]
    if small:
        torch._foreach_copy_([targets[n] for n in small], [sources[n] for n in small], non_blocking=True)
    for target, source in zip(targets, sources, strict=True):
        if target.numel() > _SMALL:
            target.copy_(source, non_blocking=True)


class GraphedPass:
    """A pass as a graph over tensors of its own. lengths: on the device, or None."""

    def __init__(self, plan: Plan, run: Callable[[Tensors, Tensor | None], Tensors], inputs: Tensors, lengths: Tensor | None):
        self._inputs, self._lengths = inputs, lengths
        self._graph, self._results = capture(plan, lambda: run(inputs, lengths))
        self._last_use: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None

    def __call__(self, inputs: Tensors, lengths: Tensor | None) -> Tensors:
        _make_blas_handle(self._inputs[0].device)
        cuda_stream = torch.cuda.current_stream()
        if self._last_use and self._last_use[0] != cuda_stream:
            cuda_stream.wait_event(self._last_use[1])
        _copy(self._inputs, inputs)
        if self._lengths is not None and lengths is not None:
            self._lengths.copy_(lengths, non_blocking=True)
        self._graph.replay()
        results = [torch.empty_like(result) for result in self._results]
        _copy(results, self._results)
        self._last_use = (cuda_stream, cuda_stream.record_event())
        return results


class TransposedLayer:
    """A plan with the weights that its graphs were made for. `number` names it to the ops while it lives."""

    def __init__(self, plan: Plan, weights: Sequence[Tensor]):
        self.plan, self.number = plan, next(_layer_ids)
        self._addresses = [weight.data_ptr() for weight in weights]
        self._forward: GraphedPass | None = None
        self._backward: GraphedPass | None = None
        # Sparse weights are masked anew at each call of training, and no graph fits where they come to lie.
        if plan.form.device.type == "cuda" and plan.form.case.density == 1:
            self._capture(list(weights))
        _layers[self.number] = self

    def _capture(self, weights: Tensors) -> None:
        plan, form, case = self.plan, self.plan.form, self.plan.form.case

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=form.storage, device=form.device)

        x = zeros(*form.leading_dims, cells.x_width(case))
        final_states = [zeros(form.num_pseudo_layers, case.batch, case.hidden_size) for _ in cells.get(case.cell).states]
        lengths = torch.full((case.batch,), case.steps, device=form.device) if case.ragged else None
        given = final_states if case.has_state else []
        self._forward = GraphedPass(plan, lambda i, n: run_forward(plan, i[0], weights, i[1:], n), [x, *given], lengths)
        if case.training:
            output = zeros(*form.leading_dims, case.directions * case.hidden_size)
            memory = torch.zeros(reserve_bytes(form), dtype=torch.uint8, device=form.device)
            inputs = [output, *(torch.zeros_like(state) for state in final_states), torch.zeros_like(x), memory]
            self._backward = GraphedPass(
                plan, lambda i, n: run_backward(plan, i[0], i[1:-2], i[-2], weights, i[-1], n), inputs, lengths
            )

    def _can_use_graph(self, weights: Sequence[Tensor]) -> bool:
        return not torch.cuda.is_current_stream_capturing() and [weight.data_ptr() for weight in weights] == self._addresses

    def _current_device(self) -> AbstractContextManager[Any]:
        """Within it, current streams are those of the layer's device."""
        device = self.plan.form.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _on_device(self, lengths: Tensor | None) -> Tensor | None:
        return None if lengths is None else lengths.to(self.plan.form.device, non_blocking=True)

    def forward(self, x: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None) -> Tensors:
        with self._current_device():
            if self._forward and self._can_use_graph(weights):
                return self._forward([x, *state], lengths)
            return run_forward(self.plan, x, weights, state, self._on_device(lengths))

    def backward(
        self, d_output: Tensor, d_finals: Tensors, x: Tensor, weights: Tensors, lengths: Tensor | None, memory: Tensor
    ) -> Tensors:
        with self._current_device():
            if self._backward and self._can_use_graph(weights):
                return self._backward([d_output, *d_finals, x, memory], lengths)
            return run_backward(self.plan, d_output, d_finals, x, weights, memory, self._on_device(lengths))


_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define("transposed_forward(Tensor x, Tensor[] weights, Tensor[] state, Tensor? lengths, int layer) -> Tensor[]")
_library.define(
    "transposed_backward(Tensor d_output, Tensor[] d_finals, Tensor x, Tensor[] weights, Tensor? lengths, Tensor memory, "
    "int layer) -> Tensor[]"
)


def _forward(x: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None, layer: int) -> Tensors:
    """Output, final states, and in training what the backward pass needs, uint8."""
    return _layers[layer].forward(x, weights, state, lengths)


def _backward(
    d_output: Tensor, d_finals: Tensors, x: Tensor, weights: Tensors, lengths: Tensor | None, memory: Tensor, layer: int
) -> Tensors:
    """The gradients of x, of the initial states where there are any, and of all weights."""
    return _layers[layer].backward(d_output, d_finals, x, weights, lengths, memory)


def _fake_forward(x: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None, layer: int) -> Tensors:
    form = _layers[layer].plan.form
    case = form.case
    output = x.new_empty((*x.shape[:2], case.directions * case.hidden_size))
    final_states = [x.new_empty((form.num_pseudo_layers, case.batch, case.hidden_size)) for _ in cells.get(case.cell).states]
    memory = [x.new_empty((reserve_bytes(form),), dtype=torch.uint8)] if case.training else []
    return [output, *final_states, *memory]


def _fake_backward(
    d_output: Tensor, d_finals: Tensors, x: Tensor, weights: Tensors, lengths: Tensor | None, memory: Tensor, layer: int
) -> Tensors:
    final_states = d_finals if _layers[layer].plan.form.case.has_state else []
    return [one.new_empty(one.shape) for one in (x, *final_states, *weights)]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: int, lengths: Tensor | None, states: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, state, weights = tensors[0], list(tensors[1 : 1 + states]), list(tensors[1 + states :])
        with torch._C._AutoDispatchBelowAutograd():
            results = torch.ops.pytest_ecornn.transposed_forward(x, weights, state, lengths, layer)
        ctx.owner = _layers[layer]  # which the backward pass needs as well
        ctx.layer, ctx.lengths, ctx.states = layer, lengths, states
        ctx._materialize_non_diff_grads = False  # of the reserve, which is large
        ctx.save_for_backward(x, results[-1], *weights)
        ctx.mark_non_differentiable(results[-1])
        return tuple(results)

    @staticmethod
    @differentiable_once("pytest_ecornn::transposed_forward")
    def backward(ctx: Any, d_output: Tensor, *rest: Tensor) -> Any:
        x, memory, *weights = ctx.saved_tensors
        found = torch.ops.pytest_ecornn.transposed_backward(
            d_output, list(rest[:-1]), x, weights, ctx.lengths, memory, ctx.layer
        )
        return None, None, None, *found


def _forward_autograd(x: Tensor, weights: Tensors, state: Tensors, lengths: Tensor | None, layer: int) -> Tensors:
    if _layers[layer].plan.form.case.training and torch.is_grad_enabled():
        return list(_Differentiable.apply(layer, lengths, len(state), x, *state, *weights))  # type: ignore[no-untyped-call]
    with torch._C._AutoDispatchBelowAutograd():
        found: Tensors = torch.ops.pytest_ecornn.transposed_forward(x, weights, state, lengths, layer)
    return found


for _name, _run, _fake in (
    ("transposed_forward", _forward, _fake_forward), ("transposed_backward", _backward, _fake_backward),
):  # fmt: skip
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"pytest_ecornn::{_name}", _fake, lib=_library)
_library.impl("transposed_forward", _forward_autograd, "Autograd")


def make_layer(plan: Plan, weights: Weights) -> Layer:
    """The contract's layer."""
    case, final_states = plan.form.case, len(cells.get(plan.form.case.cell).states)
    fixed = [] if case.training else [weights.masked(name).detach() for name in weights]
    plan.prepare(fixed)
    this = TransposedLayer(plan, fixed or [weight.detach() for weight in weights.values()])

    def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        given = fixed or [weights.masked(name) for name in weights]
        results = torch.ops.pytest_ecornn.transposed_forward(x, given, list(cells.unpack_state(state)), lengths, this.number)
        return results[0], tuple(results[1 : 1 + final_states]) if final_states > 1 else results[1]

    return layer
