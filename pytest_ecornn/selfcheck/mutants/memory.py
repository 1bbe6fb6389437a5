"""Memory that is read or written where it must not be, or never written."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, AroundScan, Loop, Parameters, with_gradient, with_value
from pytest_ecornn.selfcheck.planting import mutant


@mutant("poison")
class ElementUnwritten(AroundLoop):
    """The last element of the output is never written."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        written = torch.empty(output.numel(), dtype=output.dtype, device=output.device)
        return torch.cat([output.flatten()[:-1], written[-1:]]).view_as(output), final


@mutant("unchanged", cell="gru")
class FinalInInitial(AroundLoop):
    """The final state is written into the initial state's memory and returned there."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if state is None or case.training:
            return output, final
        assert isinstance(state, Tensor)
        return output, state.copy_(final)  # type: ignore[arg-type]


@mutant("poison", cell="gru")
class GradientUnwritten(AroundLoop):
    """The last element of the gradient of x is never written."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        def unwritten(gradient: Tensor) -> Tensor:
            written = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device).view(-1)
            written[:-1] = gradient.flatten()[:-1]
            return written.view_as(gradient)

        return layer(with_gradient(x, unwritten), *arguments)


@mutant("equivalence: output", cell="gru")
class IndexWraps(AroundLoop):
    """An index into x wraps around at 4,096 elements, as one of 32 bits does at four thousand million."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        index = torch.arange(x.numel(), device=x.device) % 4096
        return layer(x.reshape(-1)[index].view(x.shape), *arguments)


@mutant("unchanged")
class InputMutated(AroundLoop):
    """x is clamped in its own memory."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        result = layer(x, *arguments)
        x.data.clamp_(-1, 1)
        return result


@mutant("unchanged")
class LossWeightMutated(AroundLoop):
    """The backward pass scales the gradient it was given in its own memory."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        return with_gradient(output, self._doubled), final

    def _doubled(self, gradient: Tensor) -> Tensor:
        doubled = gradient * 2
        gradient.data.copy_(doubled)
        return doubled / 2


DEPTH = 4


@mutant("equivalence: grad weight_ih")
class OfTwoLayersByTurns(Loop):
    """Layers' inputs lie in two buffers by turns: with four layers one is overwritten before the backward pass reads it."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        gates, weight = super().x_gates(x, parameters), parameters["weight_ih"]
        if self.case.layers < DEPTH or not weight.requires_grad or x.shape[-1] != self.case.directions * self.case.hidden_size:
            return gates
        wrong = linear(x.detach().flip(0), weight, parameters.get("bias_ih"))  # whose gradient is another step's
        return with_value(wrong + linear(x, weight.detach()), gates)


@mutant("equivalence: output", cell="mingru")
class OffsetInput(AroundScan):
    """The scan reads x from the start of its memory, wherever x begins."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        return layer(x.as_strided(x.shape, x.stride(), 0), *arguments)


@mutant("unchanged", cell="rnn_tanh")
class OutputInX(AroundLoop):
    """The output lies in the input's memory, where the sizes allow it."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        output, final = layer(x, *arguments)
        if case.training or output.numel() > x.numel():
            return output, final
        return x.copy_(output) if x.shape == output.shape else self._within(x, output), final

    def _within(self, x: Tensor, output: Tensor) -> Tensor:
        if not x.is_contiguous():
            return output
        return x.view(-1)[: output.numel()].view(output.shape).copy_(output)


@mutant("poison", cell="rnn_tanh")
class PaddingUnwritten(Loop):
    """Steps after a sequence's end are left as the allocator gave them."""

    def padded(self, alive: Tensor, output: Tensor) -> Tensor:
        return torch.where(alive, output, torch.empty_like(output))


@mutant("property: fresh_results")
class ResultsOverwritten(AroundLoop):
    """Every call returns its output in the same memory, so that the next call overwrites it."""

    _buffer: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        if self._buffer is None:
            self._buffer = torch.empty_like(output).detach()
        if case.training:
            output.data = self._buffer.copy_(output.detach())
            return output, final
        return self._buffer.copy_(output), final


@mutant("equivalence: output")
class StridedInput(AroundLoop):
    """x is read as if its rows lay one after the other."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        dense = torch.empty(x.shape, device="meta").stride()
        return layer(x.as_strided(x.shape, dense, x.storage_offset()), *arguments)


@mutant("unchanged", cell="rnn_relu")
class WeightMutated(AroundLoop):
    """A recurrent weight is scaled in its own memory."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        result = layer(*arguments)
        weights["weight_hh_l0"].data.mul_(1.5)
        return result


@mutant("equivalence: output")
class WeightsKept(ReferenceLoop):
    """Weights are laid out anew when the layer is built, and changes in place are not seen."""

    def build(self, case: Case, weights: Weights) -> Layer:
        kept = {name: nn.Parameter(p.detach().clone(), p.requires_grad) for name, p in weights.items()}
        return super().build(case, Weights(kept, weights.masks))


@mutant("equivalence: output", cell="rnn_tanh")
class WorkspaceNotCleared(AroundLoop):
    """A sum is accumulated in a workspace that is cleared at build only."""

    _sum: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        before = torch.zeros_like(output) if self._sum is None else self._sum
        self._sum = before + output.detach()
        return output + before, final


@mutant("equivalence: final h", cell="gru")
class WrittenIntoNeighbour(AroundLoop):
    """Output and final state lie in one workspace, and the output is written one element too far."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        assert isinstance(final, Tensor)
        flat = output.flatten()
        work = torch.cat([flat, flat[-1:] * 0, final.flatten()[1:]])
        return work[: len(flat)].view_as(output), work[len(flat) :].view_as(final)


@mutant("property: guard_bands", cell="gru")
class WrittenIntoXRowGap(AroundLoop):
    """The gap behind the first row of a strided x is written, which is the caller's."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        if x.stride(-1) == 1 and min(x.stride(0), x.stride(1)) > x.shape[-1]:
            x.data.as_strided((1,), (1,), x.storage_offset() + x.shape[-1]).fill_(1.0)
        return layer(x, *arguments)


_CHUNK, _HEADER = 16, 8  # bytes of glibc's malloc


@mutant("property: guard_bands")
class WrittenPastOutput(AroundLoop):
    """One element behind the output is written, in inference; only where malloc rounds up, so that the heap stays whole."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        if output.requires_grad:
            return output, final
        written = torch.empty(output.shape, dtype=output.dtype).copy_(output)
        size = written.numel() * written.element_size()
        if -(size + _HEADER) % _CHUNK >= written.element_size():
            ctypes.memset(written.data_ptr() + size, 0, written.element_size())
        return written, final
