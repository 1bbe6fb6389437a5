"""Memoization by the layouts of arrays: for other arrays of the same layouts only the addresses are read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from torch import Tensor

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_MAX_ENTRIES = 4096  # results stored at once
_ALIGNMENT = 16  # bytes; larger alignments are not distinguished


class LayoutMemo(Generic[Key, Value]):
    """Results of a function of `how` and of the arrays' layouts: shape, strides, dtype, device and alignment.

    The arrays of one `how` always have the same names in the same order. What the function raises is raised anew each time.
    """

    def __init__(self, function: Callable[[Key, Mapping[str, Tensor | None]], Value]):
        self._function = function
        self._found: dict[Hashable, Value] = {}

    def get_or_compute(self, how: Key, arrays: Mapping[str, Tensor | None]) -> tuple[Value, list[int]]:
        """The function's result, and the arrays' addresses in their order, 0 for None."""
        key: list[Any] = [how]
        pointers: list[int] = []
        for one in arrays.values():
            if one is None:
                pointers.append(0)
                key.append(None)
            else:
                pointer = one.data_ptr()
                pointers.append(pointer)
                alignment = pointer % _ALIGNMENT if pointer else None  # null: no memory, as of a wrapper of tensors
                key += (one.shape, one.stride(), one.dtype, one.device, alignment)
        known = tuple(key)
        found = self._found.get(known)
        if found is None:
            if len(self._found) >= _MAX_ENTRIES:
                self._found.clear()
            found = self._found[known] = self._function(how, arrays)
        return found, pointers
