"""Layouts of tensors that are taken for others: strides, offsets, lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, AroundScan, read_in_memory_order
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: layouts", cell="rnn_tanh")
class LengthsReadInMemoryOrder(AroundLoop):
    """Lengths are read as B integers from the first on, as if they were contiguous."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        return layer(x, state, None if lengths is None else read_in_memory_order(lengths).clamp(1, case.steps))


@mutant("form")
class OutputEndsWithTheLongest(AroundLoop):
    """Padded sequences end with the longest one: the output has as many steps, not T."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        longest = case.steps if lengths is None else int(lengths.max())
        return output.narrow(1 if case.batch_first else 0, 0, longest), final


@mutant("poison", cell="gru")
class PaddingAfterTheLongestUnwritten(AroundLoop):
    """The loop ends with the longest sequence, and the steps after it are never written."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        longest = case.steps if lengths is None else int(lengths.max())
        if longest == case.steps:
            return output, final
        time = 1 if case.batch_first else 0
        written = output.narrow(time, 0, longest)
        after = torch.empty_like(output.narrow(time, longest, case.steps - longest))
        return torch.cat([written, after], time), final


@mutant("property: layouts", cell="gru", device="cuda")
class StateCopiedWholeCuda(AroundLoop):
    """The initial state is copied to the workspace by one copy of its bytes, in the order of memory."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if isinstance(state, Tensor) and not state.requires_grad:
            workspace = torch.empty(state.shape, dtype=state.dtype, device=state.device)
            bytes_of_state = torch.empty(0, dtype=state.dtype, device=state.device).set_(state.untyped_storage())
            workspace.view(-1).copy_(bytes_of_state[state.storage_offset() :][: state.numel()])
            state = workspace
        return layer(x, state, lengths)


@mutant("property: layouts", cell="gru")
class StateOffsetIgnored(AroundLoop):
    """The initial state is read from the start of its memory, wherever it begins."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if isinstance(state, Tensor):
            state = state.as_strided(state.shape, state.stride(), 0)
        return layer(x, state, lengths)


@mutant("property: layouts")
class StateReadInMemoryOrder(AroundLoop):
    """The initial state is copied as so many elements from its first on, as if it were contiguous."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        if isinstance(state, tuple):
            state = tuple(read_in_memory_order(one) for one in state)
        return layer(x, state, lengths)


@mutant("property: layouts or expanded_inputs", cell="mingru")
class XElementsSideBySide(AroundScan):
    """Elements of a row of x are taken to lie side by side, whatever the stride between them."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        return layer(x.as_strided(x.shape, (*x.stride()[:2], 1)), *arguments)


@mutant("property: layouts")
class XRowsByOnePitch(AroundLoop):
    """Rows of x are found by one pitch, that of the second dimension: right with gaps and offsets, wrong if x is transposed."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        pitch = min(x.stride(0), x.stride(1))
        return layer(x.as_strided(x.shape, (x.shape[1] * pitch, pitch, x.stride(2))), *arguments)
