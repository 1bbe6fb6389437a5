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
    """Results of a function of a key and of the arrays' layouts: shape, strides, dtype, device and alignment.

    The arrays of one key always have the same names in the same order. What the function raises is raised anew each time.
    """

    def __init__(self, function: Callable[[Key, Mapping[str, Tensor | None]], Value]):
        self._function = function
        self._results: dict[Hashable, Value] = {}

    def get_or_compute(self, key: Key, arrays: Mapping[str, Tensor | None]) -> tuple[Value, list[int]]:
        """The function's result, and the arrays' addresses in their order, 0 for None."""
        layouts: list[Any] = [key]
        pointers: list[int] = []
        for array in arrays.values():
            if array is None:
                pointers.append(0)
                layouts.append(None)
            else:
                pointer = array.data_ptr()
                pointers.append(pointer)
                alignment = pointer % _ALIGNMENT if pointer else None  # null: no memory, as of a wrapper of tensors
                layouts += (array.shape, array.stride(), array.dtype, array.device, alignment)
        entry = tuple(layouts)
        result = self._results.get(entry)
        if result is None:
            if len(self._results) >= _MAX_ENTRIES:
                self._results.clear()
            result = self._results[entry] = self._function(key, arrays)
        return result, pointers
