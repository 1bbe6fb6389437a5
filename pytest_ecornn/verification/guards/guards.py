"""Memory with borders: what a layer is given, and what torch.empty gives it, lies in blocks whose rest must stay as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from pytest_ecornn.verification.calls import AnyContents, PoisonedAllocations
from pytest_ecornn.verification.overlap import is_folded

_REDZONE_BYTES = 512  # a multiple of every alignment that torch's allocators keep
_PATTERN = 255  # as a float it is NaN, so that what is read beyond an end shows too
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class _GuardedBuffer:
    name: str
    memory: Tensor  # uint8
    inner: Tensor


class Redzones:
    """Blocks, each larger than its tensor by a border on either side that holds a pattern."""

    def __init__(self) -> None:
        self._blocks: list[_GuardedBuffer] = []

    def place(self, name: str, like: Tensor) -> Tensor:
        """Unwritten memory of the same kind and strides as `like`, within a block."""
        strides = like.stride()
        span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, strides, strict=True))
        size = -(-span * like.element_size() // 8) * 8 + 2 * _REDZONE_BYTES
        memory = torch.full((size,), _PATTERN, dtype=torch.uint8, device=like.device)
        if memory.is_cuda and torch.cuda.is_current_stream_capturing():
            with torch.cuda.stream(_idle_stream(memory.device)):
                memory.fill_(_PATTERN)  # now, since the graph may never be replayed
        inner = memory.view(like.dtype).as_strided(like.shape, strides, _REDZONE_BYTES // like.element_size())
        self._blocks.append(_GuardedBuffer(name, memory, inner))
        # As a storage of its own: backward passes of torch count on a fresh tensor's beginning where its storage does.
        return from_dlpack(inner).as_strided(like.shape, strides)

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        values = tensor.detach()
        return self.place(name, values.contiguous() if is_folded(values) else values).copy_(values)

    def around(self, contents: AnyContents) -> AnyContents:
        """Returns the same contents with everything that a call is given inside blocks."""
        return contents.map(self.copy)

    def find_overwrite(self) -> str:
        """Describes the first block that was written outside its tensor; empty if none was."""
        for device in {block.memory.device for block in self._blocks if block.memory.is_cuda}:
            torch.cuda.synchronize(device)  # other streams filled some
        return next(filter(None, map(_damage, self._blocks)), "")


class RedzoneAllocations(PoisonedAllocations):
    """Within it, memory from torch.empty and its kin lies within blocks, and holds NaN."""

    def __init__(self, bands: Redzones):
        super().__init__()
        self._bands = bands

    def _placed(self, made: Tensor) -> Tensor:
        if made.layout != torch.strided or made.element_size() not in _INTEGERS or made.is_meta or made.is_pinned():
            return made
        return self._bands.place("memory of torch.empty", made)


def _idle_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream that captures nothing. torch hands out its streams by turns, those of a capture that goes on too."""
    while True:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            if not torch.cuda.is_current_stream_capturing():
                return stream


def _damage(block: _GuardedBuffer) -> str:
    rest, inner = block.memory.clone(), block.inner
    integers: Any = rest.view(_INTEGERS[inner.element_size()])
    own = integers.as_strided(inner.shape, inner.stride(), _REDZONE_BYTES // inner.element_size())
    own.fill_(_PATTERN if inner.element_size() == 1 else -1)
    wrong = (rest != _PATTERN).nonzero()
    if not len(wrong):
        return ""
    offset = int(wrong[0]) - _REDZONE_BYTES
    kind = f"{block.name} {list(inner.shape)}, {str(inner.dtype).removeprefix('torch.')}"
    return f"expected nothing written outside {kind}, got {len(wrong)} bytes, the first {offset} bytes from its start"
