"""Hypothesis strategies for cases: awkward sizes are likely, every option and kind of contents occurs.

A case is drawn, never an array; values follow from the case's seed, so that the printed case reproduces everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from random import Random
from typing import Any

from hypothesis import strategies as st

from pytest_ecornn.cases import non_finite
from pytest_ecornn.contract import EVERY_CASE, MODES, Case, SupportedCases, cells

# One under, at and over the widths of vectors, tiles and chunks; primes; one.
_EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97)
# Steps times layers times directions of a drawn case, at most, unless more are asked for: then of one case in eight.
MAX_STEPS = 48


@dataclass(frozen=True)
class SizeLimits:
    """Limits on drawn cases.

    steps: maximum of T times layers times directions. smallest: minimum of T and B. The others are maxima.
    """

    steps: int = MAX_STEPS
    min_size: int = 1
    batch: int = 17
    hidden: int = 97
    inputs: int = 65


def cases(
    domain: SupportedCases, cell: str, dtype: str, device: str = "cpu", sizes: SizeLimits = SizeLimits()
) -> st.SearchStrategy[Case]:
    """Cases of one cell, dtype and device inside `domain`, of such sizes."""
    return _cases(domain, cell, dtype, device, sizes)


@st.composite
def _cases(draw: st.DrawFn, domain: SupportedCases, cell: str, dtype: str, device: str, sizes: SizeLimits) -> Case:
    def either(allowed: object) -> bool:
        return bool(allowed) and draw(st.booleans())

    layers = draw(st.sampled_from([n for n in (1, 1, 1, 2, 3) if n <= domain.max_layers]))
    bidirectional = either(domain.bidirectional)
    is_long = sizes.steps > MAX_STEPS and draw(st.integers(0, 7)) == 7
    most = (sizes.steps if is_long else min(sizes.steps, MAX_STEPS)) // (layers * (2 if bidirectional else 1))
    most = max(sizes.min_size, most)
    has_tf32 = "tf32" in domain.precisions and dtype == "float32" and device.startswith("cuda")
    mode = draw(st.sampled_from([*domain.modes, domain.modes[-1], domain.modes[-1]]))
    is_projected = bool(domain.projected) and draw(st.integers(0, 3)) == 3
    hidden = draw(_sizes(1, sizes.hidden))
    sparse = domain.sparse and cells.get(cell).recurrent and (not domain.dense or draw(st.integers(0, 3)) == 3)
    density = draw(st.sampled_from([0.3, 0.1, 0.7])) if sparse else 1.0
    with_state = draw(st.integers(0, 3)) < 3
    return Case(
        cell=cell,
        steps=draw(st.integers(most // 2, most) if is_long else _sizes(sizes.min_size, most)),
        batch=draw(_sizes(sizes.min_size, sizes.batch)),
        hidden_size=hidden,
        input_size=hidden if is_projected else draw(_sizes(1, sizes.inputs)),
        layers=layers,
        bidirectional=bidirectional,
        bias=draw(st.integers(0, 7)) < 7,
        dtype=dtype,
        precision="tf32" if either(has_tf32) else "ieee",
        device=device,
        batch_first=draw(st.booleans()),
        ragged=either(domain.ragged),
        resets=bool(domain.resets) and draw(st.integers(0, 3)) == 3,
        has_state=with_state,
        projected=is_projected,
        density=density,
        mode=mode,
        contents=draw(_contents(mode, with_state, density, device)),
        layout=draw(st.sampled_from(domain.layouts)),
        seed=draw(st.integers(0, 2**16)),
    )


# What chance seldom draws and a kernel may be wrong on alone: over 64 steps, of a state that rounding would wear down; over 32
# sequences and 128 channels; pre-activations at which exp overflows and underflows; one NaN; one infinity; each again
# before a reset; what options do to gradients; a few times one channel and one step, where nothing averages a rounding out;
# sums that grow by little, steps of exact operands whose products cancel, and numbers near zero.
_OPTIONS: dict[str, Any] = {"ragged": True, "has_state": True, "mode": "training"}
_CANCELLING: dict[str, Any] = {"steps": 1, "batch": 9, "contents": "cancelling"}
_PRUNED: dict[str, Any] = {**_OPTIONS, "density": 0.3, "contents": "zeros"}
_CORNERS: tuple[dict[str, Any], ...] = (
    {"steps": 67, "batch": 2, "hidden_size": 8, "has_state": True, "mode": "training", "contents": "near_one"},
    {"steps": 3, "batch": 33, "hidden_size": 129, "input_size": 7, "mode": "training"},
    {"steps": 3, "batch": 4, "hidden_size": 33, "projected": True, "contents": "large"},
    {"steps": 41, "batch": 8, "hidden_size": 48, "has_state": True, "mode": "training", "contents": "drifting"},
    {**_CANCELLING, "hidden_size": 129, "input_size": 65, "has_state": True, "mode": "training"},
    {**_CANCELLING, "hidden_size": 65, "input_size": 129},
    {"steps": 6, "batch": 4, "hidden_size": 9, "contents": "nan"},
    {"steps": 6, "batch": 4, "hidden_size": 9, "has_state": True, "contents": "infinite"},
    {"steps": 12, "batch": 5, "hidden_size": 8, "bidirectional": True, "has_state": True, "mode": "training", "resets": True},
    {"steps": 6, "batch": 4, "hidden_size": 9, "contents": "nan", "resets": True, "seed": 1},
    {"steps": 6, "batch": 4, "hidden_size": 9, "has_state": True, "contents": "infinite", "resets": True},
    {**_OPTIONS, "steps": 7, "batch": 5, "hidden_size": 17, "layers": 2, "bidirectional": True, "layout": "strided", "seed": 2},
    {**_PRUNED, "steps": 6, "batch": 4, "hidden_size": 18, "batch_first": True, "layout": "offset", "seed": 1},
    {"steps": 5, "batch": 3, "hidden_size": 17, "has_state": True, "mode": "training", "contents": "small"},
    *({"steps": 1, "batch": 3, "hidden_size": 1, "has_state": True, "mode": "training", "seed": seed} for seed in range(6)),
)


# Each other value that is not finite, in each place.
_ODD_CORNER: dict[str, Any] = {"steps": 6, "batch": 4, "hidden_size": 9, "has_state": True}
# For properties.
_PROPERTY_CORNERS: tuple[dict[str, Any], ...] = (
    {**_OPTIONS, "steps": 5, "batch": 3, "hidden_size": 9, "input_size": 6, "layout": "strided", "seed": 3},
)


def edge_cases(domain: SupportedCases, cell: str, dtype: str, device: str = "cpu") -> list[Case]:
    """Returns a few fixed cases that are inside `domain`, to test beside the drawn ones."""
    odd = [{**_ODD_CORNER, "contents": kind} for kind in _drawn_not_finite(True, device) if kind not in ("nan", "infinite")]
    negative = [{**_ODD_CORNER, "contents": "negative_state", "mode": mode} for mode in MODES if cells.get(cell).positive]
    return _inside(domain, cell, dtype, device, (*_CORNERS, *odd, *negative))


def property_corners(domain: SupportedCases, cell: str, dtype: str, device: str = "cpu") -> list[Case]:
    """Returns fixed cases like `edge_cases`, of the sizes on which properties are checked."""
    return _inside(domain, cell, dtype, device, _PROPERTY_CORNERS)


# For implementations whose shapes are costly: each option in one or two, by mode.
_MANY_OPTIONS: dict[str, Any] = {"layers": 2, "bidirectional": True, "ragged": True, "resets": True, "batch_first": True}
_PLAIN: dict[str, Any] = {"steps": 6, "batch": 3, "hidden_size": 9, "input_size": 5}
_FEW_SHAPES: dict[str, tuple[dict[str, Any], ...]] = {
    "inference": (
        _PLAIN,
        {**_PLAIN, **_MANY_OPTIONS, "has_state": True},
        {"steps": 1, "batch": 1, "hidden_size": 8, "bias": False, "has_state": True},
    ),
    "training": (
        {**_PLAIN, "steps": 24, "has_state": True},
        {**_PLAIN, **_MANY_OPTIONS, "has_state": True},
        {**_PLAIN, "input_size": 9, "projected": True, "bias": False},
        {**_PLAIN, "density": 0.3, "has_state": True},
    ),
}


def in_few_shapes(case: Case, number: int, min_size: int, takes_resets: bool) -> Case:
    """The case's contents, layout and seed in one of a few shapes of its mode, which take turns by `number`."""
    shapes = [shape for shape in _FEW_SHAPES[case.mode] if min(shape["steps"], shape["batch"]) >= min_size]
    kept = ("cell", "dtype", "precision", "device", "mode", "contents", "layout", "seed")
    shaped = Case(**{name: getattr(case, name) for name in kept}, **shapes[number % len(shapes)])
    shaped = replace(shaped, resets=shaped.resets and takes_resets)
    return shaped if cells.get(case.cell).recurrent else replace(shaped, density=1.0)


