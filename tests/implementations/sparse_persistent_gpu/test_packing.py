"""A pruned weight's non-zeros: read from a mask, refused where malformed, packed for a GPU's threads and found again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pytest_ecornn.implementations.sparse_persistent_gpu.csr import PADDING, CsrPattern, from_mask
from pytest_ecornn.implementations.sparse_persistent_gpu.packing import (
    PackedEll,
    Partition,
    balanced_permutation,
    min_rounds,
    pack,
)


def nonzeros(shape: tuple[int, int], starts: Any, columns: Any) -> CsrPattern:
    return CsrPattern(shape, np.asarray(starts, np.int64), np.asarray(columns, np.int32))


def random_mask(rows: int, columns: int, density: float, seed: int = 0) -> Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) < density


def bank_conflicts(packed: PackedEll) -> float:
    """How many more times shared memory is read in a turn than once, on average, at most: who reads the same is counted."""
    reads = packed.col_indices.reshape(-1, packed.spread.bank_groups).astype(np.int32)
    bank_groups = np.sort(reads // packed.spread.bank_width % packed.spread.bank_groups, axis=1)
    run, longest = np.ones(len(bank_groups), np.int32), np.ones(len(bank_groups), np.int32)
    for lane in range(1, packed.spread.bank_groups):
        run = np.where(bank_groups[:, lane] == bank_groups[:, lane - 1], run + 1, 1)
        longest = np.maximum(longest, run)
    return float(longest.mean()) - 1


# What a pattern may be, and what it may not.


def test_a_mask_is_read_as_its_pattern() -> None:
    mask = random_mask(12, 5, 0.4)
    mask[3], mask[7] = False, True
    found = torch.zeros(12, 5, dtype=torch.bool)
    found.view(-1)[torch.from_numpy(from_mask(mask).places)] = True
    assert torch.equal(found, mask)


OF_4_GATES = "expected [G*H, K*H] of 4 gates and some 65,000 columns at most, K 1, got "


def full(*shape: int) -> CsrPattern:
    return from_mask(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: nonzeros((2, 4), [0, 1], [0]), "starts of 2 rows must be 3 numbers, got shape (2,)"),
        (lambda: nonzeros((2, 4), [0, 1, 1], [0, 1]), "starts must go from 0 to the number of columns given, 2, got 0 to 1"),
        (lambda: nonzeros((2, 4), [1, 1, 2], [0, 1]), "starts must go from 0 to the number of columns given, 2, got 1 to 2"),
        (lambda: nonzeros((2, 4), [0, 3, 2], [0, 1]), "starts must not fall, got 3 and then 2 after row 1"),
        (lambda: nonzeros((2, 4), [0, 1, 2], [0, 4]), "row 1 has column 4, expected 0 to 3"),
        (lambda: nonzeros((2, 4), [0, 1, 2], [-1, 0]), "row 0 has column -1, expected 0 to 3"),
        (lambda: nonzeros((2, 4), [0, 0, 2], [2, 1]), "row 1 has column 1 after column 2, expected ascending columns"),
        (lambda: nonzeros((2, 4), [0, 2, 2], [1, 1]), "row 0 has column 1 twice, expected ascending columns"),
        (lambda: from_mask(torch.ones(2, 2)), "a mask must be two-dimensional and bool, got 2 dimensions of torch.float32"),
        (lambda: full(4), "a mask must be two-dimensional and bool, got 1 dimensions of torch.bool"),
        (lambda: pack(full(12, 4), Partition(4, 1, 32)), f"{OF_4_GATES}[12, 4]"),
        (lambda: pack(full(4, 4), Partition(4, 1, 32)), f"{OF_4_GATES}[4, 4]"),
        (lambda: Partition(4, 9, 32, 8), "a block of 9 units has 36 rows, more than its 32 threads"),
        (lambda: Partition(1, 9, 36, 8), "36 threads are no multiple of the 8 that read at once"),
    ],
)
def test_what_is_malformed_is_refused(make: Callable[[], object], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        make()


@pytest.mark.parametrize("columns", [[3, 0], [0, 0], [3, 3]])
def test_columns_may_fall_from_one_row_to_the_next(columns: list[int]) -> None:
    assert nonzeros((4, 4), [0, 0, 1, 2, 2], columns).rows.tolist() == [1, 2]


# Packing.


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 70), st.integers(1, 9), st.integers(0, 3), st.sampled_from([1, 2, 8, 32]),
    st.sampled_from([1, 2]), st.integers(1, 4), st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]), st.booleans(), st.booleans(),
    st.integers(0, 99), st.sampled_from([1, 2, 3, 4]),
)  # fmt: skip
@example(1, 1, 1, 0, 8, 1, 1, 1.0, True, True, 0, 1)
@example(1, 1, 1, 0, 8, 1, 1, 1.0, True, True, 0, 4)
@example(4, 65, 9, 0, 8, 1, 1, 0.0, True, True, 0, 1)
def test_what_is_packed_is_found_again(
    gates: int, hidden: int, units: int, more: int, classes: int, together: int, told: int, density: float, is_balanced: bool,
    is_bank_aware: bool, seed: int, cluster: int,
) -> None:  # fmt: skip
    mask = random_mask(gates * hidden, told * hidden, density, seed)
    if seed % 3 == 0:  # some rows full, some empty
        mask[:: 1 + seed % 5], mask[1 :: 2 + seed % 3] = True, False
    spread = Partition(gates, units, (cluster * gates * units // 32 + 1 + more) * 32, classes, together, told, cluster)
    pattern = from_mask(mask)
    packed = pack(pattern, spread, is_balanced, is_bank_aware)
    expect_whole(packed)


def expect_whole(packed: PackedEll) -> None:
    """Every element once, in a turn of a thread whose slot is of its row, at its column's position."""
    spread, pattern = packed.spread, packed.nonzeros
    hidden = pattern.shape[1] // spread.told
    assert packed.num_rounds % 2 == 0
    assert sorted(packed.unit_permutation[packed.unit_permutation != PADDING]) == list(range(hidden))
    assert all(sorted(slots) == list(range(spread.threads)) for slots in packed.slots)
    assert int(packed.row_offsets.max()) <= spread.threads
    zeros, many = spread.zeros(hidden)
    assert zeros >= len(packed.unit_permutation) // spread.cluster * spread.told
    assert (
        (packed.col_indices[packed.sources == PADDING] >= zeros)
        & (packed.col_indices[packed.sources == PADDING] < zeros + many)
    ).all()
    block, turn, thread = np.nonzero(packed.sources != PADDING)
    element, slot = packed.sources[block, turn, thread], packed.slots[block, thread]
    assert np.array_equal(np.sort(element), np.arange(len(pattern.col_indices)))
    segment = block % spread.cluster * spread.segment(hidden)
    place, which = np.divmod(packed.col_indices[block, turn, thread] + segment, spread.told)
    assert np.array_equal(packed.unit_permutation[place] + hidden * which, pattern.col_indices[element])
    gate, unit = pattern.rows[element] // hidden, pattern.rows[element] % hidden
    at = np.empty(hidden, np.int64)
    at[packed.unit_permutation[packed.unit_permutation != PADDING]] = np.flatnonzero(packed.unit_permutation != PADDING)
    of_cluster = spread.units * spread.cluster
    assert np.array_equal(at[unit] // of_cluster, block // spread.cluster)
    row = at[unit] % of_cluster * spread.gates + gate
    assert ((packed.row_offsets[block, row] <= slot) & (slot < packed.row_offsets[block, row + 1])).all()


def test_threads_take_turns_that_do_not_collide() -> None:
    pattern = from_mask(random_mask(600, 600, 0.3))
    arranged, plain = (pack(pattern, Partition(1, 10, 256), is_bank_aware=is_aware) for is_aware in (True, False))
    assert arranged.num_rounds <= plain.num_rounds + 3
    assert bank_conflicts(arranged) < 0.05
    assert (1 + bank_conflicts(plain)) * plain.num_rounds > 2 * (1 + bank_conflicts(arranged)) * arranged.num_rounds


def test_short_lists_stay_in_the_order_of_columns() -> None:
    pattern = from_mask(random_mask(600, 600, 0.02))  # 120 elements a block, 8 classes
    aware, plain = (pack(pattern, Partition(1, 10, 32), is_bank_aware=is_aware) for is_aware in (True, False))
    assert min_rounds(plain.nonzeros.counts.reshape(60, 10), 32) in (5, 6)
    assert bank_conflicts(aware) < bank_conflicts(plain)
    aware, plain = (pack(pattern, Partition(1, 10, 64, 16), is_bank_aware=is_aware) for is_aware in (True, False))
    assert np.array_equal(aware.col_indices, plain.col_indices)
    assert np.array_equal(aware.slots, plain.slots)


def test_collisions_are_counted_among_threads_that_read_at_once() -> None:
    packed = pack(from_mask(torch.eye(8).bool()), Partition(1, 8, 32, 4, 2))
    packed.col_indices[:] = 0
    assert bank_conflicts(packed) == 3
    packed.col_indices[:] = np.arange(32) * 2
    assert bank_conflicts(packed) == 0
    packed.col_indices[:] = np.arange(32)
    assert bank_conflicts(packed) == 1


def test_uneven_units_are_shared_out_and_even_ones_stay_where_they_are() -> None:
    counts = np.array([100] * 8 + [1] * 56)
    even = counts[balanced_permutation(counts, Partition(1, 8, 32), True)].reshape(8, 8).sum(axis=1)
    assert even.max() == even.min() == 107
    assert balanced_permutation(counts, Partition(1, 8, 32), False).tolist() == list(range(64))
    assert balanced_permutation(np.full(10, 7), Partition(1, 4, 32), True).tolist() == [*range(10), PADDING, PADDING]


def test_a_long_row_has_more_threads() -> None:
    counts = np.array([[90, 10, 0, 5]])
    assert min_rounds(counts, 12) == 10
    mask = torch.zeros(4, 90, dtype=torch.bool)
    for row, count in enumerate(counts[0]):
        mask[row, :count] = True
    packed = pack(from_mask(torch.cat((mask, torch.zeros(86, 90, dtype=torch.bool)))), Partition(1, 4, 32), is_balanced=False)
    assert packed.num_rounds <= 6
    assert np.diff(packed.row_offsets[0]).tolist() == [23, 3, 0, 2]


def test_ten_million_elements_take_less_than_two_seconds() -> None:
    pattern = from_mask(random_mask(5760, 5760, 0.302))
    assert len(pattern.col_indices) > 10_000_000
    pack(from_mask(random_mask(64, 64, 0.5)), Partition(1, 44, 64))  # which compiles what is not yet
    taken = []
    for _ in range(2):
        start = time.process_time()  # on one thread, and others may run meanwhile
        packed = pack(pattern, Partition(1, 44, 512))
        taken.append(time.process_time() - start)
    assert bank_conflicts(packed) < 0.05
    assert min(taken) < 2
