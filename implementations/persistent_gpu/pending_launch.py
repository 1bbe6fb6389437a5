"""A launch of one track that is ready to be made, and the addresses that launches are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from pytest_ecornn.implementations._cuda.memory import empty
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.persistent_gpu.plan import RNNShape


class PendingLaunch(NamedTuple):
    """A launch of one track. held: tensors that live until then. may_run_concurrently: with the other direction's launch."""

    kernel: Callable[..., None]
    addresses: tuple[int, ...]
    may_run_concurrently: bool
    held: tuple[Tensor | None, ...]

    def launch(self) -> None:
        self.kernel(self.addresses)


def allocate(kind: KernelSpec, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor of the kernels' dtype and device."""
    return empty(shape, kind.dtype, kind.device)


def state_addresses(all_tracks: Sequence[Tensor | None], stack: RNNShape, track: int) -> tuple[int, int]:
    """Addresses of a track's h and c, 0 for none."""
    if not all_tracks:
        return 0, 0
    offset = track and track * stack.batch * stack.hidden
    found = [0 if one is None else one.data_ptr() + offset * one.itemsize for one in all_tracks]
    return found[0], found[1] if len(found) > 1 else 0
