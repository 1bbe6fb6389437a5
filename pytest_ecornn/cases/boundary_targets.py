"""Sizes to be tried, by dimension: around constants of an implementation's sources, and around powers of two."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

FIELDS = {"T": "steps", "B": "batch", "H": "hidden_size", "I": "input_size"}
Options = tuple[tuple[str, Any], ...]
MAX_CONSTANTS, KEPT_CONSTANTS = 16, 4  # of the sources; those that go first each time
SMALLEST_POWER = 3
NO_HINTS: Mapping[int, str] = {}
_LATENESS = 6  # ranks, by which a constant waits where it is about another dimension
MAX_WIDTH = 1100  # of a target of H, I or I + H
# Sizes around a constant, as its multiple and what is added; of steps with the options that a fault may need.
_BOTH, _RAGGED, _STATE = (("bidirectional", True),), (("ragged", True), ("mode", "inference")), (("has_state", True),)
_OF_STEPS: tuple[tuple[int, int, Options], ...] = (
    (2, 1, ()), (2, 0, _BOTH), (1, 1, _BOTH), (2, 1, _RAGGED), (1, 0, _BOTH),
    (2, -1, ()), (1, 1, ()), (1, -1, _RAGGED), (3, 1, ()),
)  # fmt: skip
_ORDERS = {
    "H": ((2, 0), (2, 1), (1, 0), (2, -1), (1, 1), (1, -1)),
    "B": ((2, 1), (1, 0), (2, 0), (1, 1), (2, -1), (1, -1)),
    "I": ((2, 1), (2, -1), (2, 0), (1, 1), (1, 0), (1, -1)),
}


class Target(NamedTuple):
    """A size to be tried. dim: T, B, H, I, or K for I + H. edge: where a sequence is to end, in a ragged case."""

    dim: str
    size: int
    edge: int = 0
    options: Options = ()


def own_targets(constants: Sequence[int], turn: int, hints: Mapping[int, str] = NO_HINTS) -> dict[str, list[Target]]:
    """Maps each dimension to the sizes c * times + more around each constant c, those that expose most faults first."""
    selected = _rotated(constants[:MAX_CONSTANTS], turn, keep=KEPT_CONSTANTS)
    found = {
        "T": [
            _step_target(c * times + more, c, options)
            for (times, more, options), c in _diagonal(_OF_STEPS, selected, _late("T", hints))
        ]
    }
    for dim, order in _ORDERS.items():
        options = (_STATE, ()) if dim == "B" else ((),)
        sizes = [c * times + more for (times, more), c in _diagonal(order, selected, _late(dim, hints))]
        found[dim] = [Target(dim, size, 0, options[n % len(options)]) for n, size in enumerate(sizes)]
    sums = [Target("K", times * c) for times, c in _diagonal((2, 1), selected, _late("HI", hints))]
    found["I"] = list(_alternating(found["I"], sums))
    return {dim: [one for one in targets if one.dim in "TB" or one.size <= MAX_WIDTH] for dim, targets in found.items()}


def _late(dims: str, hints: Mapping[int, str]) -> set[int]:
    """Constants that are about other dimensions."""
    return {value for value, hinted in hints.items() if not set(dims) & set(hinted)}


def _diagonal(variants: Sequence[Any], constants: Sequence[int], late: Container[int]) -> list[tuple[Any, int]]:
    """Each pair: first those of early variants and early constants that are not late."""
    ranks = [(2 * v + c + _LATENESS * (value in late), v, c) for v in range(len(variants)) for c, value in enumerate(constants)]
    return [(variants[v], constants[c]) for _, v, c in sorted(ranks)]


def power_targets(largest: int, turn: int) -> dict[str, list[Target]]:
    """Maps each dimension to powers of two and their neighbours: the largest plus 1, then the largest, the rest by turn."""
    powers = [2**k for k in range(SMALLEST_POWER, largest.bit_length())]
    neighbours = [power + more for power in reversed(powers[-2:]) for more in (1, 0, -1)]
    others = [power + more for power in reversed(powers[:-2]) for more in (1, 0, -1)]
    found = {}
    for number, dim in enumerate(FIELDS):
        sizes = [*neighbours[:2], *_rotated(neighbours[2:], turn + number), *_rotated(others, 2 * turn + number)]
        found[dim] = [Target(dim, size) for size in sizes]
    options = _rotated((_BOTH, (), _RAGGED, ()), turn)
    found["T"] = [_step_target(one.size, _power_below(one.size), options[n % 4]) for n, one in enumerate(found["T"])]
    return found


def _step_target(size: int, chunk: int, options: Options) -> Target:
    return Target("T", size, max(1, (size - 1) // chunk * chunk), options)


def _power_below(size: int) -> int:
    """Half of the power of two that a size is near."""
    return int(2 ** (size.bit_length() - 2)) if size > 3 else 1


def _rotated(values: Sequence[Any], turn: int, keep: int = 0) -> list[Any]:
    """The first `keep` where they are, the others begun at another each turn."""
    rest = values[keep:]
    start = turn % len(rest) if rest else 0
    return [*values[:keep], *rest[start:], *rest[:start]]


def _alternating(*lists: Iterable[Target]) -> Iterator[Target]:
    """One of each list in turn."""
    iterators = deque(map(iter, lists))
    while iterators:
        one = iterators.popleft()
        for value in one:
            yield value
            iterators.append(one)
            break
