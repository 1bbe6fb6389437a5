"""What a planned call does, recorded once while Python runs it, so that replay.cpp does the same without Python.

Recorded are torch's operators, views and allocations, launches, memory that is cleared, and side streams. Addresses are of the
call's own tensors, which each replay has anew. What depends on anything else is refused: Python runs such calls for good.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

_LOWEST_ADDRESS = 2**32  # on a GPU: a smaller value is a size or a stride
_ALLOCATIONS = ("aten::empty", "aten::new_empty")
_CONSTANTS = {torch.strided: 0, torch.contiguous_format: 0, torch.preserve_format: 1}  # as c10 numbers them
# Instructions; the number of values; those that are results, -1 for none.
Tape = tuple[list[tuple[Any, ...]], int, list[int]]


class Kind(IntEnum):
    """Instructions. Those after FORK run on a side stream, until BACK; after JOIN the current stream waits for it."""

    EMPTY, VIEW, OPERATOR, LAUNCH, MEMSET, FORK, BACK, JOIN, FREE = range(9)


class _Operator(NamedTuple):
    """One of torch's. arguments: their names."""

    name: str
    overload: str
    arguments: tuple[str, ...]
    is_mutable: bool


@cache
def _operator(function: Any) -> _Operator:
    """What torch makes anew of an operator's schema whenever it is read."""
    schema = function._schema
    return _Operator(schema.name, schema.overload_name, tuple(part.name for part in schema.arguments), schema.is_mutable)


class _Tensor(NamedTuple):
    """A tensor that is alive. number: of its value. extent: addresses that are its."""

    number: int
    reference: ref[Tensor]
    storage: int
    extent: tuple[int, int]