def _inside(domain: SupportedCases, cell: str, dtype: str, device: str, chosen: Iterable[dict[str, Any]]) -> list[Case]:
    tried = (Case(cell=cell, dtype=dtype, device=device, **fields) for fields in chosen)
    if not cells.get(cell).recurrent:
        tried = (replace(case, density=1.0) for case in tried)
    if not domain.dense:
        tried = (replace(case, density=0.3) for case in tried if case.contents not in _NOT_FINITE)
    return [case for case in tried if domain.contains(case)]


# 0 times these is NaN: a pruned weight is not multiplied by everyone.
_NOT_FINITE = tuple(non_finite.kinds())


def _sizes(smallest: int, largest: int) -> st.SearchStrategy[int]:
    edges = [n for n in _EDGES if smallest <= n <= largest]
    return st.one_of(st.sampled_from(edges), st.integers(smallest, largest))


def _drawn_not_finite(has_state: bool, device: str) -> list[str]:
    """Kinds of non-finite contents to draw. On a GPU float32 operands may be split in parts of fewer bits."""
    return non_finite.kinds(has_state, is_split=device.startswith("cuda"))


def _contents(mode: str, has_state: bool, density: float, device: str) -> st.SearchStrategy[str]:
    """Draws a kind of contents. Half are plain; NaN and infinity only where no gradient mixes them into every element."""
    special = ["saturated", "near_one", "large", "denormal", "zeros", "drifting", "cancelling", "small"]
    if mode == "inference" and density == 1:
        special += _drawn_not_finite(has_state, device)
    return st.one_of(st.just("normal"), st.sampled_from(special))


