"""torch.nn's RNN, LSTM and GRU by kernels: persistent_gpu's on a CUDA device, fused_cpu's on a CPU.

A launch of persistent_gpu keeps recurrent weights on chip for all steps. A call of fused_cpu runs all steps in one kernel.
They have torch.nn's arguments, parameters, state_dict, shapes and errors. Where the kernels run, the first call of a kind times
them and torch.nn, and the faster runs from then on; elsewhere torch.nn does. `notes()` says which and why.
With `backend="persistent_gpu"` the kernels run or the call raises.
Source: Diamos et al., Persistent RNNs, 2016.

On a CUDA device torch.nn calls cuDNN, whose version 9.19 is wrong in float16 for some shapes (docs/notes/cudnn.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.contract import State, cells
from pytest_ecornn.implementations._common.host_path import host_path
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations.persistent_gpu.ops import run
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from pytest_ecornn.nn.autocast import autocast_of, cast_parameters
from pytest_ecornn.nn.backend_choice import OF_LENGTHS, BackendChooser, choose_traced, choose_with_lengths
from pytest_ecornn.nn.calls import decompose_in_transforms, is_in_vmap, lengths_beside, map_states, run_layers, run_packed
from pytest_ecornn.nn.kernel_limits import FUSED
from pytest_ecornn.nn.lengths_by_torch import batched_states, run_by_torch
from pytest_ecornn.nn.module_candidates import is_tf32
from pytest_ecornn.nn.quantization import qconfig_of
from pytest_ecornn.nn.short_calls import HOST_NOTE, Choice
from pytest_ecornn.nn.torch_op import run_as_op, runs_as_op
from pytest_ecornn.nn.tracing import LEAF_MODULE

if TYPE_CHECKING:
    from pytest_ecornn.implementations.fused_cpu.stream import Stream

__all__ = ["GRU", "LSTM", "RNN"]


BACKENDS = ("auto", "heuristic", "persistent_gpu", "fused_cpu", "torch")


class _Recurrent(nn.RNNBase):
    """Common base of RNN, LSTM and GRU. It is no torch.nn.RNN, LSTM or GRU, of which torch.compile refuses subclasses."""

    _torch_class: ClassVar[type[nn.RNNBase]]
    _backend, _notes = "auto", "not called yet"  # defaults of the class, for modules pickled before these attributes existed
    _chooser: BackendChooser
    _has_weights = False  # while a call runs whose `_flat_weights` are computed

    def __init__(self, mode: str, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        self.__dict__.update(self.own_attributes(backend))
        super().__init__(mode, *args, **kwargs)

    @staticmethod
    def own_attributes(backend: str = "auto") -> dict[str, Any]:
        """Attributes that torch.nn's modules do not have. Raises ValueError for another backend."""
        if backend not in BACKENDS:
            raise ValueError(f"expected backend as one of {', '.join(BACKENDS)}, got {backend!r}")
        return {"_backend": backend, "_chooser": BackendChooser(), "__module__": LEAF_MODULE}

    def forward(self, input: Any, hx: Any = None, resets: Tensor | None = None, lengths: Any = None) -> Any:
        """output, final states: torch.nn's shapes, T time steps, B sequences, D directions, L layers.

        input: [T, B, I], with `batch_first` [B, T, I], of one sequence [T, I], or a PackedSequence, which output is then too.
        hx: None for zeros, or [L*D, B, H], of one sequence [L*D, H]; of LSTM a pair of those. Under autocast all is cast to its
        dtype. On a CUDA device the kernels take bfloat16, float16 and float32, whose products are TF32 where
        torch.backends.cudnn.rnn says so, and an H that fits on the chip. A weight that requires no gradient costs nothing.

        lengths: of the sequences of a padded input, None for T: [B] of any integers from 0 to T, in any order, on any device,
        or a sequence of ints. Nothing depends on what lies in the padding, NaN included; the output and the input's gradient
        are 0 there. The final state of a sequence is that at its end, of length 0 hx; in reverse it starts from its end. On a
        GPU the kernels run wherever they can then, nothing waits for the device, and values below 0 or above T count as these.
        In a CUDA graph give lengths on the GPU, which each replay reads anew.

        With backend "auto" torch.nn runs the first calls of a kind until kernels are compiled. Then one call times both for
        milliseconds, and stores what it chose.
        resets: must be None; not implemented. Double backward (create_graph=True) runs a loop over time. torch.compile times
        while it traces; graphs of T or B that vary run what the cost models choose.

        Raises what torch.nn raises, and NotImplementedError for resets; ValueError for lengths of another shape or dtype, on a
        CPU for values below 0 or above T, and for lengths beside a PackedSequence or one sequence; with backend
        "persistent_gpu" ValueError where the kernels do not run; where they run RuntimeError if an earlier launch is known to
        have given up.
        """
        if resets is not None:
            raise NotImplementedError(f"{type(self).__name__} takes no resets yet; MinGRU and MinLSTM do")
        if lengths is not None:
            return self._forward_with_lengths(input, hx, lengths)
        if torch.compiler.is_compiling():
            self._update_flat_weights()
            backend, self._notes = choose_traced(self, input, hx)
            return self._forward_by(backend, input, hx)
        chooser, may_be_short = self._chooser, type(input) is Tensor
        # Notes are set not by Module's __setattr__, which takes the host as long as all of this.
        if may_be_short and (call := chooser.short_call(self, input, hx, None)) is not None:
            self.__dict__["_notes"] = call.notes
            return call.run(self, input, hx)
        choice, has_weights = chooser.on_cpu, False
        if choice is None or type(input) is not Tensor or not input.is_cpu:
            self._update_flat_weights()  # whose gradients a choice depends on
            choice, has_weights = chooser.choose(self, input, hx), True
        self.__dict__["_notes"] = choice.notes
        if isinstance(input, PackedSequence) and choice.backend == "persistent_gpu":
            return run_packed(partial(self._run_packed, choice), input, hx, self.batch_first)
        results = self._forward_by(choice.backend, input, hx, has_weights)
        if may_be_short:
            chooser.remember(self, input, hx, None, choice)
        return results

    def _forward_with_lengths(self, input: Any, hx: Any, given: Any) -> Any:
        chooser, may_be_short = self._chooser, not torch.compiler.is_compiling() and _are_on_one_device(input, given)
        if may_be_short and (call := chooser.short_call(self, input, hx, given)) is not None:
            self.__dict__["_notes"] = call.notes
            return call.run(self, input, hx, given)
        lengths = lengths_beside(input, given, self.batch_first)
        self._update_flat_weights()
        choice = choose_with_lengths(self, input, hx)
        self._notes = choice.notes
        if choice.called == "torch":
            if runs_as_op(self, input, hx):
                return self._run_as_op(input, hx, lengths)
            return run_by_torch(self, input, hx, lengths)
        results = self._run(input, hx, lengths, choice.called)
        if may_be_short:
            chooser.remember(self, input, hx, given, choice)
        return results

    def _run_packed(self, choice: Choice, x: Tensor, hx: State, lengths: Tensor) -> tuple[Tensor, State]:
        """`_run` of padded sequences by the kernels, in short where it has run before."""
        lengths = lengths.to(x.device)
        call = self._chooser.short_call(self, x, hx, lengths)
        results: tuple[Tensor, State] = self._run(x, hx, lengths) if call is None else call.run(self, x, hx, lengths)
        if call is not None:
            self.__dict__["_notes"] = choice.notes + HOST_NOTE
        elif choice.is_final:
            self._chooser.remember(self, x, hx, lengths, OF_LENGTHS)  # calls with lengths beside x may take it too
        return results

    def _forward_by(self, backend: str, input: Any, hx: Any, has_weights: bool = True) -> Any:
        if backend != "torch":
            return self._forward_with(partial(self._run, backend=backend), input, hx)
        if runs_as_op(self, input, hx):
            return self._forward_with(self._run_as_op, input, hx)
        return self._forward_by_torch(input, hx, has_weights)

    def _forward_by_torch(self, input: Any, hx: Any, has_weights: bool = True) -> Any:
        """torch.nn's forward. has_weights: `_flat_weights` are those of this call, and not computed again."""
        if is_in_vmap() and isinstance(input, Tensor):
            hx = batched_states(self, input, hx)
        self.__dict__["_has_weights"] = has_weights
        try:
            return decompose_in_transforms(self._torch_class.forward, self, input, hx)
        finally:
            self.__dict__["_has_weights"] = False

    def _update_flat_weights(self) -> None:
        if not self._has_weights:
            super()._update_flat_weights()

    def _forward_with(self, run: Callable[..., Any], input: Any, hx: Any) -> Any:
        """run: `_run` or `_run_as_op`, for inputs of other forms."""
        if isinstance(input, PackedSequence):
            return run_packed(run, input, hx, self.batch_first)
        if input.dim() == 3:
            return run(input, hx)
        batch = 0 if self.batch_first else 1
        output, final = run(input.unsqueeze(batch), map_states(hx, lambda state: state.unsqueeze(1)))
        return output.squeeze(batch), map_states(final, lambda state: state.squeeze(1))

    @property
    def backend(self) -> str:
        return self._backend

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", backend={self._backend!r}" if self._backend != "auto" else "")

    def notes(self) -> str:
        """Returns what ran the last call, and why: the times that decided and their cost, or what the kernels do not run.

        Of repeated calls by persistent_gpu also what runs the host's part, unless `ECORNN_HOST` is python.
        """
        notes: str = self._notes
        if not notes.endswith(HOST_NOTE):
            return notes
        notes = notes.removesuffix(HOST_NOTE)
        return f"{notes}; {host_path().notes}" if host_path().is_enabled else notes

    def flatten_parameters(self) -> None:
        """Flattens parameters for cuDNN, bfloat16 too. With backend "persistent_gpu" they stay where they are."""
        if self._backend == "persistent_gpu" and not self.proj_size:
            return
        super().flatten_parameters()
        flatten_bfloat16(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._chooser.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _replicate_for_data_parallel(self) -> Any:
        replica = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._chooser = BackendChooser()
        return replica

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for name, value in self.own_attributes().items():  # some of which modules pickled before lack
            self.__dict__.setdefault(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "qconfig":
            value = qconfig_of(self, value)
        super().__setattr__(name, value)

    def stream(self, batch: int = 1, weight_dtype: torch.dtype | None = None) -> Stream:
        """Steps of this module on a CPU, each in a few microseconds: `output, state = stream(x, state)`.

        batch: sequences, B. weight_dtype: in which the stream holds its copy of the weights, None for the computing type;
        bfloat16 halves what large layers read, int8 with a scale for each row quarters it, and both round weights. The stream
        runs in evaluation: nothing is dropped. It has the weights of now; call `Stream.update` where they have changed. Raises
        ValueError for both directions, proj_size, parameters elsewhere than on a CPU, dtypes that it does not have, and NaN or
        infinities in int8.
        """
        if self.bidirectional or self.proj_size:
            reason = "bidirectional" if self.bidirectional else f"proj_size {self.proj_size}"
            raise ValueError(f"expected one direction without projections, got {reason}")
        from pytest_ecornn.implementations.fused_cpu.stream import make_stream

        return make_stream(self, self.mode.lower(), self._flat_weights_names, batch, weight_dtype)

    def to_torch(self) -> nn.RNNBase:
        """torch.nn's module in place of this one, with the same parameters, hooks and mode. torch.jit.script scripts it."""
        from pytest_ecornn import nn as own  # which imports this module

        return own.to_torch(self)

    __prepare_scriptable__ = to_torch

    def _check(self, x: Tensor, hx: State) -> None:
        """Raises what torch.nn raises."""
        if hx is None:
            self.check_input(x, None)
        else:
            self.check_forward_args(x, hx, None)  # type: ignore[arg-type]

    def _run_as_op(self, x: Tensor, hx: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """x, lengths: as of `_run`."""
        self._check(x, hx)
        return run_as_op(self, x, hx, lengths)

    def _run(
        self, x: Tensor, hx: State, lengths: Tensor | None = None, backend: str = "persistent_gpu"
    ) -> tuple[Tensor, State]:
        """x: [T, B, I], or [B, T, I] with `batch_first`. lengths: int64 [B] on any device. backend: whose kernels run."""
        self._check(x, hx)
        cast, lengths = autocast_of(x.device), None if lengths is None else lengths.to(x.device, non_blocking=True)
        x, first, how = cast(x), [cast(state) for state in cells.unpack_state(hx)], self._options(x.dtype)
        by_name = dict(zip(self._flat_weights_names, self._flat_weights, strict=True))
        parameters = [by_name.get(name) for name in _names(self.num_layers, self.bidirectional)]
        layers = self.num_layers if self.dropout > 0 and self.training else 1
        size = len(parameters) // layers  # each layer's gradients are ready before the next one's are computed
        of_layers = [cast_parameters(parameters[at : at + size], x.device) for at in range(0, len(parameters), size)]
        is_transposed = backend == FUSED and layers > 1 and self.batch_first  # torch.nn on a CPU drops elements of [T, B, H]
        if is_transposed:
            x, how = x.transpose(0, 1), how._replace(batch_first=False)
        calls = [_run_of(backend, weights, lengths, how) for weights in of_layers]
        output, *final = run_layers(calls, x, first, self.dropout)
        output = output.transpose(0, 1) if is_transposed else output
        return output, tuple(final) if len(final) > 1 else final[0]

    def _options(self, dtype: torch.dtype) -> RNNOptions:
        cell = self.mode.lower()
        return RNNOptions(cell, self.batch_first, self.bidirectional, projected=False, tf32=is_tf32(dtype))


def _run_of(backend: str, weights: list[Tensor | None], lengths: Tensor | None, how: RNNOptions) -> Any:
    """A backend's function of x and initial states."""
    if backend != FUSED:
        return partial(run, weights=weights, lengths=lengths, options=how)
    from pytest_ecornn.implementations.fused_cpu import module_call

    options = how.cell, how.batch_first, how.bidirectional
    return lambda x, first: module_call.run(x, first, weights, lengths, *options)


_names_of: dict[tuple[int, bool], list[str]] = {}  # no lru_cache, into which torch.compile looks with a warning


def _names(layers: int, bidirectional: bool) -> list[str]:
    """Names of all parameters, layer by layer."""
    found = _names_of.get((layers, bidirectional))
    if found is None:
        endings = [f"_l{layer}{end}" for layer in range(layers) for end in ("", "_reverse")[: 1 + bidirectional]]
        found = _names_of[layers, bidirectional] = [name + suffix for suffix in endings for name in PARAMETERS]
    return found


def _are_on_one_device(input: Any, lengths: Any) -> bool:
    """Whether kernels may read a call's tensors as they are."""
    if type(input) is not Tensor or type(lengths) is not Tensor:
        return False
    return lengths.dtype == torch.int64 and lengths.device == input.device


class RNN(_Recurrent):
    """torch.nn.RNN, tanh or relu, in its place: its arguments, parameters, state_dict, shapes and errors (`forward`).

    backend: "auto", "heuristic" (which times nothing), or "persistent_gpu", "fused_cpu" or "torch" alone. Raises ValueError for
    another.
    """

    _torch_class = nn.RNN

    def __init__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        _check_no_projection(kwargs)
        nonlinearity = args[3] if len(args) > 3 else kwargs.pop("nonlinearity", "tanh")
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        self.nonlinearity = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", *args[:3], *args[4:], backend=backend, **kwargs)


class GRU(_Recurrent):
    """torch.nn.GRU in its place: its arguments, parameters, state_dict, shapes and errors (`forward`).

    backend: as RNN's.
    """

    _torch_class = nn.GRU

    def __init__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        _check_no_projection(kwargs)
        super().__init__("GRU", *args, backend=backend, **kwargs)


class LSTM(_Recurrent):
    """torch.nn.LSTM in its place: its arguments, parameters, state_dict, shapes and errors (`forward`).

    backend: as RNN's.
    """

    _torch_class = nn.LSTM
    get_expected_cell_size = nn.LSTM.get_expected_cell_size
    check_forward_args = nn.LSTM.check_forward_args  # type: ignore[assignment]
    permute_hidden = nn.LSTM.permute_hidden  # type: ignore[assignment]

    def __init__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        super().__init__("LSTM", *args, backend=backend, **kwargs)


def _check_no_projection(arguments: dict[str, Any]) -> None:
    if "proj_size" in arguments:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


def flatten_bfloat16(module: nn.RNNBase) -> None:
    """Moves a module's parameters into one buffer as cuDNN reads them, if they are bfloat16 on a CUDA device and not shared.

    torch.nn's modules do not flatten such, so that each of their calls copies them.
    """
    weights = [weight for weight in module._flat_weights if isinstance(weight, Tensor)]
    if not all(weight.is_cuda and weight.dtype == torch.bfloat16 for weight in weights):
        return
    is_whole = len(weights) == len(module._flat_weights_names) == len({weight.data_ptr() for weight in weights})
    if not (is_whole and weights and torch.backends.cudnn.enabled and torch._use_cudnn_rnn_flatten_weight()):
        return
    with torch.cuda.device_of(weights[0]), torch.no_grad():
        torch._cudnn_rnn_flatten_weight(
            weights, (4 if module.bias else 2) + bool(module.proj_size), module.input_size,
            torch.backends.cudnn.rnn.get_cudnn_mode(module.mode), module.hidden_size, module.proj_size, module.num_layers,
            module.batch_first, bool(module.bidirectional),
        )  # fmt: skip
