"""Functions as participants of a measurement: calls on contents that come from `make_inputs`, written just before each call."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pytest_ecornn.kernels.arguments import Arguments, Function, FunctionCall, Incoming, run
from pytest_ecornn.measurement.pool import MAX_COPIED_BYTES
from pytest_ecornn.verification.calls import check_unchanged, fill

_RANDOM = secrets.SystemRandom()


@dataclass
class TimedFunction:
    """A function that is timed, as `measurement.Timed`. result: of one call, for its size."""

    name: str
    layer: Function
    arguments: Arguments
    incoming: Incoming
    build_ms: float = 0.0
    first_call_ms: float | None = None
    weights: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return str(self.arguments.device)

    @property
    def is_training(self) -> bool:
        return self.arguments.has_gradients

    @cached_property
    def result_bytes(self) -> int:
        results = run(self.layer, self.arguments, self.incoming)
        return sum(tensor.nbytes for tensor in results.values() if tensor is not None)


@dataclass(frozen=True)
class PreparedFunctionCall:
    """A call that is to be made on such contents. is_apart: whether its leaves are no other call's."""

    call: FunctionCall
    contents: Arguments
    is_apart: bool = True
    change: float = 0.0

    def write(self) -> None:
        fill(self.call.arguments, self.contents)

    def check_unchanged(self) -> None:
        """Raises WrongResult where the call wrote into what it was given."""
        before = self.contents.tensors
        for name, tensor in self.call.arguments.tensors.items() if self.is_apart else ():
            check_unchanged(name, tensor.detach(), before[name].detach())


class ArgumentPool:
    """Contents in turn, in an order that is drawn, in memory of each call's own as long as that does not take too much.

    incoming: gradients, the same tensors for every call. Raises ValueError for contents of different shapes.
    """

    weight_changes = None

    def __init__(self, every: Sequence[Arguments], incoming: Incoming):
        self.every, self._incoming = every, incoming
        if odd := [other.kind for other in every if other.kind != every[0].kind]:
            kinds = f"got {every[0].kind} and {odd[0]}"
            raise ValueError(f"expected make_inputs to give one shape, and the same other arguments, for every seed, {kinds}")
        self._turns: list[int] = []

    @property
    def call_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.every[0].tensors.values())

    def prepare_calls(self, weights: Any, count: int, change: float = 0.0) -> list[PreparedFunctionCall]:
        """Calls on leaves of their own; where these would take too much memory, on the same in turn."""
        fits = max(2, MAX_COPIED_BYTES // max(1, self.call_bytes))
        calls = [self.static_call(weights) for _ in range(min(count, fits))]
        return [self._prepared(calls[position % fits], count <= fits) for position in range(count)]

    def static_call(self, weights: Any) -> FunctionCall:
        return FunctionCall(self.every[0].map(lambda _, tensor: torch.empty_like(tensor)), self._incoming)

    def prepare_replay(self, call: FunctionCall, change: float) -> PreparedFunctionCall:
        prepared = self._prepared(call)
        prepared.write()
        return prepared

    def _prepared(self, call: FunctionCall, is_apart: bool = True) -> PreparedFunctionCall:
        if not self._turns:
            self._turns = _RANDOM.sample(range(len(self.every)), len(self.every))
        return PreparedFunctionCall(call, self.every[self._turns.pop()], is_apart)
