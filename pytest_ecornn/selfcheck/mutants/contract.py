"""Breaches of the contract: forms and dtypes of results, what is refused, what is declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Unsupported, Weights
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: repeats", cell="gru")
class DeterministicFalsely(AroundLoop):
    """Every other call rounds its output to a neighbour, and bit-equal repeats are claimed."""

    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        self._calls += 1
        if self._calls % 2:
            output.data.mul_(1 + torch.finfo(output.dtype).eps)
        return output, final


@mutant("form")
class FinalCLeftOut(AroundLoop):
    """The final state is h alone, where the cell has h and c."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        assert isinstance(final, tuple)
        return output, final[0]


@mutant("form", cell="rnn_tanh")
class FinalWithoutLayers(AroundLoop):
    """A single layer's final state lacks the dimension of layers."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        assert isinstance(final, Tensor)
        return output, final[0] if len(final) == 1 else final


@mutant("form")
class OutputAlwaysTimeFirst(AroundLoop):
    """The output of a batch_first case is [T, B, H]. Where T is B it is right, as its values alone would be wrong there."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        return output.transpose(0, 1) if case.batch_first and case.steps != case.batch else output, final


@mutant("required", stands_for="sequential")
class RefusedInBuild(ReferenceLoop):
    """Two directions are refused in `build`, which this implementation must support."""

    def build(self, case: Case, weights: Weights) -> Layer:
        if case.bidirectional:
            raise Unsupported("runs one direction")
        return super().build(case, weights)


@mutant("required", cell="mingru", stands_for="scan_cpu")
class UnsupportedTooBroad(ScanCpu):
    """Ragged batches are refused, which this implementation must support."""

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return "runs batches without lengths" if case.ragged else super().unsupported(case, device)


@mutant("form", cell="gru", dtype="bfloat16")
class WrongDtype(Loop):
    """The output of a 16-bit case is float32."""

    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(outputs)).float()
