"""What persistent_gpu is to spread over a chip: a layer's sizes, precision and pass, and what the device has."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations._common.nn_cells import NN_CELLS

HOPPER = (9, 0)  # the compute capability of clusters here
GATES = {name: len(cells.get(name).gates) for name in NN_CELLS}
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # of a layer in one direction
_GROUP = 17  # multiprocessors that a cluster must lie within: the chip's groups have 16 to 18


def values_a_step(case: Case) -> int:
    """That a layer in one direction moves for a unit of a sequence: gates, states, what is kept, and gradients."""
    gates = GATES[case.cell]
    kept = {4: 6, 3: 4, 1: 0}[gates]  # of LSTM c is one of 4 bytes
    return 3 * gates + 2 * kept + 4 + (case.cell == "gru") if case.training else gates + 1


class Device(NamedTuple):
    """processors: multiprocessors. shared_bytes: that a block may have. largest_cluster: in blocks, 1 where there are none."""

    processors: int
    shared_bytes: int
    largest_cluster: int

    @classmethod
    def of(cls, device: torch.device) -> Device:
        found = torch.cuda.get_device_properties(device)
        shared_bytes = found.shared_memory_per_block_optin  # type: ignore[attr-defined]
        return cls(found.multi_processor_count, shared_bytes, 16 if (found.major, found.minor) == HOPPER else 1)

    def clusters(self, blocks: int) -> int:
        """Of so many blocks, that run at once: an estimate, by which only time is lost."""
        return max(1, self.processors // (_GROUP + 1) * (_GROUP // blocks))


class Arithmetic(NamedTuple):
    """bytes: of an element. is_split: products of float32's accuracy, each made of three of TF32."""

    bytes: int
    is_split: bool

    @classmethod
    def of(cls, dtype: str, precision: str) -> Arithmetic:
        return cls(4, precision == "ieee") if dtype == "float32" else cls(2, False)

    @property
    def told_bytes(self) -> int:
        """Of an element where blocks of a grid tell it: of TF32, whose products leave 13 bits of 32 out, as of 16 bits."""
        return 4 if self.is_split else 2

    @property
    def products(self) -> int:
        """Of the tensor cores, for 16 rows, 8 columns and 64 bytes of what is summed over."""
        return 6 if self.is_split else 2


class Problem(NamedTuple):
    """batch: sequences of one direction."""

    cell: str
    hidden: int
    batch: int
    arithmetic: Arithmetic
    is_backward: bool = False
