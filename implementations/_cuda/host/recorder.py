"""What a planned call does, recorded once while Python runs it, so that replay.cpp does the same without Python.

Recorded are torch's operators, views and allocations, launches, memory that is cleared, and side streams. Addresses are of the
call's own tensors, which each replay has anew. What depends on anything else is refused: Python runs such calls for good.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from pytest_ecornn.reference.precision import current

_LOWEST_ADDRESS = 2**32  # on a GPU: a smaller value is a size or a stride
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_")
_ALLOCATIONS = ("aten::empty", "aten::new_empty")
_CONSTANTS = {torch.strided: 0, torch.contiguous_format: 0, torch.preserve_format: 1}  # as c10 numbers them
_FLAGS = [getattr(torch._C, f"_get_cublas_allow_{name}_reduced_precision_reduction") for name in ("fp16", "bf16")]
# Instructions; the number of values; those that are results, -1 for none; the precisions of products, None without products.
Tape = tuple[list[tuple[Any, ...]], int, list[int], tuple[int, int, str] | None]


class Kind(IntEnum):
    """Instructions. Those after FORK run on a side stream, until BACK; after JOIN the current stream waits for it."""

    EMPTY, VIEW, OPERATOR, LAUNCH, MEMSET, FORK, BACK, JOIN, FREE = range(9)


class Recorder(TorchDispatchMode):
    """Mode that records what runs within it. inputs: the call's tensors. constants: addresses that never change."""

    sees_inside_ops = True

    def __init__(self, inputs: Sequence[Tensor | None], constants: Collection[int] = ()):
        super().__init__()  # type: ignore[no-untyped-call]
        self.refusal = ""
        self._code: list[tuple[Any, ...]] = []
        self._uses: list[set[int]] = []  # values of each instruction
        self._tensors: list[Tensor | None] = [*inputs]  # by their numbers as values; held, so that no address is another's
        self._numbers = {id(one): number for number, one in enumerate(inputs) if one is not None}
        self._held: list[Tensor] = []
        self._num_inputs, self._constants = len(inputs), frozenset(constants)
        given = [one for one in inputs if one is not None]
        self._devices, self._flags = {one.device for one in given}, set[tuple[int, int, str]]()
        self._storages = {one.untyped_storage()._cdata for one in given}
        self._memory = [(*_extent(one), self._numbers[id(one)]) for one in given if one.numel()]
        if len(self._numbers) != len(given):
            self._refuse("a tensor is given twice")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self._record(function._schema, args, kwargs or {}, result)
        return result

    def launch(
        self, driver: int, function: int, is_cooperative: bool, sizes: Sequence[int], types: str, values: Sequence[int],
        params: bytes,
    ) -> None:  # fmt: skip
        """Records a launch. driver: address of its function that launches. sizes: blocks, threads, shared bytes.

        types, values: of the fields of Params, whose bytes `params` are.
        """
        pointers = []
        for number, (kind, value) in enumerate(zip(types, values, strict=True)):
            if self._is_address(kind, value) and value not in self._constants:
                pointers.append((struct.calcsize(f"@{types[:number]}0{kind}"), *self._place(value)))
        used = {value for _, value, _ in pointers}
        self._add(used, Kind.LAUNCH, driver, is_cooperative, function, *sizes, params, pointers)

    def clear(self, driver: int, memory: Tensor) -> None:
        """Records that all bytes of a tensor are set to 0. driver: address of its function that does."""
        number = self._number(memory)
        self._add({number}, Kind.MEMSET, driver, number, memory.nbytes)

    def side_by_side(self, first: Callable[[], None], second: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        """The same functions, recorded: `second` is called before, on a side stream."""

        def on_side_stream() -> None:
            self._add(set(), Kind.FORK)
            second()
            self._add(set(), Kind.BACK)

        def beside() -> None:
            first()
            self._add(set(), Kind.JOIN)

        return beside, on_side_stream

    def tape(self, outputs: Sequence[Tensor | None]) -> Tape | str:
        """What was recorded, or why it cannot be replayed. outputs: the call's results."""
        numbers = [-1 if one is None else self._number(one) for one in outputs]
        if len(self._devices) != 1:
            self._refuse(f"tensors are on {len(self._devices)} devices")
        if any(0 <= number < self._num_inputs for number in numbers):
            self._refuse("a result is what was given")
        if len(self._flags) > 1:
            self._refuse("products have several precisions")
        return self.refusal or (self._with_frees(set(numbers)), len(self._tensors), numbers, next(iter(self._flags), None))

    def _with_frees(self, kept: set[int]) -> list[tuple[Any, ...]]:
        """The code, in which values are dropped after their last use; between FORK and JOIN none."""
        last = {value: at for at, used in enumerate(self._uses) for value in used}
        frees: list[list[int]] = [[] for _ in self._code]
        for value, at in last.items():
            if value >= self._num_inputs and value not in kept:
                frees[at].append(value)
        code, waiting, is_forked = list[tuple[Any, ...]](), list[int](), False
        for instruction, free in zip(self._code, frees, strict=True):
            code.append(instruction)
            waiting += free
            is_forked = instruction[0] != Kind.JOIN and (is_forked or instruction[0] == Kind.FORK)
            if waiting and not is_forked:
                code.append((Kind.FREE, waiting))
                waiting = []
        return code

    def _record(self, schema: Any, args: Any, kwargs: Any, result: Any) -> None:
        results = [*result] if isinstance(result, (tuple, list)) else [result]
        if not all(type(one) is Tensor for one in results):
            return self._refuse(f"{schema.name} returns other than tensors")
        is_allocation = schema.name.startswith(_ALLOCATIONS)
        self._devices.update(one.device for one in results if is_allocation or one.dim())  # a CPU's scalars may be operands
        used = set[int]()
        passed = [
            self._encode(args[i] if i < len(args) else kwargs.get(argument.name, ...), used)
            for i, argument in enumerate(schema.arguments)
        ]
        if schema.name == "aten::detach" and passed:  # as torch.empty does in a mode; nothing is recorded by autograd here
            self._numbers[id(result)] = passed[0][0]
            self._held.append(result)
            return None
        is_view = len(results) == 1 and id(result) not in self._numbers and not schema.is_mutable
        is_view = is_view and result.untyped_storage()._cdata in self._storages
        outputs = [self._number_of_result(one) for one in results]
        used.update(outputs)
        if is_view:
            return self._view(schema.name, result, outputs[0], used)
        if is_allocation:
            return self._add(used, Kind.EMPTY, *outputs, list(result.shape), list(result.stride()), result.dtype)
        if schema.name in _PRODUCTS:
            self._flags.add((*(_option(read()) for read in _FLAGS), current("matmul")))  # type: ignore[arg-type]
        self._add(used, Kind.OPERATOR, schema.name, schema.overload_name, passed, outputs)

    def _view(self, name: str, result: Tensor, number: int, used: set[int]) -> None:
        """Records a view of one of the operator's arguments."""
        storage = result.untyped_storage()._cdata
        bases = [(one, value) for value in used - {number} if (one := self._tensors[value]) is not None]
        base, value = next(((one, value) for one, value in bases if one.untyped_storage()._cdata == storage), (None, 0))
        if base is None or base.dtype != result.dtype or result.is_conj() or result.is_neg():
            return self._refuse(f"{name} returns a view in another way")
        offset = result.storage_offset() - base.storage_offset()
        self._add({number, value}, Kind.VIEW, number, value, list(result.shape), list(result.stride()), offset)

    def _encode(self, value: Any, used: set[int]) -> Any:
        """An operator's argument as replay.cpp takes it; adds the values of tensors to `used`."""
        if isinstance(value, Tensor):
            number = self._number(value)
            used.add(number)
            return (number,)
        if isinstance(value, (list, tuple)):
            return [self._encode(one, used) for one in value]
        if isinstance(value, torch.device):
            return str(value)
        if value in _CONSTANTS:
            return _CONSTANTS[value]
        if not (value is None or value is ... or type(value) in (bool, int, float, str, torch.dtype)):
            self._refuse(f"an operator takes {value!r}")
        return value

    def _number(self, tensor: Tensor) -> int:
        if (number := self._numbers.get(id(tensor))) is None:
            self._refuse("a tensor is used that the call has not made, and was not given")
        return number or 0

    def _number_of_result(self, tensor: Tensor) -> int:
        if (number := self._numbers.get(id(tensor))) is not None:
            return number
        number = self._numbers[id(tensor)] = len(self._tensors)
        self._tensors.append(tensor)
        if (storage := tensor.untyped_storage())._cdata not in self._storages:
            self._storages.add(storage._cdata)
            if start := storage.data_ptr():
                self._memory.append((start, start + storage.nbytes(), number))
        return number

    def _is_address(self, kind: str, value: int) -> bool:
        """Whether a field of a Params is one: a pointer, and an integer of 64 bits that is high or in a tensor's memory.

        A CPU's memory may begin below the lowest address of a GPU's.
        """
        if struct.calcsize(kind) < 8 or not value:
            return False
        return kind == "P" or value >= _LOWEST_ADDRESS or any(start <= value < end for start, end, _ in self._memory)

    def _place(self, address: int) -> tuple[int, int]:
        """The value whose memory has an address, and the address's offset in bytes from its first element."""
        places = [number for start, end, number in self._memory if start <= address < end]
        if len(places) != 1:
            self._refuse(f"an address that a launch takes is in the memory of {len(places)} tensors")
            return 0, 0
        number = places[0]
        tensor = self._tensors[number]
        assert tensor is not None
        return number, address - tensor.data_ptr()

    def _add(self, used: set[int], *instruction: Any) -> None:
        self._code.append(instruction)
        self._uses.append(used)

    def _refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first element to after its last."""
    start = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.itemsize


def _option(flags: bool | tuple[bool, bool]) -> int:
    """How c10 numbers whether a sum in 16 bits may be rounded to them between its parts, and may be split."""
    is_reduced, is_split = flags if isinstance(flags, tuple) else (flags, True)
    return 0 if is_reduced else 1 if is_split else 2


def current_recorder() -> Recorder | None:
    """The recorder that records now, on this thread."""
    if not torch._C._len_torch_dispatch_stack():
        return None
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, Recorder) else None
