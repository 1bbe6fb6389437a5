"""Repeated calls of RNN, LSTM and GRU, without the checks that an earlier call of the kind passed, which take the host's time.

torch.nn.GRU's forward takes the host half as long again as torch.gru, which it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from operator import is_
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, get_num_threads, is_grad_enabled, nn
from torch._C import _get_deterministic_algorithms, _is_any_autocast_enabled
from torch.autograd import forward_ad

from pytest_ecornn.implementations._common.autograd_ops import can_skip_dispatch, wants_gradient
from pytest_ecornn.implementations._common.host_path import host_path
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations.persistent_gpu.ops import CheckedCall
from pytest_ecornn.nn.calls import run_layers, store_bounded
from pytest_ecornn.nn.torch_op import FUNCTIONS
from pytest_ecornn.reference.precision import is_autocast, reader

_MAX_CALLS, _MAX_MISSES = 1024, 8
_MAX_ZEROS = 2**18  # elements of an initial state that a module keeps; to fill more takes the device longer than the host
_make_guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
_rnn_precision = reader("rnn")
HOST_NOTE = "; host"  # ends notes of calls that the compiled host path may run


class Choice(NamedTuple):
    """A backend as called, another while a graph is captured, and what `notes` returns. is_final: equal calls have it too."""

    called: str
    captured: str
    notes: str
    is_final: bool = True

    @property
    def is_captured(self) -> bool:
        """Whether a graph is captured now, and another backend is for that."""
        return self.called != self.captured and torch.cuda.is_current_stream_capturing()

    @property
    def backend(self) -> str:
        """The backend of a call now."""
        return self.captured if self.is_captured else self.called


class ShortCalls:
    """The short calls of a module, each of a kind: sizes, modes and settings.

    With lengths, int64 on x's device, the kernels alone have them, a PackedSequence's padded sequences too.
    """

    def __init__(self) -> None:
        self._calls: dict[Hashable, ShortCall | Literal["never"] | None] = {}  # None: one of that kind was made
        self._zeros: dict[Hashable, Any] = {}
        self._weights: list[Tensor] = []  # the module's parameters that all of them run on
        self._last: tuple[Hashable, ShortCall] | None = None  # settings of the last call, and its short form

    def clear(self) -> None:
        self._calls.clear()
        self._zeros.clear()
        self._weights, self._last = [], None

    def get(self, module: Any, x: Tensor, hx: Any, lengths: Tensor | None) -> ShortCall | None:
        """The short form of a call, or None where it has none, or none yet."""
        if not self._calls:
            return None
        weights, settings = self._weights, _settings(module, x, hx, lengths)
        if not all(map(is_, weights, map(module._parameters.get, module._flat_weights_names))):
            self.clear()  # others have taken the place of its parameters
            return None
        if (last := self._last) is not None and last[0] == settings and last[1].is_for(_given(x, hx, lengths), weights):
            return last[1]  # whose guard knows x's shape
        call = self._calls.get((settings, x.shape, x.requires_grad))
        if type(call) is not ShortCall or not call.is_for(_given(x, hx, lengths), weights):
            return None
        self._last = settings, call
        return call

    def add(self, module: Any, x: Tensor, hx: Any, lengths: Tensor | None, choice: Choice) -> None:
        """Adds the short form of a call that has been made, at the second of its kind."""
        weights: list[Tensor] = module._flat_weights
        parameters = map(module._parameters.get, module._flat_weights_names)
        if not all(type(one) is nn.Parameter for one in weights) or not all(map(is_, weights, parameters)):
            return  # some are computed of others in each call
        if len(weights) != len(self._weights) or not all(map(is_, weights, self._weights)):
            self.clear()
            self._weights = list(weights)
        missing: Any = object()
        key = _settings(module, x, hx, lengths), x.shape, x.requires_grad
        states, given = _states_of(hx), _given(x, hx, lengths)
        if (earlier := self._calls.get(key, missing)) is missing:
            store_bounded(self._calls, _MAX_CALLS, key, None)
            return
        is_captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if earlier == "never" or is_captured or x.dim() != 3:
            return
        if _is_any_autocast_enabled() and (choice.called in ("torch", "fused_cpu") or not _may_cast((*given, *weights))):
            return
        if not can_skip_dispatch((*given, *weights)) or any(map(Tensor.is_neg, given)):
            return
        run: Callable[..., Any]
        if choice.called == "torch" and lengths is None:
            run = _TorchCall(module, x, self._zeros)
        elif choice.called == "fused_cpu":
            if lengths is not None or (module.training and module.dropout) or not all(one.is_contiguous() for one in given):
                return
            run = _fused_call(module, x, wants_gradient((*given, *weights)))
        elif choice.called == "torch" or not all(one.is_contiguous() for one in given):
            return
        else:
            run = _KernelCall(module, x, states, lengths)
        guard, misses = _make_guard((*given, *weights)), 0 if earlier is None else earlier.misses + 1
        if guard is None or misses > _MAX_MISSES or not guard(*given, *weights):  # which takes no tensor twice
            self._calls[key] = "never"
        else:
            self._calls[key] = ShortCall(guard, len(given) + len(weights), run, choice, misses)


def _states_of(hx: Any) -> tuple[Tensor, ...]:
    """The initial states of a call, none for None."""
    return () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)


def _given(x: Tensor, hx: Any, lengths: Tensor | None) -> tuple[Tensor, ...]:
    """All tensors that a call is given."""
    states = _states_of(hx)
    return (x, *states) if lengths is None else (x, *states, lengths)


def _settings(module: Any, x: Tensor, hx: Any, lengths: Tensor | None) -> Hashable:
    """What equal calls have alike. The guard checks layouts, dtypes, devices, gradients' needs and autocast of all tensors."""
    return (
        type(hx), lengths is None, module.training, module.dropout, module.batch_first, is_grad_enabled(),
        _get_deterministic_algorithms(), get_num_threads(), x.is_cuda and _rnn_precision(), _cast_dtype(x),
    )  # fmt: skip


