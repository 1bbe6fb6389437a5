"""The problem that persistent_gpu spreads over a chip: a layer's sizes, precision and pass, and the device's limits."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations._common.sizes import maximum
from pytest_ecornn.implementations._cuda.compile import HOPPER

NN_CELLS = ("rnn_tanh", "rnn_relu", "lstm", "gru")
GATES = {name: len(cells.get(name).gates) for name in NN_CELLS}
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # of a layer in one direction
_GROUP = 17  # multiprocessors that a cluster must lie within: the chip's groups have 16 to 18


def values_per_step(case: Case) -> int:
    """Values that a layer in one direction moves a step, of a unit and sequence: gates, states, saved tensors, gradients."""
    gates = GATES[case.cell]
    saved = {4: 6, 3: 4, 1: 0}[gates]  # of LSTM c is one of 4 bytes
    return 3 * gates + 2 * saved + 4 + (case.cell == "gru") if case.training else gates + 1


class Device(NamedTuple):
    """A device. processors: multiprocessors. shared_bytes: most of a block. largest_cluster: in blocks, 1 for no clusters."""

    num_sms: int
    shared_bytes: int
    largest_cluster: int

    @classmethod
    def of(cls, device: torch.device) -> Device:
        properties = torch.cuda.get_device_properties(device)
        shared_bytes = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
        return cls(properties.multi_processor_count, shared_bytes, 16 if (properties.major, properties.minor) == HOPPER else 1)

    def clusters(self, blocks: int) -> int:
        """Clusters of that many blocks that run at once: an estimate, whose errors cost only time."""
        return maximum(1, self.num_sms // (_GROUP + 1) * (_GROUP // blocks))


class MathMode(NamedTuple):
    """Precision of products. bytes: of an element. is_split: with float32's accuracy, each computed by three of TF32."""

    bytes: int
    is_3xtf32: bool

    @classmethod
    def of(cls, dtype: str, precision: str) -> MathMode:
        return cls(4, precision == "ieee") if dtype == "float32" else cls(2, False)

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of an element that a grid's blocks publish: TF32 counts as 16 bits, as its products ignore 13 bits of 32."""
        return 4 if self.is_3xtf32 else 2

    @property
    def products(self) -> int:
        """Products of the tensor cores (mma) for 16 rows, 8 columns and 64 bytes of K."""
        return 6 if self.is_3xtf32 else 2


class ProblemSize(NamedTuple):
    """A layer's pass in one direction. batch: its sequences."""

    cell: str
    hidden: int
    batch: int
    arithmetic: MathMode
    is_backward: bool = False
