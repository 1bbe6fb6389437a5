"""Wrong from a size of the implementation's own on: a chunk, a tile, a grid, an index."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_gradient
from pytest_ecornn.selfcheck.planting import mutant

_WARP = 32
_TILE = _WARP * 8


@mutant("equivalence: grad weight_hh", cell="rnn_tanh")
class BackwardOfSecondTile(Loop):
    """The backward pass of the recurrent product ends with the first tile of hidden units; the forward pass has all tiles."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        def of_first_tile(gradient: Tensor) -> Tensor:
            return torch.where(torch.arange(gradient.shape[-1]) < _TILE, gradient, 0)

        weight = with_gradient(parameters["weight_hh"], lambda g: of_first_tile(g.T).T)
        return super().h_gates(h, {**parameters, "weight_hh": weight})


@mutant("equivalence: grad x", cell="minlstm")
class CarryEveryFiftySteps(Loop):
    """The gradient that is carried back is cut every fifty steps."""

    def advance(self, t: int, x: Tensor, state: GateTensors, *arguments: Any) -> tuple[GateTensors, Tensor]:
        if t % 50 == 0 and 0 < t < self.case.steps:
            state = tuple(s.detach() for s in state)
        return super().advance(t, x, state, *arguments)


CHUNK = 96


@mutant("equivalence: output", cell="gru")
class ChunkTailDropped(Loop):
    """The last chunk of 96 steps is left out where it is not full; a sequence shorter than one chunk is run whole."""

    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        output = super().store(outputs)
        full = len(output) // CHUNK * CHUNK or len(output)
        return output * (output.new_tensor([t < full for t in range(len(output))])[:, None, None])


@mutant("equivalence: grad x or grad weight_ih", cell="mingru_positive")
class ClusterRankByShift(Loop):
    """Gradients of sequences that another block of a cluster has, from the sixty-fifth on, are added once more by the first."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        ranks = torch.arange(x.shape[1]) >> 6
        return super().x_gates(with_gradient(x, lambda g: g * (1 + ranks.clamp(max=1))[:, None]), parameters)


BUFFER = {"stages": 2, "steps": 56}


@mutant("equivalence: output", cell="mingru")
class DoubleBufferReused(Loop):
    """Of two buffered chunks the second is overwritten by the first before it is read, where a sequence is two chunks long."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        gates = super().x_gates(x, parameters)
        stages, steps = BUFFER["stages"], BUFFER["steps"]
        return gates[:steps].repeat(stages, 1, 1) if len(gates) == stages * steps else gates


LANES = 8
STEPS_PER_LANE = 3


@mutant("equivalence: final h", cell="gru")
class FinalOfWholeChunks(Loop):
    """The final state is that of the chunk before where the steps fill the chunks exactly."""

    chunk = LANES * STEPS_PER_LANE

    def one_layer(self, weights: Weights, lengths: Tensor | None, *arguments: Any) -> tuple[Tensor, GateTensors]:
        output, final = super().one_layer(weights, lengths, *arguments)
        if self.case.steps % self.chunk == 0 and self.case.steps > self.chunk and lengths is None and not self.is_reverse:
            late = output.transpose(0, 1) if self.case.batch_first else output
            final = (late[-1 - self.chunk].to(final[0].dtype), *final[1:])
        return output, final


MAX_BLOCKS = 7 << 4


@mutant("equivalence: output", cell="gru", device="cuda")
class GridOfBlocksCuda(Loop):
    """A kernel's grid has at most 112 blocks of a sequence each, and the sequences beyond them are never written."""

    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        output = super().store(outputs)
        written = output.clone()
        written[:, MAX_BLOCKS:] = 0
        return written


@mutant("equivalence: output", profile="default")  # quick has 129 x 129 units at most
class IndexOf16Bits(Loop):
    """Gates are addressed by 16 bits: beyond 65,536 of a step, sequences read those of the first ones."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        gates = super().h_gates(h, parameters)
        addresses = torch.arange(gates.numel()) & 0xFFFF
        return gates.flatten()[addresses].view(gates.shape)


def whole_tiles(gradient: Tensor, columns: int = 48) -> Tensor:
    kept = gradient.clone()
    kept[:, gradient.shape[1] // columns * columns or gradient.shape[1] :] = 0
    return kept


@mutant("equivalence: grad weight_ih")
class InputTailOfWeightGradient(Loop):
    """The input weight's gradient lacks the columns after the last whole tile; values and other gradients are right."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {name: with_gradient(p, whole_tiles) if name == "weight_ih" else p for name, p in found.items()}


TILE_K = 40


