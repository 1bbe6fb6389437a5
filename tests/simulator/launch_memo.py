"""Simulated launches, computed once: their results are kept under build/ by all that they are made of.

A launch is a function of library, order of threads, configuration, parameters, and the bytes of the tensors that it is passed.
Where one of these differs it is simulated. What judges the results judges them every time.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations._cuda.launch import INT32
from tests.helpers.whole_suite import IS_TEST_ALL
from tests.simulator.compiled_on_cpu import IS_SANITIZED
from tests.simulator.file_cache import FileCache

LAUNCHES = FileCache(Path(__file__).parents[2] / "build/simulated_launches", most_bytes=2**30)
_LOWEST_ADDRESS = 2**32  # a smaller value is a size, a stride or none
_MOST_STORAGES = 256  # that are remembered: more than one launch takes
IS_IGNORED = IS_TEST_ALL
_Block = tuple[int, int]  # start and size in bytes
_Place = tuple[int, int, int]  # of an address: number of its block, offset there, and that of 16 bytes, the widest load
counts = Counter[str]()  # launches of this process: "simulated", "remembered", "compared", "unknown memory"


class DiffersFromMemo(AssertionError):
    """A launch whose results are others than those that were kept of it."""


# Memory of tensors whose addresses were asked for lately, by its start. It is held, so that an address means one tensor's.
_storages = OrderedDict[int, torch.UntypedStorage]()


def remember(tensor: torch.Tensor) -> None:
    """Makes the tensor's memory known to launches that are passed an address in it."""
    storage = tensor.untyped_storage()
    if start := storage.data_ptr():
        _storages[start] = storage
        _storages.move_to_end(start)
        if len(_storages) > _MOST_STORAGES:
            _storages.popitem(last=False)


@contextmanager
def remembering_addresses() -> Iterator[None]:
    """Within it the memory is known of each tensor whose address host code asks for."""
    data_ptr = torch.Tensor.data_ptr

    def remembering(tensor: torch.Tensor) -> int:
        address: int = data_ptr(tensor)
        if address:
            remember(tensor)
        return address

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "data_ptr", remembering)
        yield
    _storages.clear()


def launch(settings: tuple[Any, ...], types: str, values: Sequence[int], simulate: Callable[[], int]) -> int:
    """Simulates a launch, or writes what it wrote the last time. Returns its outcome.

    settings: all that the launch depends on beside the fields of its Params and memory. types: of the fields.
    """
    passed = None if IS_SANITIZED else _blocks(types, values)
    if passed is None:
        counts["unknown memory"] += 1
        return simulate()
    blocks, places = passed
    before = [ctypes.string_at(*block) for block in blocks]
    name = _digest((settings, types, places, [size for _, size in blocks]), before)
    file = LAUNCHES.get(name)
    kept = None if file is None else pickle.loads(file.read_bytes())
    if kept is not None and not IS_IGNORED:
        counts["remembered"] += 1
        outcome, written = kept
        for i, data in written.items():
            ctypes.memmove(blocks[i][0], data, len(data))
        return int(outcome)
    counts["simulated"] += 1
    outcome = simulate()
    after = [ctypes.string_at(*block) for block in blocks]
    result = outcome, {i: data for i, data in enumerate(after) if data != before[i]}
    if kept is not None:
        counts["compared"] += 1
        if kept != result:
            raise DiffersFromMemo(
                f"{settings} gives other results than {file} holds: a launch depends on what is not in its key"
            )
    elif not IS_IGNORED:
        LAUNCHES.put(name, lambda path: path.write_bytes(pickle.dumps(result)))
    return outcome


def _blocks(types: str, values: Sequence[int]) -> tuple[list[_Block], list[int | _Place]] | None:
    """The blocks of memory that the launch is passed, and its values with a place for each address.

    None where an address is in no memory that is known.
    """
    blocks, places = dict[_Block, int](), list[int | _Place]()
    for kind, value in zip(types, values, strict=True):
        if kind == INT32 or value < _LOWEST_ADDRESS:
            places.append(value)
            continue
        storages = ((start, storage.nbytes()) for start, storage in reversed(_storages.items()))
        block = next(((start, size) for start, size in storages if start <= value < start + size), None)
        if block is None:
            return None
        places.append((blocks.setdefault(block, len(blocks)), value - block[0], value % 16))
    return list(blocks), places


def _digest(settings: tuple[Any, ...], contents: list[bytes]) -> str:
    """Of all that the launch depends on."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for data in contents:
        digest.update(data)
    return digest.hexdigest()
