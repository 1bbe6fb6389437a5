"""Wrong at an end: of a sequence, a batch, a tile, or a part between resets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, PackedLoop, Parameters
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: output", cell="rnn_tanh")
class BatchTail(AroundLoop):
    """Sequences from the 17th on are computed from the 16th's input."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        rows = torch.arange(case.batch, device=x.device).clamp(max=15)
        return layer(x.index_select(0 if case.batch_first else 1, rows), *arguments)


@mutant("equivalence: output", cell="gru")
class FirstStepSkipped(Loop):
    """The first step is left out: its output stays zero."""

    def advance(self, t: int, x: Tensor, state: GateTensors, *arguments: Any) -> tuple[GateTensors, Tensor]:
        if t == 0:
            return state, torch.zeros_like(state[0], dtype=self.dtype)
        return super().advance(t, x, state, *arguments)


@mutant("equivalence: output")
class LastStepSkipped(Loop):
    """The last step is left out: its output stays zero."""

    def advance(self, t: int, x: Tensor, state: GateTensors, *arguments: Any) -> tuple[GateTensors, Tensor]:
        if t == self.case.steps - 1:
            return state, torch.zeros_like(state[0], dtype=self.dtype)
        return super().advance(t, x, state, *arguments)


@mutant("equivalence: output")
class LengthOffByOne(Loop):
    """Each sequence ends one step early."""

    def alive(self, t: int, lengths: Tensor) -> Tensor:
        return lengths > t + 1


@mutant("equivalence: output", cell="rnn_tanh")
class ResetOfTheEndReversed(PackedLoop):
    """In the reverse direction a reset stands at the last step of a part rather than at its first."""

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return super().apply_reset(state, resets.roll(-1, 0) if self.is_reverse else resets, t)


@mutant("equivalence: output", cell="minlstm")
class ResetOneStepLate(PackedLoop):
    """A reset takes effect at the step after the one that it stands at."""

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        late = resets.roll(-1 if self.is_reverse else 1, 0)
        late[-1 if self.is_reverse else 0] = False
        return super().apply_reset(state, late, t)


@mutant("equivalence: output")
class SingleSequence(Loop):
    """A batch of one takes a path that forgets the input's bias."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        return x @ parameters["weight_ih"].T if self.case.batch == 1 else super().x_gates(x, parameters)


@mutant("equivalence: output", cell="gru")
class SingleStep(Loop):
    """A sequence of one step begins at zero whatever the initial state."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return super().first_state(x, () if self.case.steps == 1 else given)


@mutant("equivalence: output", cell="rnn_tanh")
class TailOfSumDropped(Loop):
    """The recurrent product reads whole vectors of four only: the last channels of any other width are not summed."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        whole = h.shape[-1] // 4 * 4
        return h[:, :whole] @ parameters["weight_hh"][:, :whole].T + parameters.get("bias_hh", 0)


@mutant("equivalence: output")
class TailUnmasked(Loop):
    """Steps after a sequence's end are not set to zero in the output."""

    def padded(self, alive: Tensor, output: Tensor) -> Tensor:
        return output


@mutant("equivalence: output")
class TileEdgeOffByOne(Loop):
    """The first channel of each tile of 16 but the first holds its left neighbour's value."""

    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        output = super().store(outputs)
        wrong = output.clone()
        wrong[..., 16::16] = output[..., 15:-1:16]
        return wrong


@mutant("equivalence: output")
class WrongOver32Steps(Loop):
    """The state is lost when step 32 is reached."""

    def advance(self, t: int, x: Tensor, state: GateTensors, *arguments: Any) -> tuple[GateTensors, Tensor]:
        state = tuple(torch.zeros_like(s) for s in state) if t == 32 else state
        return super().advance(t, x, state, *arguments)


@mutant("equivalence: output")
class WrongOver64Channels(Loop):
    """Channels from the 64th on get no recurrent input."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        channel = torch.arange(self.case.hidden_size, device=h.device).repeat(len(self.cell.gates))
        return torch.where(channel < 64, super().h_gates(h, parameters), 0)


@mutant("equivalence: output", cell="gru")
class WrongOver64Steps(Loop):
    """Sequences of more than 64 steps lose their state there."""

    def advance(self, t: int, x: Tensor, state: GateTensors, *arguments: Any) -> tuple[GateTensors, Tensor]:
        state = tuple(torch.zeros_like(s) for s in state) if t == 64 else state
        return super().advance(t, x, state, *arguments)
