"""How sparse_persistent_gpu spreads a pruned layer over the chip.

A group of blocks owns all hidden units and takes some tiles of sequences through time, one after the other; groups know nothing
of each other. A block's elements lie in its threads' registers, and what those have no room for in its shared memory, beside
the states of all units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations._cuda.launch import Launch
from pytest_ecornn.implementations.sparse_persistent_gpu.packing import MAX_POSITIONS, Partition

BLOCK_THREADS = 512
_GATE_THREADS = 288  # at most
_LANE_THREADS = 160  # to which sums are given more threads than states need: each of them is one less that hears
_PARTS = 8  # of a state's sums, that a thread may add without another's help


@dataclass(frozen=True)
class Techniques:
    """Techniques that a layer runs with; each may be switched off to measure what it contributes.

    timestamps: packets carry the epoch that makes them valid; without, blocks wait at a barrier in every step. wide_reads: the
    states of several sequences are read at once; without, sequences are processed one after another. bank_order: elements are
    ordered so that threads that read at once read from different banks. balance: units change places where blocks would be
    uneven. clusters: blocks of a cluster may divide the columns, and send each other partial sums through shared memory.
    """

    timestamps: bool = True
    wide_reads: bool = True
    bank_order: bool = True
    balance: bool = True
    clusters: bool = True


ALL = Techniques()


@dataclass(frozen=True)
class SparseConfig:
    """`groups` of blocks of `units` hidden units; tiles of `sequences`; of a thread's `rounds` `reg_pairs` pairs in registers.

    parts: sums of threads that a row has at most. cluster: blocks that divide the columns among them, 1 where none do.
    """

    problem: ProblemSize
    units: int
    sequences: int
    groups: int
    rounds: int
    reg_pairs: int
    max_partials: int = 1
    cluster: int = 1
    techniques: Techniques = ALL

    @property
    def blocks(self) -> int:
        """Blocks per group."""
        return self.spread.blocks(self.problem.hidden)

    @cached_property
    def all_tiles(self) -> int:
        return ceil(self.problem.batch / self.sequences)

    @property
    def tiles(self) -> int:
        """Tiles per group, at most."""
        return ceil(self.all_tiles / self.groups)

    @property
    def _gates(self) -> int:
        return GATES[self.problem.cell]

    @property
    def told(self) -> int:
        """Values of a unit that a step multiplies: its state, backward its gates' gradients."""
        return self._gates if self.problem.is_backward else 1

    @property
    def spread(self) -> Partition:
        gates = 1 if self.problem.is_backward else self._gates
        positions = 128 // self.wide_bytes  # in all banks
        bank_groups = min(32, positions)
        return Partition(gates, self.units, BLOCK_THREADS, bank_groups, positions // bank_groups, self.told, self.cluster)

    @property
    def wide_bytes(self) -> int:
        """Bytes of a position: one value of each of a tile's sequences."""
        return self.sequences * self.problem.arithmetic.bytes

    @property
    def position_unit_bytes(self) -> int:
        """Bytes per unit of a position's index: 1 where 16 bits hold byte offsets, which saves computing an address."""
        return 1 if sum(self.spread.zeros(self.problem.hidden)) * self.wide_bytes <= MAX_POSITIONS else self.wide_bytes

    @property
    def pairs(self) -> int:
        """Pairs of elements per thread."""
        return self.rounds // 2

    @property
    def smem_pairs(self) -> int:
        """Pairs per thread in shared memory."""
        return self.pairs - self.reg_pairs

    @property
    def lanes_per_state(self) -> int:
        """Threads that add a state's sums: so many that each has about _PARTS to add, where there is room for them."""
        lanes_per_state = 1
        while (
            lanes_per_state < 32
            and self.max_partials > _PARTS * lanes_per_state
            and 2 * lanes_per_state * self.units * self.sequences <= _LANE_THREADS
        ):
            lanes_per_state *= 2
        return lanes_per_state

    @property
    def partials_per_row(self) -> int:
        """If all rows have room for as many, so many: odd, so that rows beside each other begin in other banks; else 0."""
        found = self.lanes_per_state * ceil(self.max_partials / self.lanes_per_state) | 1
        return found if found * self.spread.rows <= 2 * BLOCK_THREADS else 0

    @property
    def pointwise_threads(self) -> int:
        """Threads that have a tile's states; the others receive what all blocks publish."""
        return min(_GATE_THREADS, ceil(self.units * self.sequences * self.lanes_per_state / 32) * 32)

    @property
    def states_per_thread(self) -> int:
        """States per gate thread, at most."""
        return ceil(self.units * self.sequences * self.lanes_per_state / self.pointwise_threads)

    @property
    def packets(self) -> int:
        """Packets of 12 bytes of values that a block publishes per tile and step."""
        return ceil(self.units * self.told * self.sequences * self.problem.arithmetic.bytes / 12)

    @property
    def mailbox_bytes(self) -> int:
        """Bytes of global memory through which all blocks exchange values."""
        return 16 * self.all_tiles * (2 * self.blocks * self.packets + 1)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block, as the kernels' struct SharedStorage needs them."""
        return self.non_weight_smem_bytes + 4 * pair_words(self.problem) * BLOCK_THREADS * max(1, self.smem_pairs)

    @property
    def non_weight_smem_bytes(self) -> int:
        """Bytes of shared memory per block for everything but elements."""
        zeros, bank_groups = self.spread.zeros(self.problem.hidden)
        state_bytes = (zeros + bank_groups) * self.wide_bytes
        own = (16 + 12 * self.packets) * (1 if self.problem.is_backward else self.tiles)
        slots = self.partials_per_row * self.spread.rows + 1 if self.partials_per_row else BLOCK_THREADS
        slots *= 1 if self.cluster == 1 else 2
        partials = 4 * (slots * self.sequences + self.spread.rows + 5) + 32 * (self.cluster > 1)
        carried = (
            4
            * self.tiles
            * (self.states_per_thread * self.pointwise_threads * (2 if self.problem.is_backward else 1) + self.sequences)
        )
        return state_bytes + own + partials + carried + 16 * self.units + 128

    def room(self, device: Device) -> int:
        """Pairs per thread that fit into shared memory; less than 1 where none fits beside the states."""
        return (device.shared_bytes - self.non_weight_smem_bytes) // (4 * pair_words(self.problem) * BLOCK_THREADS)

    @property
    def launch(self) -> Launch:
        return Launch(self.groups * self.blocks, BLOCK_THREADS, self.shared_bytes)

    @property
    def macros(self) -> dict[str, int]:
        return {
            "UNITS": self.units,
            "BLOCKS": self.blocks,
            "CLUSTER": self.cluster,
            "TILES": self.tiles,
            "SEQUENCES": self.sequences,
            "REG_PAIRS": self.reg_pairs,
            "SMEM_PAIRS": self.smem_pairs,
            "PLACE_BYTES": self.position_unit_bytes,
            "POINTWISE_THREADS": self.pointwise_threads,
            "LANES": self.lanes_per_state,
            "PARTS_A_ROW": self.partials_per_row,
            "SHARED_BYTES": self.shared_bytes,
            "TIMESTAMPS": int(self.techniques.timestamps),
        }

    @property
    def _clusters(self) -> str:
        return f", {self.cluster} a cluster" if self.cluster > 1 else ""

    def __str__(self) -> str:
        where = f"{2 * self.reg_pairs} in registers" + f", {2 * self.smem_pairs} in shared memory" * (self.smem_pairs > 0)
        return (
            f"{self.groups} x {self.blocks} blocks of {self.units} units{self._clusters}, {self.sequences} sequences at once, "
            f"{self.tiles} times; elements of a thread: {where}"
        )


def pair_words(problem: ProblemSize) -> int:
    """32-bit words of two elements: their columns, and their values."""
    return 1 + problem.arithmetic.bytes // 2
