"""torch.nn's RNN, LSTM and GRU run by persistent_gpu's kernels, in whose launch recurrent weights stay on chip for all steps.

They are torch.nn's own modules, parameters and checks; only what computes is another. On a CUDA device the kernels run or the
call raises: nothing is slow there in silence. On others forward is torch.nn's. Source: Diamos et al., Persistent RNNs, 2016.

torch.nn calls cuDNN there, whose version 9.19 is wrong in float16 for some shapes (docs/notes/cudnn.md). These modules do not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.contract import State, cells
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations.persistent_gpu.ops import run
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from pytest_ecornn.reference.precision import current

__all__ = ["GRU", "LSTM", "RNN"]


class _Persistent(nn.RNNBase):
    """Common base of RNN, LSTM and GRU; precedes torch.nn's class among the bases, so that `super()` is torch.nn's."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """output, final states: torch.nn's shapes, T time steps, B sequences, D directions, L layers.

        input: [T, B, I], with `batch_first` [B, T, I], of one sequence [T, I], or a PackedSequence, which output is then too.
        hx: None for zeros, or [L*D, B, H], of one sequence [L*D, H]; of LSTM a pair of those. bfloat16, float16 or float32 on a
        CUDA device, whose products of float32 are TF32 where torch.backends.cudnn.rnn says so; under autocast all is cast to
        its dtype. Differentiable once. A weight that requires no gradient costs nothing backward.

        Raises what torch.nn raises. On a CUDA device also ValueError, which says what was expected and what came: for another
        dtype, H that does not fit on the chip, a device that the kernels do not run on, or do not train on where a gradient is
        wanted; NotImplementedError for a gradient of a gradient and for forward-mode gradients; RuntimeError where an earlier
        launch is known to have given up. Empty input is torch.nn's: no sequences give empty results, no steps an error.
        """
        rows = input.data if isinstance(input, PackedSequence) else input
        if not _is_run_by_kernels(rows.device) or rows.numel() == 0:
            return super().forward(input, hx)
        if isinstance(input, PackedSequence):
            return self._run_packed(input, hx)
        dimensions = [one.dim() for one in cells.unpack_state(hx)]
        states = 2 if self.mode == "LSTM" else 1
        if input.dim() not in (2, 3) or dimensions not in ([], [input.dim()] * states):
            return super().forward(input, hx)  # which says what is wrong
        if input.dim() == 3:
            return self._run(input, hx)
        batch = 0 if self.batch_first else 1
        output, final = self._run(input.unsqueeze(batch), _map_states(hx, lambda state: state.unsqueeze(1)))
        return output.squeeze(batch), _map_states(final, lambda state: state.squeeze(1))

    def flatten_parameters(self) -> None:
        """Does nothing: kernels read parameters in place, and cuDNN's one buffer for all would have to be aligned for them."""

    def _run_packed(self, packed: PackedSequence, hx: State) -> tuple[PackedSequence, State]:
        """Runs sequences in the order of their lengths, as in `packed`; initial and final states are in the batch's order."""
        data, batch_sizes, order, order_back = packed
        x, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), self.batch_first)
        hx = hx if order is None else _map_states(hx, lambda state: state.index_select(1, order))
        output, final = self._run(x, hx, lengths)
        output = pack_padded_sequence(output, lengths, self.batch_first).data
        final = final if order_back is None else _map_states(final, lambda state: state.index_select(1, order_back))
        return PackedSequence(output, batch_sizes, order, order_back), final

    def _run(self, x: Tensor, hx: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """x: [T, B, I], or [B, T, I] with `batch_first`. lengths: on the CPU."""
        self._update_flat_weights()
        if hx is None:
            self.check_input(x, None)
        else:
            self.check_forward_args(x, hx, None)  # type: ignore[arg-type]
        cast, lengths = _cast(x.device), None if lengths is None else lengths.to(x.device, non_blocking=True)
        x, first, how = cast(x), [cast(state) for state in cells.unpack_state(hx)], self._options(x.dtype)
        found = [getattr(self, name, None) for name in _names(self.num_layers, self.bidirectional)]
        weights = [None if one is None else cast(one) for one in found]
        if not (self.dropout > 0 and self.training):
            output, *final = run(x, first, weights, lengths, how)
            return output, tuple(final) if len(final) > 1 else final[0]
        return self._run_with_dropout(x, first, weights, lengths, how)

    def _options(self, dtype: torch.dtype) -> RNNOptions:
        tf32 = dtype == torch.float32 and current("rnn") == "tf32"
        return RNNOptions(self.mode.lower(), self.batch_first, self.bidirectional, projected=False, tf32=tf32)

    def _run_with_dropout(
        self, x: Tensor, first: list[Tensor], weights: list[Tensor | None], lengths: Tensor | None, how: RNNOptions
    ) -> tuple[Tensor, State]:
        """A layer after the other, between which elements are dropped."""
        directions, finals = 2 if self.bidirectional else 1, []
        for layer in range(self.num_layers):
            x = dropout(x, self.dropout) if layer else x
            tracks = slice(layer * directions, (layer + 1) * directions)
            of_layer = weights[tracks.start * len(PARAMETERS) : tracks.stop * len(PARAMETERS)]
            x, *final = run(x, [state[tracks] for state in first], of_layer, lengths, how)
            finals.append(final)
        joined = tuple(torch.cat(of_state) for of_state in zip(*finals, strict=True))
        return x, joined if len(joined) > 1 else joined[0]


def _is_run_by_kernels(device: torch.device) -> bool:
    return device.type == "cuda"


@lru_cache
def _names(layers: int, bidirectional: bool) -> list[str]:
    """Names of all parameters, layer by layer."""
    endings = [f"_l{layer}{end}" for layer in range(layers) for end in ("", "_reverse")[: 1 + bidirectional]]
    return [name + suffix for suffix in endings for name in PARAMETERS]


def _cast(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns a function that casts as autocast casts its operators' arguments: float64 stays float64."""
    if not torch.is_autocast_enabled(device.type):
        return lambda given: given
    dtype = torch.get_autocast_dtype(device.type)
    return lambda given: given if given.dtype == torch.float64 else given.to(dtype)


def _map_states(state: State, function: Callable[[Tensor], Tensor]) -> State:
    """The function of each of the states, None for none."""
    if state is None or isinstance(state, Tensor):
        return None if state is None else function(state)
    return tuple(map(function, state))


class RNN(_Persistent, nn.RNN):
    """torch.nn.RNN, tanh or relu, in its place: the same arguments, parameters, state_dict, shapes and errors (`forward`)."""


class GRU(_Persistent, nn.GRU):
    """torch.nn.GRU in its place: the same arguments, parameters, state_dict, shapes and errors (`forward`)."""


class LSTM(_Persistent, nn.LSTM):
    """torch.nn.LSTM in its place: the same arguments, parameters, state_dict, shapes and errors (`forward`).

    Raises ValueError for a proj_size: the kernels have no projection of the states.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.proj_size:
            raise ValueError(f"expected proj_size 0, got {self.proj_size}: only torch.nn.LSTM projects its states")