_SIMPLIFICATIONS: tuple[tuple[str, Any], ...] = (
    ("layout", "contiguous"),
    ("precision", "ieee"),
    ("contents", "normal"),
    ("density", 1.0),
    ("ragged", False),
    ("resets", False),
    ("bidirectional", False),
    ("layers", 1),
    ("has_state", False),
    ("batch_first", False),
    ("bias", True),
    ("steps", 16),
    ("steps", 4),
    ("steps", 1),
    ("mode", "inference"),  # or, where nothing is supported then, "training"
    ("input_size", 64),
    ("hidden_size", 64),
    ("batch", 8),
    ("steps", 16),
    ("bias", False),
    ("density", 0.3),
)


Refusal = Callable[[Case], str | None]


def nearest_supported(
    case: Case,
    unsupported: Refusal,
    supported: SupportedCases = EVERY_CASE,
    hints: Callable[[], Mapping[int, str]] = dict,
) -> Case | None:
    """`case` with as few options changed as make `unsupported` answer None; None where nothing does.

    Options are simplified first. Where that does not help, cases of all combinations of them are tried. supported: what the
    implementation declares; each case is changed to what all of its cases are. hints: as `size_hints.size_hints` gives them.
    """
    if not supported.has_kind(case):
        return None
    case = supported.nearest(case)
    if unsupported(case) is None:
        return case
    for mode, start in product(MODES, (case, supported.nearest(_swap_input_kind(case)))):
        simple = start
        for count, (name, value) in enumerate(_SIMPLIFICATIONS, 1):
            simple = supported.nearest(_changed(simple, name, mode if name == "mode" else value))
            if unsupported(simple) is None:
                return _reapply_options(simple, start, ["mode", *(name for name, _ in _SIMPLIFICATIONS[:count])], unsupported)
    for varied in map(supported.nearest, _varied(case.cell, case.dtype, case.device, _tried_sizes(hints()))):
        if unsupported(varied) is None:
            swapped = _swap_input_kind(varied)
            if varied.projected != case.projected and unsupported(swapped) is None:
                varied = swapped
            return _reapply_options(varied, case, _REAPPLIED, unsupported)
    return None


