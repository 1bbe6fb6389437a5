"""The least time of a step of persistent_gpu's recurrence on an H200, from how it is spread over the chip.

A step cannot end before its states have come from every block of the cluster, nor before the tensor cores have multiplied
what a block keeps of the weights and read that part of it which is not in registers. What gates, barriers and stores take
comes on top: a floor is what a perfect overlap would leave.
"""

from __future__ import annotations

from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.tiling import TILE, WARPS

CLOCKS_A_US = 1980
LATENCY_US = 0.2  # one way, measured, every block telling all others a few bytes
TOLD_BYTES_A_CLOCK = 32  # that come to a block
PRODUCT_CLOCKS = 6.1  # of a quarter of a multiprocessor, for 16 rows, 8 columns and 32 bytes of what is summed over
QUARTERS = 4
FRAGMENT_BYTES = 8192  # of the weights, of all warps of a block
SHARED_BYTES_A_CLOCK, LEFT_OVER_BYTES_A_CLOCK = 128, 64  # from shared memory, and by way of it from the L2 cache


def handoff_us(form: Form) -> float:
    """Time until all blocks' values of one tile of sequences have arrived, in microseconds."""
    return LATENCY_US + form.received_bytes / TOLD_BYTES_A_CLOCK / CLOCKS_A_US


def busy_us(form: Form) -> float:
    """The products of a tile, or the reads of their weights, whichever takes longer: they overlap."""
    products = form.fragments * WARPS / QUARTERS * form.problem.arithmetic.products * PRODUCT_CLOCKS * form.wide / TILE
    from_smem, streamed = form.smem_fragments * FRAGMENT_BYTES, form.streamed_fragments * FRAGMENT_BYTES
    reads = from_smem / SHARED_BYTES_A_CLOCK + streamed / LEFT_OVER_BYTES_A_CLOCK
    return max(products, reads) / CLOCKS_A_US


def floor_us(form: Form) -> float:
    """Least time of a step of all tiles, in microseconds: one tile's states travel during another's products."""
    busy = busy_us(form)
    return max(form.tiles * busy, busy + handoff_us(form))
