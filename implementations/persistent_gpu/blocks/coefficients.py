"""Coefficients of the time of a step by blocks with all weights, for the cost model of persistent_gpu."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BlockCoefficients:
    """A step of blocks with all weights, in one direction. Clocks are those of a sub-partition, for each of its warps.

    Fitted on an H100, to the forms and sizes of docs/notes/persistent_gpu.md, "Small layers".

    step_us: a step that nothing is issued in. sequence_us: a block's sequence beyond the first. fma_clocks: a multiply-add.
    read_clocks: a value of the operand, and a read of several. shuffle_clocks: a shuffle. smem_weight_clocks: a weight from
    shared memory. smem_weight_us: each step of a form with such weights, for each of a thread: its launch starts 0.1 us later,
    counted over 40 steps. pointwise_clocks: what is not the product, of a sequence and cell with gates.
    """

    step_us: float
    sequence_us: float
    fma_clocks: float
    read_clocks: float
    shuffle_clocks: float
    smem_weight_clocks: float
    smem_weight_us: float
    pointwise_clocks: float


FORWARD = BlockCoefficients(
    step_us=0.14,
    sequence_us=0.11,
    fma_clocks=1.16,
    read_clocks=0.2,
    shuffle_clocks=0.0,
    smem_weight_clocks=2.5,
    smem_weight_us=0.0025,
    pointwise_clocks=64,
)
BACKWARD = BlockCoefficients(
    step_us=0.125,
    sequence_us=0.07,
    fma_clocks=0.52,
    read_clocks=2.05,
    shuffle_clocks=7.5,
    smem_weight_clocks=2.4,
    smem_weight_us=0.0025,
    pointwise_clocks=69,
)
