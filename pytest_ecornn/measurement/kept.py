"""Results of timed calls. All calls of a block are made alike; those to verify are chosen when the clock has stopped.

Every result lives until the block has ended, so its living on tells nothing. Of a few calls a part of each result is copied
as soon as the call has returned: what is not finished by then shows. Which calls these are is drawn when they have returned;
the last of a block, after which settings are read, is always one. Some results of the first block live until the row ends.

Results are read by torch's own functions once their types are known to be torch's own: a subclass of Tensor or tuple, or a
method that one tensor has for itself, could do the work only then.
"""

from __future__ import annotations

import heapq
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Declared
from pytest_ecornn.measurement.pool import PreparedCall, TimedCall
from pytest_ecornn.system import memory
from pytest_ecornn.verification import spot_check
from pytest_ecornn.verification.calls import Tensors, WrongResult, bitwise_different, copy_tensors
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.verification import ReferenceResult

MOST_KEPT = 96  # 5 % of calls left undone are among so many with 99 %: 1 - 0.95**96
MOST_KEPT_BYTES = 2**33  # of results that wait to be verified, and no more than
_KEPT_SHARE = 1 / 8  # of the memory that is there
MOST_ALIVE_BYTES = 2**30  # of one block's results
_COPIED_AT_ONCE = 3  # calls of a block, about
_HELD = 3  # results of the first block that live until the row ends
_IN_FULL = 2  # calls that are judged by all rules, beside those that look wrong


def detached(call: TimedCall, result: Any) -> Tensors:
    """The results of a timed call by name, without their history, which would tie the weights to the stream of this call.

    Raises WrongResult where they lack the contract's form.
    """
    by_name = call.results_by_name(*result)
    return {name: None if tensor is None else Tensor.detach(tensor) for name, tensor in by_name.items()}


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

    name: str
    tensor: Tensor
    row: int
    copy: Tensor

    def check(self) -> None:
        """Raises WrongResult where the row has changed since."""
        if self.tensor.shape[1:] != self.copy.shape or bitwise_different(self.tensor[self.row], self.copy).any():
            raise WrongResult(f"expected results finished when the call returns, but {self.name} changed afterwards")


@dataclass
class Stretch:
    """Calls that a clock times together. look: at the last one's result, when the clock has stopped; again it does nothing."""

    make: Callable[[], None]
    look: Callable[[], None]

    def __call__(self) -> None:
        self.make()


class Results:
    """The results of one block's calls, in order; where memory is short, those of the last calls."""

    def __init__(self, calls: int, draw: Callable[[], float], alive: int):
        self.returned: deque[Any] = deque(maxlen=alive)
        self.parts: list[Part] = []
        self._draw, self._share = draw, _COPIED_AT_ONCE / calls

    def stretches(self, prepared: Sequence[PreparedCall], layer: Any, calls: int) -> Iterator[Stretch]:
        """Yields so many calls each, whose contents have just been written. All are made alike."""
        for start in range(0, len(prepared), calls):
            stretch = prepared[start : start + calls]
            for one in stretch:
                one.write()
            make = partial(self._make, [one.call for one in stretch], layer)
            look = cache(partial(self._look, stretch[-1].call, is_last=start + calls >= len(prepared)))
            yield (timed := Stretch(make, look))
            timed.look()

    def _make(self, calls: Sequence[TimedCall], layer: Any) -> None:
        """Makes the calls, and looks at what each has returned before the next: at the last one the clock has stopped."""
        former = None
        for call in calls:
            if former is not None:
                self._look(former)
            self.returned.append(call.forward_backward(layer))
            former = call

    def _look(self, call: TimedCall, is_last: bool = False) -> None:
        """Copies, of a few results and the last, a row of the output, of a final state or gradient, and of some tensor."""
        if self._draw() >= self._share and not is_last:
            return
        results = detached(call, self.returned[-1])
        names = list(results)
        for name in dict.fromkeys((names[0], names[-1], names[int(self._draw() * len(names))])):
            tensor = results[name]
            if tensor is not None and tensor.ndim and len(tensor):
                row = int(self._draw() * len(tensor))
                self.parts.append(Part(name, tensor, row, tensor[row].clone()))


