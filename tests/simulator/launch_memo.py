"""Simulated launches, computed once: their results are kept under build/ by all that they are made of.

A launch is a function of library, order of threads, configuration, parameters, and the bytes of the tensors that it is passed.
Where one of these differs it is simulated. What judges the results judges them every time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations._cuda.launch import INT32
from tests.simulator.compiled_on_cpu import IS_SANITIZED
from tests.simulator.file_cache import FileCache

LAUNCHES = FileCache(Path(__file__).parents[2] / "build/simulated_launches", most_bytes=2**30)
_LOWEST_ADDRESS = 2**32  # a smaller value is a size, a stride or none
_MOST_STORAGES = 256  # that are remembered: more than one launch takes
IS_IGNORED = IS_SANITIZED or bool(os.environ.get("ECORNN_TEST_ALL"))
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
    memory = None if IS_SANITIZED else _memory(types, values)
    if memory is None:
        counts["unknown memory"] += 1
        return simulate()
    before = [ctypes.string_at(*block) for block in memory]
    name = _digest(settings, types, values, memory, before)
    kept = LAUNCHES.get(name)
    if kept is not None and not IS_IGNORED:
        counts["remembered"] += 1
        outcome, written = pickle.loads(kept.read_bytes())
        for i, data in written.items():
            ctypes.memmove(memory[i][0], data, len(data))
        return int(outcome)
    counts["simulated"] += 1
    outcome = simulate()
    after = [ctypes.string_at(*block) for block in memory]
    result = outcome, {i: data for i, data in enumerate(after) if data != before[i]}
    if kept is not None:
        counts["compared"] += 1
        if pickle.loads(kept.read_bytes()) != result:
            raise DiffersFromMemo(
                f"{settings} gives other results than {kept} holds: a launch depends on what is not in its key"
            )
    elif not IS_IGNORED:
        LAUNCHES.put(name, lambda path: path.write_bytes(pickle.dumps(result)))
    return outcome


def _memory(types: str, values: Sequence[int]) -> list[tuple[int, int]] | None:
    """Start and size of each block of memory that the launch is passed, or None where one is not known."""
    blocks = dict[tuple[int, int], None]()
    for kind, value in zip(types, values, strict=True):
        if kind == INT32 or value < _LOWEST_ADDRESS:
            continue
        storages = ((start, storage.nbytes()) for start, storage in reversed(_storages.items()))
        block = next((block for block in storages if _holds(block, value)), None)
        if block is None:
            return None
        blocks[block] = None
    return list(blocks)


def _holds(block: tuple[int, int], address: int) -> bool:
    return block[0] <= address < sum(block)


def _digest(
    settings: tuple[Any, ...], types: str, values: Sequence[int], memory: list[tuple[int, int]], contents: list[bytes]
) -> str:
    """Of all that the launch depends on. An address is a place in a block; kernels may ask for its alignment too."""
    places = list[int | tuple[int, int, int]]()
    for kind, value in zip(types, values, strict=True):
        block = None if kind == INT32 else next((i for i, block in enumerate(memory) if _holds(block, value)), None)
        places.append(value if block is None else (block, value - memory[block][0], value % 64))
    digest = hashlib.blake2b(repr((settings, types, places, [size for _, size in memory])).encode(), digest_size=16)
    for data in contents:
        digest.update(data)
    return digest.hexdigest()