class Recorder(TorchDispatchMode):
    """Mode that records what runs within it. inputs: the call's tensors. constants: addresses that never change.

    It keeps no tensor alive, so that a recorded call needs no more memory than others.
    """

    sees_inside_ops = True

    def __init__(self, inputs: Sequence[Tensor | None], constants: Collection[int] = ()):
        super().__init__()  # type: ignore[no-untyped-call]
        self.refusal = ""
        self._code: list[tuple[Any, ...]] = []
        self._uses: list[set[int]] = []  # values of each instruction
        self._alive: dict[int, _Tensor] = {}  # by id
        self._storages = Counter[int]()  # of those
        self._num_inputs = self._num_values = len(inputs)
        self._constants = frozenset(constants)
        numbered = [(number, tensor) for number, tensor in enumerate(inputs) if tensor is not None]
        self._devices = {tensor.device for _, tensor in numbered}
        self._is_on_cpu = any(device.type == "cpu" for device in self._devices)
        for number, tensor in numbered:
            self._add_tensor(tensor, number, _extent(tensor) if tensor.numel() else (0, 0))
        self._input_storages = {tensor.storage for tensor in self._alive.values()}
        if len(self._alive) != len(numbered):
            self._refuse("a tensor is given twice")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, or torch wraps the method below, for which it imports its compiler: seconds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        try:
            self._record(_operator(function), args, kwargs or {}, result)
        except Exception as error:  # a reason for Python to run such calls, not for them to fail
            self._refuse(f"{type(error).__name__}: {error}")
        return result

    def launch(
        self, driver: int, function: int, is_cooperative: bool, sizes: Sequence[int], types: str, values: Sequence[int],
        params: bytes,
    ) -> None:  # fmt: skip
        """Records a launch. driver: address of its function that launches. sizes: blocks, threads, shared bytes.

        types, values: of the fields of Params, whose bytes `params` are.
        """
        pointers = []
        for number, (field_type, value) in enumerate(zip(types, values, strict=True)):
            if self._is_address(field_type, value) and value not in self._constants:
                pointers.append((struct.calcsize(f"@{types[:number]}0{field_type}"), *self._place(value)))
        used = {value for _, value, _ in pointers}
        self._add(used, Kind.LAUNCH, driver, is_cooperative, function, *sizes, params, pointers)

    def allocate(self, tensor: Tensor) -> None:
        """Records that a tensor is allocated, without gaps or with."""
        number = self._number_of_result(tensor)
        self._devices.add(tensor.device)
        self._add({number}, Kind.EMPTY, number, list(tensor.shape), list(tensor.stride()), tensor.dtype)

    def view(self, base: Tensor, view: Tensor) -> None:
        """Records a view of a tensor, in its dtype."""
        number, value, offset = self._number_of_result(view), self._number(base), view.storage_offset() - base.storage_offset()
        self._add({number, value}, Kind.VIEW, number, value, list(view.shape), list(view.stride()), offset)

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
        numbers = [-1 if output is None else self._number(output) for output in outputs]
        if len(self._devices) != 1:
            self._refuse(f"tensors are on {len(self._devices)} devices")
        if any(0 <= number < self._num_inputs for number in numbers):
            self._refuse("a result is what was given")
        self._alive.clear()  # whose references know this recorder
        return self.refusal or (self._with_frees(set(numbers)), self._num_values, numbers)

    def _with_frees(self, results: set[int]) -> list[tuple[Any, ...]]:
        """The code, in which values are dropped after their last use; between FORK and JOIN none."""
        last = {value: at for at, used in enumerate(self._uses) for value in used}
        frees: list[list[int]] = [[] for _ in self._code]
        for value, at in last.items():
            if value >= self._num_inputs and value not in results:
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

    def _record(self, operator: _Operator, args: Any, kwargs: Any, result: Any) -> None:
        results = [*result] if isinstance(result, (tuple, list)) else [] if result is None else [result]
        if not all(type(tensor) is Tensor for tensor in results):
            return self._refuse(f"{operator.name} returns other than tensors")
        if operator.name.startswith(_ALLOCATIONS):
            return self.allocate(result)
        self._devices.update(tensor.device for tensor in results if tensor.dim())  # scalars may be a CPU's
        operands = dict[int, Tensor]()  # by numbers
        passed = [
            self._encode(args[i] if i < len(args) else kwargs.get(argument, ...), operands)
            for i, argument in enumerate(operator.arguments)
        ]
        if operator.name == "aten::detach" and passed:  # as torch.empty does in a mode; nothing is recorded by autograd here
            return self._add_tensor(result, passed[0][0])
        is_new = len(results) == 1 and id(result) not in self._alive and not operator.is_mutable
        is_view = is_new and self._storages[_storage(result)] > 0
        if is_view:
            return self._view(operator.name, result, operands.values())
        outputs = [self._number_of_result(tensor) for tensor in results]
        self._add({*operands, *outputs}, Kind.OPERATOR, operator.name, operator.overload, passed, outputs)

    def _view(self, name: str, result: Tensor, operands: Collection[Tensor]) -> None:
        """Records a view of one of the operator's arguments."""
        bases = [base for base in operands if _storage(base) == _storage(result)]
        if not bases or bases[0].dtype != result.dtype or result.is_conj() or result.is_neg():
            return self._refuse(f"{name} returns a view in another way")
        self.view(bases[0], result)

    def _encode(self, value: Any, operands: dict[int, Tensor]) -> Any:
        """An operator's argument as replay.cpp takes it; adds tensors to `operands`."""
        if isinstance(value, Tensor):
            number = self._number(value)
            operands[number] = value
            return (number,)
        if isinstance(value, (list, tuple)):
            return [self._encode(element, operands) for element in value]
        if isinstance(value, torch.device):
            return str(value)
        if value in _CONSTANTS:
            return _CONSTANTS[value]
        if not (value is None or value is ... or type(value) in (bool, int, float, str, torch.dtype)):
            self._refuse(f"an operator takes {value!r}")
        return value

    def _number(self, tensor: Tensor) -> int:
        if (known := self._alive.get(id(tensor))) is None:
            self._refuse("a tensor is used that the call has not made, and was not given")
            return 0
        return known.number

    def _number_of_result(self, tensor: Tensor) -> int:
        if (known := self._alive.get(id(tensor))) is not None:
            return known.number
        number = self._num_values
        self._num_values += 1
        self._add_tensor(tensor, number)
        return number

    def _add_tensor(self, tensor: Tensor, number: int, extent: tuple[int, int] | None = None) -> None:
        """Numbers a tensor until it dies: then others may have its id and its memory."""
        key, storage = id(tensor), _storage(tensor)
        if extent is None:
            memory = tensor.untyped_storage()
            is_made = storage not in self._input_storages and memory.data_ptr()
            extent = (memory.data_ptr(), memory.data_ptr() + memory.nbytes()) if is_made else (0, 0)
        self._alive[key] = _Tensor(number, ref(tensor, lambda _: self._forget(key)), storage, extent)
        self._storages[storage] += 1

    def _forget(self, key: int) -> None:
        if (tensor := self._alive.pop(key, None)) is not None:
            self._storages[tensor.storage] -= 1

    def _is_address(self, field_type: str, value: int) -> bool:
        """Whether a field of a Params is one: a pointer, and an integer of 64 bits that is high or in a tensor's memory.

        A CPU's memory may begin below the lowest address of a GPU's.
        """
        if struct.calcsize(field_type) < 8 or not value:
            return False
        return field_type == "P" or value >= _LOWEST_ADDRESS or (self._is_on_cpu and bool(self._tensors_at(value)))

    def _tensors_at(self, address: int) -> list[_Tensor]:
        return [tensor for tensor in self._alive.values() if tensor.extent[0] <= address < tensor.extent[1]]

    def _place(self, address: int) -> tuple[int, int]:
        """The value whose memory has an address, and the address's offset in bytes from its first element."""
        tensors = self._tensors_at(address)
        memories = {tensor.number if tensor.storage in self._input_storages else tensor.storage for tensor in tensors}
        holder = tensors[0].reference() if len(memories) == 1 else None
        if holder is None:
            self._refuse(f"an address that a launch takes is in the memory of {len(memories)} tensors")
            return 0, 0
        return tensors[0].number, address - holder.data_ptr()

    def _add(self, used: set[int], *instruction: Any) -> None:
        self._code.append(instruction)
        self._uses.append(used)

    def _refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason


def _storage(tensor: Tensor) -> int:
    """What tensors of the same memory have in common."""
    address: int = tensor.untyped_storage()._cdata
    return address


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first element to after its last."""
    start = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.itemsize


def is_observed() -> bool:
    """Whether a mode other than a recorder sees torch's calls."""
    modes = torch._C._len_torch_dispatch_stack()
    return bool(modes > 1 or (modes and current_recorder() is None))


def current_recorder() -> Recorder | None:
    """The recorder that records now, on this thread."""
    if not torch._C._len_torch_dispatch_stack():
        return None
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, Recorder) else None