@mutant("equivalence: output", cell="gru")
class KLoopEndsEarly(Loop):
    """The loop over inputs and states in tiles of 40 ends a tile early where they fill the tiles exactly."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        inputs = parameters["weight_ih"].shape[1] if "weight_ih" in parameters else 0
        tiles = (inputs + h.shape[1]) // TILE_K
        if tiles and inputs + h.shape[1] == tiles * TILE_K:
            last = torch.arange(h.shape[1]) + inputs >= (tiles - 1) * TILE_K
            h = torch.where(last, 0, h)
        return super().h_gates(h, parameters)


CHUNK_STEPS = 20


@mutant("equivalence: output")
class LengthOnChunkEdge(Loop):
    """A sequence that ends on a chunk's edge is kept alive for one step into the next chunk."""

    def alive(self, t: int, lengths: Tensor) -> Tensor:
        ends_on_edge = (lengths % CHUNK_STEPS == 0) & (lengths > CHUNK_STEPS)
        return torch.where(ends_on_edge, lengths >= t, lengths > t)


ROWS_PER_LANE = 5


@mutant("equivalence: grad bias_ih", cell="rnn_relu", device="cuda")
class ReductionInAWarpCuda(Loop):
    """Bias gradients are summed by the lanes of a warp over at most 160 rows of gates; later rows are left out."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        def of_first_rows(gradient: Tensor) -> Tensor:
            summed = gradient.clone()
            summed[ROWS_PER_LANE * 32 :] = 0
            return summed

        found = super().parameters(weights, suffix)
        return {name: with_gradient(p, of_first_rows) if name == "bias_ih" else p for name, p in found.items()}


MINIMUM_CHUNK = 4 * 11


@mutant("equivalence: output", cell="minlstm")
class ReversePartialChunk(Loop):
    """The reverse direction begins its partial chunk, the first that it comes to, without the initial state."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        is_partial = len(x) > MINIMUM_CHUNK and len(x) % MINIMUM_CHUNK != 0
        return super().first_state(x, () if self.is_reverse and is_partial else given)


_SOURCE = r"""
#define MAX_SEQUENCES 76  // of a tile in shared memory
__global__ void gates(const float* __restrict__ x, float* __restrict__ out) {
    const int row = min(blockIdx.x, MAX_SEQUENCES - 1);
}
"""


def defined(name: str) -> int:
    found: Any = re.search(rf"#define {name} (\d+)", _SOURCE)
    return int(found[1])


@mutant("equivalence: output", cell="minlstm_positive")
class RowsOfADefine(Loop):
    """Rows of the input beyond the shared memory that a kernel defines read the last row that is there."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        rows = [min(row, defined("MAX_SEQUENCES") - 1) for row in range(x.shape[1])]
        return super().x_gates(x[:, rows], parameters)


THREADS = 1 << 7


@mutant("equivalence: output")
class SecondBatchBlock(Loop):
    """The second block of sequences starts from the first block's states."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        sequences = torch.arange(x.shape[1]) % THREADS
        return tuple(s[sequences] for s in super().first_state(x, given))


BLOCKS, TILE = 132, 16


@mutant("equivalence: rounding", profile="default")
class SecondWaveOfBlocks(Loop):
    """A persistent grid has 132 blocks of 16 by 16: those of a second wave take the forget gate of the first block's tile."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        rows, columns = (-(-size // TILE) for size in x[0].shape)
        if rows * columns <= BLOCKS or any(size < 2 * TILE for size in x[0].shape):
            return super().step(x, h, state, parameters)
        row = BLOCKS // columns * TILE
        shifted = tuple(one.clone() for one in h)
        shifted[1][row : row + 1, :TILE] = h[1][:1, :TILE]
        return super().step(x, shifted, state, parameters)


@mutant("equivalence: output")
class UnrolledRemainder(Loop):
    """The last of a loop's remaining steps, where seven are unrolled and six remain, sees no recurrent state."""

    def advance(self, t: int, x: Tensor, state: GateTensors, *arguments: Any) -> tuple[GateTensors, Tensor]:
        steps = self.case.steps
        if steps > 7 and steps % 7 == 6 and t == steps - 1:
            state = tuple(s * 0 for s in state)
        return super().advance(t, x, state, *arguments)


@mutant("equivalence: output", cell="rnn_tanh", profile="default")  # quick stops at 129
class WidePathWithoutBias(Loop):
    """Another path runs wide layers, chosen by the number of bits of their size, and leaves the recurrent bias out."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        gates = super().h_gates(h, parameters)
        return gates - parameters.get("bias_hh", 0) if h.shape[1].bit_length() > 9 else gates