# Of all combinations of these some are tried, in an order of chance.
_SWITCHES: dict[str, tuple[Any, Any]] = {
    "projected": (False, True),
    "mode": MODES,
    "bidirectional": (False, True),
    "layers": (1, 2),
    "has_state": (False, True),
    "ragged": (False, True),
    "batch_first": (False, True),
    "bias": (True, False),
    "resets": (False, True),
    "density": (1.0, 0.3),
}
_TRIED, _TRIED_A_SIZE, _HINTED = 1024, 64, 64
_REAPPLIED = (*(name for name in _SWITCHES if name != "projected"), "precision", "layout", "input_size", "hidden_size",
              "batch", "steps", "contents", "seed")  # fmt: skip
# T, B, H, I: few and odd, what suits most tiles, and more.
_SIZES = ((4, 2, 8, 8), (16, 32, 256, 256), (5, 3, 7, 6), (64, 64, 512, 512))


def _tried_sizes(hints: Mapping[int, str]) -> tuple[tuple[int, ...], ...]:
    """T, B, H and I of the cases that are tried: usual ones, and constants of the sources by the dimension they are about."""
    constants = [sorted(size for size, letters in hints.items() if dim in letters and size > 0) for dim in "TBHI"]
    if not any(constants):
        return _SIZES
    hinted = list(product(*(sizes or [usual] for sizes, usual in zip(constants, _SIZES[0], strict=True))))
    return (*_SIZES, *Random(0).sample(hinted, min(_HINTED, len(hinted))))


@cache
def _varied(cell: str, dtype: str, device: str, sizes: tuple[tuple[int, ...], ...]) -> tuple[Case, ...]:
    """Cases of one kind that have combinations of options, each at one of the sizes."""
    random, switches = Random(0), {**_SWITCHES}
    if not cells.get(cell).recurrent:
        switches["density"] = (1.0, 1.0)
    combinations = list(dict.fromkeys(product(*switches.values())))
    random.shuffle(combinations)
    found = []
    for number in range(max(_TRIED, _TRIED_A_SIZE * len(sizes))):
        options = dict(zip(switches, combinations[number % len(combinations)], strict=True))
        steps, batch, hidden, inputs = sizes[(number + number // len(combinations)) % len(sizes)]
        options["layers"] = random.choice((2, 2, 3, 4)) if options["layers"] > 1 else 1
        found.append(
            Case(
                cell=cell, dtype=dtype, device=device, steps=steps, batch=batch, hidden_size=hidden,
                input_size=hidden if options["projected"] else inputs, **options,
            )
        )  # fmt: skip
    return tuple(found)


def _swap_input_kind(case: Case) -> Case:
    """The case with gate pre-activations in place of inputs, or the other way round."""
    return replace(case, projected=not case.projected, input_size=case.hidden_size)


def _changed(case: Case, name: str, value: Any) -> Case:
    if case.projected and name in ("hidden_size", "input_size"):
        return replace(case, hidden_size=value, input_size=value)
    changed = replace(case, **{name: value})
    is_finite_only = changed.density < 1 or changed.training
    return replace(changed, contents="normal") if is_finite_only and changed.contents in _NOT_FINITE else changed


def _reapply_options(simple: Case, case: Case, names: Iterable[str], unsupported: Refusal) -> Case:
    """Gives back each simplified option that turns out not to have been the obstacle, in the order of `names`."""
    for name in names:
        fuller = _changed(simple, name, getattr(case, name))
        if unsupported(fuller) is None:
            simple = fuller
    return simple
