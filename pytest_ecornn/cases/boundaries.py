"""Cases at the sizes where kernels break: around constants of their own sources, and around powers of two.

A tile, a chunk or a block's share ends there. Each case has one or a few such sizes as targets; its other sizes are small and
odd, and its options vary. What a case costs is estimated, so that all of them together stay cheap.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import DTYPES, MODES, Case, SupportedCases, cells

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
_SMALL = {"T": (3, 4, 5, 3), "B": (3, 5, 2, 7, 4), "H": (7, 5, 9, 6, 11, 13), "I": (6, 9, 5, 10, 3)}
# Whose size a case chooses first, in turn.
_TURNS = ("BHIT", "TIBH", "HTBI", "TBIH", "ITHB", "THIB")
# Where only multiples of a number run: the next one takes a size's place.
GRANULES = (4, 8, 16, 32, 64)
_MAX_SEEDS = 200  # tried for lengths that end on an edge


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


Nearest = Callable[[Case], Case | None]  # the case, or the nearest that an implementation runs

OWN_SHARE = 2 / 3  # of the cases, at most, that are spent on constants of the sources
MAX_INPUTS_A_UNIT = 24
MANY_LAYERS, MANY_LAYERS_OF = 4, 10  # of one case in ten
FEW_STEPS = 64  # up to which a case may have two layers, or two directions where nothing asks for them
# Of an estimate: a case; a step in one layer and direction, and a gate of it; a parameter; an element; 1e6 multiply-adds.
_CASE_MS, _STEP_MS, _GATE_MS, _PARAMETER_MS, _ELEMENT_MS, _MILLION_MS = 8.0, 0.35, 0.15, 5e-5, 3e-5, 0.8
_INFERENCE_SHARE, _RAGGED_FACTOR = 0.35, 1.5


@dataclass(frozen=True)
class Effort:
    """cases: at most; largest: power of two; ms: estimated, of all cases and of the dearest; extra_ms: of one more target.

    modes: of equal sizes.
    """

    cases: int
    largest: int
    ms: float
    case_ms: float
    extra_ms: float
    modes: tuple[str, ...]


QUICK = Effort(cases=12, largest=128, ms=1600, case_ms=500, extra_ms=90, modes=("training",))
DEFAULT = Effort(cases=40, largest=512, ms=5000, case_ms=1200, extra_ms=150, modes=MODES)


class Planned(NamedTuple):
    """A case that an implementation runs, with the targets that it has."""

    case: Case
    targets: list[Target]


def plan(
    domain: SupportedCases,
    base: Case,
    constants: Sequence[int],
    effort: Effort,
    seed: int,
    nearest: Nearest,
    hints: Mapping[int, str] = NO_HINTS,
) -> Iterator[Planned]:
    """Cases like `base`, those of the constants first; the others go round with the seed and the dtype.

    hints: the dimensions that a constant most likely is about, as `size_hints` reads them.
    """
    turn = seed + DTYPES.index(base.dtype)
    free = _free_dims(domain, base, nearest)
    if not free:
        return
    own, powers = own_targets(constants, turn, hints), power_targets(effort.largest, turn)
    covered, count, ms = set[tuple[str, int]](), 0, 0.0
    for queues, share in ((own, OWN_SHARE), (powers, 1.0)):
        wide = _wide(domain, base, effort, free, seed) if queues is powers else None
        if wide and (fitted := _fitted(wide, nearest)) is not None:
            count, ms = count + 1, ms + estimate(fitted.case)
            covered |= {target[:2] for target in fitted.targets}
            yield fitted
        left = {dim: deque(one for one in queues[dim] if one[:2] not in covered) for dim in free}
        packer = _Packer(domain, base, left, effort, f"{seed} {base}")
        while count < int(share * effort.cases) and (planned := packer.next(count, share * effort.ms - ms)) is not None:
            if (fitted := _fitted(planned, nearest)) is not None:
                count, ms = count + 1, ms + estimate(fitted.case)
                covered |= {target[:2] for target in fitted.targets}
                yield fitted


def _wide(domain: SupportedCases, base: Case, effort: Effort, free: str, seed: int) -> Planned | None:
    """A case of many sequences and many hidden units: more tiles of both than a GPU runs blocks at once.

    Every sequence has a state and all steps, or a fault in a few of them might not show.
    """
    size = effort.largest // 2 + 1
    targets = [Target(dim, size) for dim in "BH"]
    case = with_random_options(domain, base, random.Random(f"{seed} {base} wide"), 1)
    for target in targets:
        case = _with_size(replace(case, layers=1, bidirectional=False, has_state=True, ragged=False), target)
    return Planned(case, targets) if set("BH") <= set(free) and estimate(case) <= effort.case_ms else None


def estimate(case: Case) -> float:
    """Milliseconds, about, that a case takes with its references."""
    gates, layers = len(cells.get(case.cell).gates), case.layers * case.directions
    parameters = gates * case.hidden_size * (case.hidden_size + case.input_size) * layers
    elements = case.steps * case.batch * (case.hidden_size + case.input_size)
    step = (_STEP_MS + _GATE_MS * gates) * (_RAGGED_FACTOR if case.ragged else 1.0)
    work = step * case.steps * layers + _MILLION_MS * case.steps * case.batch * parameters / 1e6
    share = 1.0 if case.training else _INFERENCE_SHARE
    return _CASE_MS + _PARAMETER_MS * parameters + _ELEMENT_MS * elements + share * work


def _free_dims(domain: SupportedCases, base: Case, nearest: Nearest) -> str:
    """The dimensions whose sizes the implementation lets one choose; none where it runs no such case."""
    sizes = {"T": 5, "B": 3, "H": 7, "I": 9}
    fields: dict[str, Any] = {FIELDS[dim]: size for dim, size in sizes.items()}
    probe = nearest(replace(base, **fields, density=1.0 if domain.dense else 0.3))
    if probe is None:
        return ""
    return "TBH" if probe.projected else "TBHI"


class _Packer:
    """Gives each case the targets whose turn it is, as long as they are cheap together."""

    def __init__(self, domain: SupportedCases, base: Case, queues: dict[str, deque[Target]], effort: Effort, seed: str):
        self._domain, self._base, self._queues, self._effort, self._seed = domain, base, queues, effort, seed
        self._number = 0

    def next(self, number: int, ms: float) -> Planned | None:
        """The next case, of so many milliseconds at most; None where all targets that are so cheap have been tried."""
        while any(self._queues.values()):
            self._number += 1
            selected = random.Random(f"{self._seed} {self._number}")
            case, targets = with_random_options(self._domain, self._base, selected, number), list[Target]()
            for dim in (dim for dim in _TURNS[number % len(_TURNS)] if self._queues.get(dim)):
                target = self._queues[dim][0]
                tried = _with_target(case, target, self._domain)
                if targets and (estimate(tried) > estimate(case) + self._effort.extra_ms or _is_taken(target, targets)):
                    continue
                self._queues[dim].popleft()
                if (cheap := _cheaper(tried, min(ms, self._effort.case_ms), self._domain)) is not None:
                    case, targets = cheap, [*targets, target]
            if targets:
                return Planned(_ending_on_edges(case, targets), targets)
        return None


def with_random_options(domain: SupportedCases, base: Case, chosen: random.Random, number: int) -> Case:
    """Returns a case of small and odd sizes and random options, inside the domain; one case in six is inference."""
    is_training = number % 6 != 4 and "training" in domain.modes
    is_deep = number % MANY_LAYERS_OF == 0 and domain.max_layers > 1
    sizes: dict[str, Any] = {FIELDS[dim]: chosen.choice(small) for dim, small in _SMALL.items()}
    is_projected = bool(domain.projected) and chosen.random() < 0.1
    sizes["input_size"] = sizes["hidden_size"] if is_projected else sizes["input_size"]
    is_sparse = not domain.dense and cells.get(base.cell).recurrent
    return replace(
        base,
        **sizes,
        layers=MANY_LAYERS if is_deep else chosen.choice([n for n in (1, 1, 1, 1, 2) if n <= domain.max_layers]),
        bidirectional=bool(domain.bidirectional) and chosen.random() < 0.4,
        ragged=bool(domain.ragged) and chosen.random() < 0.25,
        resets=bool(domain.resets) and chosen.random() < 0.15,
        bias=chosen.random() < 0.9,
        batch_first=chosen.random() < 0.5,
        projected=is_projected,
        has_state=chosen.random() < 0.85,
        density=0.3 if is_sparse else 1.0,
        mode="training" if is_training else domain.modes[0],
        layout=chosen.choice(domain.layouts),
        seed=chosen.randrange(2**16),
    )


def _cheaper(case: Case, ms: float, domain: SupportedCases) -> Case | None:
    """The case, or a cheaper form of it; None where each takes longer."""
    forms = (
        case,
        replace(case, layers=1),
        replace(case, layers=1, bidirectional=False),
        replace(case, layers=1, bidirectional=False, mode=domain.modes[0]),
    )
    return next((form for form in forms if estimate(form) <= ms), None)


def _conditioned(case: Case) -> Case:
    """The case with as many hidden units as keep its gates from saturating: weights are as large as they are few."""
    if case.projected or case.hidden_size * MAX_INPUTS_A_UNIT >= case.input_size:
        return case
    return replace(case, hidden_size=-(-case.input_size // MAX_INPUTS_A_UNIT))


def _is_taken(target: Target, targets: Iterable[Target]) -> bool:
    """Whether one is a sum, and another one of its terms."""
    return {"K", "H"} <= {target.dim, *(one.dim for one in targets)}


def _with_target(case: Case, target: Target, domain: SupportedCases) -> Case:
    """The case of that size, with the options that the target is best seen with."""
    case = _with_size(case, target)
    if target.dim == "T" and target.size > FEW_STEPS:
        case = replace(case, layers=1, bidirectional=False)
    if target.dim == "T":
        case = replace(case, ragged=False)
    return replace(case, **{name: value for name, value in target.options if _allows(domain, name, value)})


def _allows(domain: SupportedCases, name: str, value: Any) -> bool:
    return value in domain.modes if name == "mode" else bool(getattr(domain, name, True))


def _with_size(case: Case, target: Target) -> Case:
    if target.dim == "K":
        hidden = max(min(case.hidden_size, target.size - 1), -(-target.size // (MAX_INPUTS_A_UNIT + 1)))
        return replace(case, projected=False, hidden_size=hidden, input_size=target.size - hidden)
    if target.dim == "H" and case.projected:
        return replace(case, hidden_size=target.size, input_size=target.size)
    size: dict[str, Any] = {FIELDS[target.dim]: target.size}
    return replace(case, projected=case.projected and target.dim != "I", **size)


def _ending_on_edges(case: Case, targets: Iterable[Target]) -> Case:
    """A ragged case with a seed by which a sequence ends where a chunk does."""
    edge = next((target.edge for target in targets if target.edge), 0)
    if not case.ragged or not edge:
        return case
    seeds = (replace(case, seed=case.seed + n) for n in range(_MAX_SEEDS))
    return next((one for one in seeds if edge in contents.sequence_lengths(one)), case)  # type: ignore[operator]


def _fitted(planned: Planned, nearest: Nearest) -> Planned | None:
    """The case as the implementation runs it; with multiples of a number where it refuses a target. None where all are lost."""
    best: Planned | None = None
    for granule in (1, *GRANULES):
        case, targets = planned.case, [_rounded(target, granule) for target in planned.targets]
        for target in targets:
            case = _with_size(case, target) if granule > 1 else case
        if (fitted := nearest(_conditioned(case))) is None:
            continue
        kept = [target for target in targets if _size(fitted, target.dim) == target.size]
        if len(kept) > (len(best.targets) if best else 0):
            best = Planned(fitted, kept)
        if len(kept) == len(targets):
            break
    return best


def _rounded(target: Target, granule: int) -> Target:
    return target._replace(size=-(-target.size // granule) * granule) if target.dim in ("H", "I", "B") else target


def _size(case: Case, dim: str) -> int:
    if dim == "K":
        return 0 if case.projected else case.hidden_size + case.input_size
    return int(getattr(case, FIELDS[dim]))


def note(planned: Planned, covered: dict[str, list[int]]) -> None:
    """Adds a case's targets to those that were covered."""
    for target in planned.targets:
        covered[target.dim] = sorted({*covered.get(target.dim, ()), target.size})
