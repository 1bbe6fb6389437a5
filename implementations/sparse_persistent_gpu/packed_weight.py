"""A pruned weight as sparse_persistent_gpu's kernels read it: where its elements lie is found once, their values anew."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_ecornn.contract import Unsupported
from pytest_ecornn.implementations._common.recurrent_problem import Device, ProblemSize
from pytest_ecornn.implementations.sparse_persistent_gpu.config import BLOCK_THREADS, SparseConfig, Techniques
from pytest_ecornn.implementations.sparse_persistent_gpu.csr import PADDING, from_mask
from pytest_ecornn.implementations.sparse_persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.sparse_persistent_gpu.packing import PackedEll, divided_counts, pack


class UnitPermutation:
    """Units in another order, with gaps, or as they are: a kernel's rows of K values a unit, H of each beside each other."""

    def __init__(self, order: NDArray[np.int32], hidden: int, device: torch.device):
        is_plain = np.array_equal(order[:hidden], np.arange(hidden))
        self.hidden = hidden if is_plain else len(order)  # as the kernel has it
        self._unit_at = self._place_of = None
        if not is_plain:
            place_of = np.empty(hidden, np.int64)
            place_of[order[order != PADDING]] = np.flatnonzero(order != PADDING)
            self._unit_at = torch.from_numpy(np.maximum(order, 0).astype(np.int64)).to(device)  # a gap has some unit's
            self._place_of = torch.from_numpy(place_of).to(device)

    def permute(self, rows: Tensor) -> Tensor:
        """[.., K*H] -> [.., K*places]."""
        return self._moved(rows, self._place_of, self._unit_at)

    def unpermute(self, rows: Tensor) -> Tensor:
        """[.., K*places] -> [.., K*H], the inverse of `laid`."""
        return self._moved(rows, self._unit_at, self._place_of)

    @staticmethod
    def _moved(rows: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        if before is None or after is None or not rows.shape[-1]:
            return rows
        found: Tensor = rows.unflatten(-1, (-1, len(before)))
        return found.index_select(-1, after).flatten(-2)


class PackedWeight:
    """W_hh of a pattern, packed for one pass. Raises Unsupported, with the numbers, where it does not fit.

    mask: [G*H, H] bool. A view of it by `values` is what the kernel multiplies by.
    """

    def __init__(self, mask: Tensor, problem: ProblemSize, device: torch.device, techniques: Techniques):
        pattern = from_mask(mask.T if problem.is_backward else mask)
        form = select_config(problem, pattern.counts, Device.of(device), techniques, partial(divided_counts, pattern))
        if isinstance(form, str):
            raise Unsupported(f"{form}{' backward' * problem.is_backward}")
        packed = pack(pattern, form.spread, techniques.balance, techniques.bank_order)
        assert packed.num_rounds == form.rounds
        self.form, self._is_wide = form, problem.arithmetic.bytes == 4
        self.places = UnitPermutation(packed.unit_permutation, problem.hidden, device)
        self._from, self._is_none = (one.to(device) for one in self._sources(packed, problem.is_backward))
        places = packed.col_indices.astype(np.int32) * (form.wide_bytes // form.position_unit_bytes)
        places = places.reshape(form.blocks, form.pairs, 2, BLOCK_THREADS)
        self._fixed = [
            torch.from_numpy(np.ascontiguousarray(one)).to(device)
            for one in (places[:, :, 0] | places[:, :, 1] << 16, *_slots_and_firsts(packed, form))
        ]

    def _sources(self, packed: PackedEll, is_transposed: bool) -> tuple[Tensor, Tensor]:
        """Returns the index in W_hh of each value, in the order of values, and a mask of those that no element has."""
        pattern, sources = packed.nonzeros, packed.sources
        at = pattern.col_indices.astype(np.int64) * pattern.shape[0] + pattern.rows if is_transposed else pattern.places
        found = np.append(at, 0)[sources].reshape(self.form.blocks, self.form.pairs, 2, BLOCK_THREADS)
        is_none = (sources == PADDING).reshape(found.shape)
        packed_rows = [one if self._is_wide else one.swapaxes(2, 3) for one in (found, is_none)]
        return torch.from_numpy(packed_rows[0].astype(np.int32)), torch.from_numpy(np.ascontiguousarray(packed_rows[1]))

    def values(self, weight: Tensor) -> Tensor:
        """weight: [G*H, H]."""
        found = weight.reshape(-1).index_select(0, self._from.flatten()).view(self._from.shape)
        return found.masked_fill_(self._is_none, 0)

    def addresses(self, values: Tensor) -> tuple[int, int, int, int]:
        """Addresses in the kernels' order: places, values, slots, firsts."""
        places, slots, firsts = self._fixed
        return places.data_ptr(), values.data_ptr(), slots.data_ptr(), firsts.data_ptr()


def _slots_and_firsts(packed: PackedEll, form: SparseConfig) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns the slots of threads' partial sums, and each row's first slot or, in clusters, how many a block receives.

    Sources: kernels/partial_sums.cuh and kernels/cluster_reduce.cuh.
    """
    if not form.partials_per_row:
        return packed.slots, packed.row_offsets
    spread, found = packed.spread, np.empty_like(packed.slots)
    each, a_block = form.max_partials // form.cluster, form.partials_per_row * spread.rows + 1
    for block, (first, slots) in enumerate(zip(packed.row_offsets, packed.slots, strict=True)):
        row = np.searchsorted(first, slots, side="right") - 1
        owner, own = np.divmod(row, spread.rows)
        own = own % spread.gates * spread.units + own // spread.gates
        place = own * form.partials_per_row + block % spread.cluster * each + slots - first[row]
        found[block] = np.where(
            row < spread.shared_rows,
            owner * a_block + place,
            spread.rows * form.partials_per_row if form.cluster == 1 else PADDING,
        )
    if form.cluster == 1:
        return found, packed.row_offsets
    sent = np.diff(packed.row_offsets).reshape(-1, form.cluster, form.cluster, spread.rows).sum(axis=(1, 3))
    return found, sent.reshape(-1, 1).astype(np.int32)