def _cast_dtype(x: Tensor) -> torch.dtype | None:
    """Autocast's dtype on x's device, None where it is not enabled."""
    if not _is_any_autocast_enabled():  # before x's device is made
        return None
    return torch.get_autocast_dtype(x.device.type) if is_autocast(x.device) else None


def _make_guard(tensors: tuple[Tensor, ...]) -> Callable[..., bool] | None:
    """A function of as many tensors: whether their layouts, dtypes, devices and gradients' needs, and modes, are as now.

    torch compiles its own guards to it. None where this version of torch has none.
    """
    if _make_guards is None:
        return None
    shapes, strides = [list(one.shape) for one in tensors], [list(one.stride()) for one in tensors]
    guard: Callable[..., bool] = _make_guards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check
    return guard


class ShortCall:
    """A call like one that was chosen and checked before.

    guard, tensors: of x, states, lengths and weights, and their number. run: called with the module, x and hx, and lengths if
    there are. misses: earlier ones of the kind whose guards did not hold in the next calls.
    """

    __slots__ = ("_guard", "_runs_in_graphs", "_tensors", "choice", "misses", "notes", "run")

    def __init__(self, guard: Callable[..., bool], tensors: int, run: Callable[..., Any], choice: Choice, misses: int):
        self._guard, self._tensors, self.run, self.choice, self.misses = guard, tensors, run, choice, misses
        self._runs_in_graphs = choice.called == choice.captured
        self.notes = choice.notes + HOST_NOTE * isinstance(run, _KernelCall)

    def is_for(self, given: tuple[Tensor, ...], weights: list[Tensor]) -> bool:
        """Whether tensors, modes and transforms are as they were, and no graph is captured that another backend runs in."""
        return (
            len(given) + len(weights) == self._tensors
            and self._guard(*given, *weights)
            and forward_ad._current_level < 0
            and (self._runs_in_graphs or not torch.cuda.is_current_stream_capturing())
        )