@dataclass(order=True)
class KeptCall:
    """A timed call to be verified. key: random; `MOST_KEPT` of the largest stay, so that any call is as likely as any other."""

    key: float
    prepared: Any = field(compare=False)
    tensors: Tensors = field(compare=False)


class SpotChecks:
    """Timed calls of a measurement with what they returned, each as likely as any other; all, where there are few."""

    def __init__(self, call_bytes: int = 0, device: str = "cpu") -> None:
        """call_bytes: of the results of one call."""
        self._draw = random.Random(secrets.randbits(128)).random
        self.calls: list[KeptCall] = []
        self._held: list[tuple[Tensors, Tensors]] = []  # results as returned, and copies
        self._blocks = 0
        most_bytes = min(MOST_KEPT_BYTES, int(_KEPT_SHARE * memory.free_bytes(device)))
        self._most = max(_IN_FULL, min(MOST_KEPT, most_bytes // max(1, call_bytes)))
        self._alive = max(2, MOST_ALIVE_BYTES // max(1, call_bytes))

    def results(self, calls: int) -> Results:
        """Returns empty `Results` for the next block."""
        return Results(calls, self._draw, min(calls, self._alive))

    def take(self, prepared: Sequence[PreparedCall], results: Sequence[Any], is_certain: bool = False) -> bool:
        """Chooses among the calls and their results, the clock stopped, and copies what is chosen; all, where that is certain.

        Returns whether to look closely at this block: less and less often. Raises WrongResult where a chosen call wrote into
        what it was given, or returned what does not have the contract's form.
        """
        self._blocks += 1
        selected = []
        for one, result in zip(prepared, results, strict=True):
            key = self._draw() + is_certain
            if len(self.calls) < self._most or key > self.calls[0].key:
                selected.append(one)
                self._keep(KeptCall(key, one, copy_tensors(detached(one.call, result))))
        is_watched = self._draw() < 1 / self._blocks
        for one in selected if is_watched else selected[:1]:
            one.check_unchanged()
        return is_watched

    def hold(self, prepared: Sequence[PreparedCall], results: Sequence[Any]) -> None:
        """Holds some of the first results until `verify`, when they must be as they are now."""
        while len(self._held) < min(_HELD, len(results)):
            drawn = int(self._draw() * len(results))
            tensors = detached(prepared[drawn].call, results[drawn])
            self._held.append((tensors, copy_tensors(tensors)))

    def _keep(self, call: KeptCall) -> None:
        (heapq.heappush if len(self.calls) < self._most else heapq.heapreplace)(self.calls, call)

    def verify(self, declared: Declared) -> list[TensorCheck]:
        """The verdict on every tensor of two calls, and of the worst that a faster check of all finds fault with.

        Raises WrongResult where an early result is not as it was.
        """
        self.check_held()
        calls, shares = sorted(self.calls, key=_change), list[float]()
        for _, alike in groupby(calls, _change):
            shares += spot_check.shares([(call.prepared.problem, call.tensors) for call in alike], declared)
        by_share = sorted(zip(shares, calls, strict=True), key=lambda pair: -pair[0])
        suspicious = [call for share, call in by_share[: spot_check.MOST_DOUBTS] if share > 1]
        suspicious += [call for call in heapq.nlargest(_IN_FULL, self.calls) if call not in suspicious]
        references = ((ReferenceResult(call.prepared.problem()), call.tensors) for call in suspicious)
        return [check for reference, tensors in references for check in reference.compare(tensors, declared, fewest_runs=0)]

    def check_held(self) -> None:
        """Raises WrongResult where an early result is not as it was."""
        for held, before in self._held:
            for name, copy in before.items():
                if copy is not None and bitwise_different(held[name], copy).any():  # type: ignore[arg-type]
                    raise WrongResult(f"expected results that later calls leave alone, but {name} of an early one changed")


def _change(call: KeptCall) -> float:
    """How the weights that it was made with were changed."""
    return float(call.prepared.change)
