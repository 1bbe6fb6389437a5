"""Results of timed calls. All calls of a block are made alike; those to verify are chosen when the clock has stopped.

Every result lives until the block has ended, so its living on tells nothing. Of a few calls a part of each result is copied
as soon as the call has returned: what is not finished by then shows. Which calls these are is drawn when they have returned.
"""

from __future__ import annotations

import heapq
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Declared, Layer, cells
from pytest_ecornn.measurement.pool import Prepared
from pytest_ecornn.system import memory
from pytest_ecornn.verification import spot_check
from pytest_ecornn.verification.calls import Call, Tensors, WrongResult, bitwise_different, tree_map_tensors
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.verification import Candidate, ReferenceResult

MOST_KEPT = 96  # 5 % of calls left undone are among so many with 99 %: 1 - 0.95**96
MOST_KEPT_BYTES = 2**33  # of results that wait to be verified, and no more than
_KEPT_SHARE = 1 / 8  # of the memory that is there
MOST_ALIVE_BYTES = 2**30  # of one block's results
_COPIED_AT_ONCE = 3  # calls of a block, about
_IN_FULL = 2  # calls that are judged by all rules, beside those that look wrong


def detached_clone(result: Any) -> Any:
    """Without its history, which would tie the weights to the stream of this call."""
    return tree_map_tensors(lambda tensor: tensor.detach().clone(), result)


def result_bytes(candidate: Candidate) -> int:
    """Size of one timed call's results, in bytes."""
    case = candidate.case
    states = case.layers * len(cells.get(case.cell).states)
    elements = case.directions * case.hidden_size * case.batch * (case.steps + states)
    if case.training:
        elements += case.steps * case.batch * cells.x_width(case) + sum(weight.numel() for weight in candidate.weights.values())
    return elements * contents.torch_dtype(case).itemsize


def tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors of a result, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors(one)


@dataclass(frozen=True)
class Part:
    """A copy of one row of a tensor, made as soon as the call had returned."""

    result: Any
    tensor: int
    row: int
    copy: Tensor

    def check(self) -> None:
        """Raises WrongResult where the row has changed since."""
        now = list(tensors(self.result))[self.tensor]
        if now.shape[1:] != self.copy.shape or bitwise_different(now[self.row], self.copy).any():
            raise WrongResult(f"expected results finished when the call returns, but tensor {self.tensor} changed afterwards")


class Results:
    """The results of one block's calls, in order; where memory is short, those of the last calls."""

    def __init__(self, calls: int, draw: Callable[[], float], alive: int):
        self.calls = calls
        self.returned: deque[Any] = deque(maxlen=alive)
        self.parts: list[Part] = []
        self._draw, self._share, self._made = draw, _COPIED_AT_ONCE / calls, 0

    def make(self, call: Call, layer: Layer) -> None:
        """Makes the next call. All are made alike."""
        result = call.forward_backward(layer)
        self.returned.append(result)
        self._made += 1
        if self._draw() < self._share and self._made < self.calls:
            self._copy_parts(result)

    def _copy_parts(self, result: Any) -> None:
        """Copies a row of the output, of a final state and, in training, of some gradient."""
        given = list(tensors(result))
        for position in {0, len(given) - 1, int(self._draw() * len(given))}:
            if position < len(given) and given[position].ndim:
                row = int(self._draw() * len(given[position]))
                self.parts.append(Part(result, position, row, given[position][row].detach().clone()))


@dataclass(order=True)
class KeptCall:
    """A timed call to be verified. key: random; `MOST_KEPT` of the largest stay, so that any call is as likely as any other."""

    key: float
    prepared: Prepared = field(compare=False)
    tensors: Tensors = field(compare=False)


class SpotChecks:
    """Timed calls of a measurement with what they returned, each as likely as any other; all, where there are few."""

    def __init__(self, call_bytes: int = 0, device: str = "cpu") -> None:
        """call_bytes: of the results of one call."""
        self._draw = random.Random(secrets.randbits(128)).random
        self._calls: list[KeptCall] = []
        self._blocks = 0
        most_bytes = min(MOST_KEPT_BYTES, int(_KEPT_SHARE * memory.free_bytes(device)))
        self._most = max(_IN_FULL, min(MOST_KEPT, most_bytes // max(1, call_bytes)))
        self._alive = max(2, MOST_ALIVE_BYTES // max(1, call_bytes))

    def results(self, calls: int) -> Results:
        """Returns empty `Results` for the next block."""
        return Results(calls, self._draw, min(calls, self._alive))

    def take(self, prepared: Sequence[Prepared], results: Sequence[Any]) -> bool:
        """Chooses among the calls and their results, the clock stopped, and copies what is chosen.

        Returns whether to look closely at this block: less and less often. Raises WrongResult where a chosen call wrote into
        what it was given, or returned what does not have the contract's form.
        """
        self._blocks += 1
        selected = []
        for one, result in zip(prepared, results, strict=True):
            key = self._draw()
            if len(self._calls) < self._most or key > self._calls[0].key:
                selected.append(one)
                self._keep(KeptCall(key, one, one.call.results_by_name(*detached_clone(result))))
        is_watched = self._draw() < 1 / self._blocks
        for one in selected if is_watched else selected[:1]:
            one.check_unchanged()
        return is_watched

    def _keep(self, call: KeptCall) -> None:
        (heapq.heappush if len(self._calls) < self._most else heapq.heapreplace)(self._calls, call)

    def verify(self, declared: Declared) -> list[TensorCheck]:
        """The verdict on every tensor of two calls, and of the worst that a faster check of all finds fault with."""
        shares = spot_check.shares([(call.prepared.problem, call.tensors) for call in self._calls], declared)
        by_share = sorted(zip(shares, self._calls, strict=True), key=lambda pair: -pair[0])
        suspicious = [call for share, call in by_share[: spot_check.MOST_DOUBTS] if share > 1]
        suspicious += [call for call in heapq.nlargest(_IN_FULL, self._calls) if call not in suspicious]
        return [one for call in suspicious for one in ReferenceResult(call.prepared.problem()).compare(call.tensors, declared)]