class _TorchCall:
    """torch's function for a module, as torch.nn's forward calls it."""

    __slots__ = ("_function", "_has_cells", "_make_states", "_states")

    def __init__(self, module: Any, x: Tensor, stored: dict[Hashable, Any]):
        """stored: states of zeros of the module's other calls."""
        self._function, self._has_cells = FUNCTIONS[module.mode], (has_cells := module.mode == "LSTM")
        batch, tracks = x.shape[0 if module.batch_first else 1], module.num_layers * (1 + module.bidirectional)
        widths = (module.proj_size or module.hidden_size, module.hidden_size) if self._has_cells else (module.hidden_size,)
        dtype, device = x.dtype, x.device

        def make_states() -> Any:
            states = [torch.zeros(tracks, batch, width, dtype=dtype, device=device) for width in widths]
            return states if has_cells else states[0]

        self._make_states, self._states = make_states, None
        if tracks * batch * module.hidden_size > _MAX_ZEROS:
            return
        key = batch, x.dtype, x.device, torch.is_inference_mode_enabled()
        if key not in stored:
            stored[key] = make_states()
            if x.is_cuda:
                torch.cuda.current_stream(x.device).synchronize()  # other streams read them
        self._states = stored[key]

    def __call__(self, module: Any, x: Tensor, hx: Any) -> Any:
        if hx is None:  # zeros in a graph's own memory outlive these, and such a graph is faster: of one step 24.1 us, not 25.5
            is_captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
            hx = self._make_states() if is_captured or self._states is None else self._states
        results = self._function(
            x, hx, module._flat_weights, module.bias,
            module.num_layers, module.dropout, module.training, module.bidirectional, module.batch_first,
        )  # fmt: skip
        return (results[0], results[1:]) if self._has_cells else results


def _with_biases(module: Any) -> list[Tensor | None]:
    """A module's weights, with None for biases where it has none."""
    weights: list[Tensor | None] = module._flat_weights
    if module.bias:
        return weights
    return [one for i in range(0, len(weights), 2) for one in (*weights[i : i + 2], None, None)]


def _fused_call(module: Any, x: Tensor, trains: bool) -> Callable[..., Any]:
    """fused_cpu's call for a module, without dropout."""
    from pytest_ecornn.implementations.fused_cpu.module_call import run
    from pytest_ecornn.implementations.fused_cpu.short_run import ShortRun

    weights, options = _with_biases(module), (module.mode.lower(), module.batch_first, module.bidirectional)
    if not trains and ShortRun.is_for(x) and all(map(Tensor.is_contiguous, module._flat_weights)):
        tracks = [tuple(weights[at : at + len(PARAMETERS)]) for at in range(0, len(weights), len(PARAMETERS))]
        return ShortRun(options[0], module.hidden_size, x, *options[1:], tracks)

    def call(module: Any, x: Tensor, hx: Any) -> Any:
        output, *final = run(x, _states_of(hx), weights, None, *options)
        return output, tuple(final) if len(final) > 1 else final[0]

    return call


class _KernelCall:
    """The kernels' call for a module, with dropout one for each layer."""

    __slots__ = ("_calls", "_dropout")

    def __init__(self, module: Any, x: Tensor, states: Sequence[Tensor], lengths: Tensor | None):
        self._dropout, cast_dtype = module.dropout if module.training else 0.0, _cast_dtype(x)
        dtype = cast_dtype or x.dtype
        self._calls, shape, trains = list[CheckedCall](), x.shape, wants_gradient((x,))
        all_weights, layers = _with_biases(module), module.num_layers if self._dropout > 0 else 1
        options, size = module._options(dtype), len(all_weights) // layers
        for layer in range(layers):
            weights = all_weights[layer * size : (layer + 1) * size]
            initial = [state.chunk(layers)[layer] for state in states]
            trains = trains or wants_gradient((*initial, *weights))  # as the layers before it, whose output it takes
            given_dtype = None if cast_dtype is None else dtype if layer else x.dtype
            call = CheckedCall(shape, dtype, x.device, initial, weights, lengths, options, trains, given_dtype)
            self._calls.append(call)
            shape = torch.Size((*shape[:2], module.hidden_size * (1 + module.bidirectional)))

    def __call__(self, module: Any, x: Tensor, hx: Any, lengths: Tensor | None = None) -> Any:
        calls = self._calls if lengths is None else [partial(call, lengths=lengths) for call in self._calls]
        output, *states = run_layers(calls, x, _states_of(hx), self._dropout)
        return output, tuple(states) if len(states) > 1 else states[0]


def _may_cast(tensors: Sequence[Tensor]) -> bool:
    """Whether a planned call may cast the tensors, as autocast does."""
    return host_path().is_compiled and all(tensor.dtype != torch.float64 for tensor in tensors)
