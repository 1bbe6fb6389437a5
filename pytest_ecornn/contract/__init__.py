"""Interface between the harness and an implementation: Case, Weights, Cost, Implementation.

Importing it does not import torch, so that thousands of cases are collected before any tensor exists.
Letters, everywhere: T time steps, B batch, I input, H hidden, G gates, L layers, D directions.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import nn

Precision: TypeAlias = Literal["storage", "float32"]
WeightRounding: TypeAlias = Literal["none", "bfloat16", "int8"]
State: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...] | None"
Layer: TypeAlias = "Callable[..., tuple[torch.Tensor, State]]"  # called as `Implementation.build` says

DTYPES = ("float32", "float64", "bfloat16", "float16")
PRECISIONS = ("ieee", "tf32")
MODES = ("inference", "training")
CONTENTS = (
    *("normal", "saturated", "near_one", "large", "denormal", "zeros", "drifting", "cancelling", "small"),
    *("nan", "nan_state", "nan_weight", "infinite", "infinite_x", "infinite_weight"),
    *("negative_infinite", "negative_infinite_x", "negative_infinite_weight", "negative_state"),
)
ODD_WEIGHTS = ("nan_weight", "infinite_weight", "negative_infinite_weight")  # contents that int8 has no weights for
NEGATIVE_STATES = ("negative_state", "negative_infinite")  # contents whose initial states are negative in any cell
DEVICES = ("cpu", "cuda")
LAYOUTS = ("contiguous", "strided", "offset", "transposed", "feature_major")
MAX_ACTIVATION_ERROR = 2.0**-12  # that may be declared
WEIGHT_ROUNDINGS = ("none", "bfloat16", "int8")
DEVICE = re.compile(r"cpu|cuda(:\d+)?")


class Unsupported(Exception):
    """Raised by `Implementation.build` with the reason why the case will not run; reported as a skip, as pytest.skip is."""


def _skip_exception() -> type[BaseException]:
    """What pytest.skip raises. Modules of torch's users import the contract, and for them pytest stays away."""
    import pytest

    return pytest.skip.Exception


def skip_reason(skip: BaseException) -> str:
    """The reason that pytest.skip was called with, as the reason of a refusal."""
    return str(skip) or "pytest.skip was called without a reason"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem: a cell, its sizes and its options. `str(case)` is the test id, and `Case.parse` reads it back.

    `input_size` is `hidden_size` unless given. With `projected`, x holds gate pre-activations instead of inputs.
    `weights` is "" for random ones, or the `state_dict.StateDict.name` of those that a file gave.
    Raises ValueError for a value outside its range; what a cell does not have is checked by `cells.check`.
    """

    cell: str
    steps: int
    batch: int
    hidden_size: int
    input_size: int = 0
    layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    dtype: str = "float32"
    precision: str = "ieee"
    device: str = "cpu"
    batch_first: bool = False
    ragged: bool = False
    resets: bool = False
    has_state: bool = False
    projected: bool = False
    density: float = 1.0
    mode: str = "inference"
    contents: str = "normal"
    layout: str = "contiguous"
    weights: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.input_size == 0:
            object.__setattr__(self, "input_size", self.hidden_size)
        for name in ("steps", "batch", "hidden_size", "input_size", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not DEVICE.fullmatch(self.device):
            raise ValueError(f"device must be cpu, cuda or cuda:N, got {self.device!r}")
        if not 0.0 < self.density <= 1.0 or self.density != round(self.density, 4):
            raise ValueError(f"density must be over 0 and at most 1, in steps of 0.0001, got {self.density}")
        if not re.fullmatch(r"([0-9a-f]{8})?", self.weights):
            raise ValueError(f"weights must be 8 hexadecimal digits, or none, got {self.weights!r}")
        if self.projected and self.input_size != self.hidden_size:
            raise ValueError("a projected case has no input size: x holds the gate pre-activations")

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def training(self) -> bool:
        return self.mode == "training"

    @property
    def has_negative_state(self) -> bool:
        """Whether an initial state is negative in a cell whose own states are not."""
        from pytest_ecornn.contract import cells

        return self.has_state and self.contents in NEGATIVE_STATES and cells.get(self.cell).positive

    def __str__(self) -> str:
        return "-".join([self.cell, *(token for field, token in _tokens(self) if field)])

    @classmethod
    def parse(cls, text: str, **known: Any) -> Case:
        """The case that `str` wrote, which lacks fields that are `known`. Raises ValueError naming the token that is none."""
        cell, *tokens = text.strip().split("-")
        values: dict[str, Any] = {"cell": cell}
        for token in tokens:
            name, value = _read_token(token, text)
            if name in values:
                raise ValueError(f"{text!r} gives {name} twice, the second time by {token!r}")
            values[name] = value
        values = {**known, **values}
        missing = [letter for letter, name in _SIZES.items() if letter in "TBH" and name not in values]
        if missing:
            raise ValueError(f"{text!r} lacks {', '.join(missing)}: expected CELL-T#-B#-H#[-option...]")
        return cls(**values)


_CHOICES = {"dtype": DTYPES, "precision": PRECISIONS, "mode": MODES, "contents": CONTENTS, "layout": LAYOUTS}
_SIZES = {"T": "steps", "B": "batch", "I": "input_size", "H": "hidden_size", "L": "layers"}
_FLAGS = {
    "bidirectional": ("bidirectional", True),
    "nobias": ("bias", False),
    "batchfirst": ("batch_first", True),
    "ragged": ("ragged", True),
    "resets": ("resets", True),
    "state": ("has_state", True),
    "projected": ("projected", True),
}
_DEFAULTS = {field.name: field.default for field in fields(Case)}


def _tokens(case: Case) -> Iterator[tuple[bool, str]]:
    """Each token of the case's name, with whether it is written: defaults are left out."""
    for letter, name in _SIZES.items():
        default = case.hidden_size if name == "input_size" else _DEFAULTS[name]
        yield getattr(case, name) != default, f"{letter}{getattr(case, name)}"
    yield True, case.dtype
    yield case.precision != "ieee", case.precision
    yield case.device != "cpu", case.device
    for token, (name, value) in _FLAGS.items():
        yield getattr(case, name) == value, token
    yield case.density != 1.0, "density" + f"{case.density:.4f}".rstrip("0")
    yield case.weights != "", f"weights{case.weights}"
    for name in ("mode", "contents", "layout"):
        yield getattr(case, name) != _DEFAULTS[name], getattr(case, name)
    yield case.seed != 0, f"seed{case.seed}"


def _read_token(token: str, text: str) -> tuple[str, Any]:
    if token in _FLAGS:
        return _FLAGS[token]
    for name, allowed in _CHOICES.items():
        if token in allowed:
            return name, token
    if DEVICE.fullmatch(token):
        return "device", token
    if match := re.fullmatch(r"([TBIHL])(\d+)", token):
        return _SIZES[match[1]], int(match[2])
    if match := re.fullmatch(r"seed(\d+)", token):
        return "seed", int(match[1])
    if match := re.fullmatch(r"weights([0-9a-f]{8})", token):
        return "weights", match[1]
    if match := re.fullmatch(r"density(\d*\.?\d+)", token):
        return "density", float(match[1])
    choices = [*_FLAGS, *(value for allowed in _CHOICES.values() for value in allowed)]
    raise ValueError(
        f"cannot read {token!r} in case {text!r}: expected T#, B#, I#, H#, L#, seed#, density#, weights#, cpu, cuda[:#] "
        "or one of " + ", ".join(choices)
    )


class Weights(Mapping[str, "nn.Parameter"]):
    """The parameters of a case: torch.nn's names, shapes and gate order (`weight_ih_l0` [G*H, I], ...).

    The values are leaves that a module may adopt, so gradients reach them and updates in place are seen.
    `masks` holds, for each sparse parameter, its fixed pattern: bool, True where an element may differ from 0.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], masks: Mapping[str, torch.Tensor] | None = None):
        self._parameters = dict(parameters)
        self.masks = dict(masks or {})

    def __getitem__(self, name: str) -> nn.Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def masked(self, name: str) -> torch.Tensor:
        """The parameter with its pattern applied, differentiable: the gradient is exactly 0 off the pattern, whatever comes."""
        parameter: torch.Tensor = self[name]
        return parameter.where(self.masks[name], 0.0) if name in self.masks else parameter


@dataclass(frozen=True)
class Cost:
    """Memory traffic and work of one call: `bytes` read plus written, floating-point `operations` (a multiply-add is 2)."""

    bytes: int
    operations: int


Runs: TypeAlias = Literal[True, False, "only"]


@dataclass(frozen=True)
class SupportedCases:
    """Cases that an implementation runs, as it declares, or that an own one must run.

    cells: () for all. precisions: of float32 products on a GPU. bidirectional to projected: words of a case's name; False
    refuses cases that have it, "only" those that have not. sparse, dense: weights with a pattern, and without one.
    negative_state: as `Case.has_negative_state`. Raises ValueError for values that no case has.
    """

    cells: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    precisions: tuple[str, ...] = PRECISIONS
    modes: tuple[str, ...] = MODES
    layouts: tuple[str, ...] = LAYOUTS
    devices: tuple[str, ...] = DEVICES
    max_layers: int = 2**31
    bidirectional: Runs = True
    nobias: Runs = True
    batchfirst: Runs = True
    ragged: Runs = True
    resets: Runs = False
    state: Runs = True
    projected: Runs = True
    sparse: bool = True
    dense: bool = True
    negative_state: bool = True

    def __post_init__(self) -> None:
        for name, allowed in {"cells": (), **_DECLARED}.items():
            values: object = getattr(self, name)
            if not isinstance(values, tuple) or (allowed and not set(values) <= set(allowed)):
                raise ValueError(f"{name}: expected a tuple of {', '.join(allowed) or 'names'}, got {values!r}")
        for name in _FLAGS:
            if getattr(self, name) not in (True, False, "only"):
                raise ValueError(f"{name}: expected True, False or 'only', got {getattr(self, name)!r}")

    def refusal(self, case: Case) -> str | None:
        """The reason why the case is none of these, or None."""
        device = case.device.partition(":")[0]
        kinds = (case.cell, case.dtype, case.precision, case.mode, case.layout, device)
        for name, kind in zip(("cells", *_DECLARED), kinds, strict=True):
            if (allowed := getattr(self, name)) and kind not in allowed:
                return f"runs {', '.join(allowed)}, not {kind}"
        if case.layers > self.max_layers:
            return f"runs {self.max_layers} layers at most"
        for name, (field, value) in _FLAGS.items():
            runs, has_word = getattr(self, name), getattr(case, field) == value
            if has_word and not runs:
                return f"runs no {name} cases"
            if runs == "only" and not has_word:
                return f"runs {name} cases only"
        if not (self.sparse if case.density < 1 else self.dense):
            return f"runs no {'sparse' if case.density < 1 else 'dense'} cases"
        if not self.negative_state and case.has_negative_state:
            return "runs no negative initial states"
        return None

    def contains(self, case: Case) -> bool:
        return self.refusal(case) is None

    def has_kind(self, case: Case) -> bool:
        """Whether the case's cell, dtype and device are inside, whatever its options."""
        has_cell = not self.cells or case.cell in self.cells
        return has_cell and case.dtype in self.dtypes and case.device.partition(":")[0] in self.devices

    def nearest(self, case: Case) -> Case:
        """The case with the words that all cases here have."""
        changes: dict[str, Any] = dict(field for name, field in _FLAGS.items() if getattr(self, name) == "only")
        size: dict[str, Any] = {"input_size": case.hidden_size} if "projected" in changes else {}
        return replace(case, **changes, **size) if changes else case


_DECLARED = {"dtypes": DTYPES, "precisions": PRECISIONS, "modes": MODES, "layouts": LAYOUTS, "devices": DEVICES}
EVERY_CASE = SupportedCases()


class Declared(NamedTuple):
    """Rounding that an `Implementation` declares; the loop that judges it rounds at the same places."""

    carry: Precision
    gate_gradients: Precision = "float32"
    saved_gates: Precision = "float32"
    products: Precision = "float32"
    weight_gradients: Precision = "float32"
    activation_error: float = 0.0
    weight_rounding: WeightRounding = "none"


class Implementation(ABC):
    """A way to run a recurrent layer. One subclass to a module; its public name is the module's file stem.

    `carry` is the precision in which state crosses from step to step: "storage" (the case's dtype) or "float32" (float64 for
    float64); `gate_gradients` that in which the gradients of gate pre-activations lie between the backward steps and the
    products made of them; `saved_gates` that in which the gates wait for the backward pass; `products` that in which W_ih x
    and W_hh h, or the parts of a long sum, wait to be added; `weight_gradients` that in which the gradient of W_hh is summed:
    step by step where sequences have lengths, else in two halves. `activation_error` is how far off sigmoid and tanh may be,
    relative to them, where they are not as exact as float32 has them. `weight_rounding` is how W_ih and W_hh are rounded, as
    `weight_rounding.round_weights` does: "bfloat16", or "int8" with a scale for each row. The reference then has these weights
    too, only inference runs, and an own one runs only where it is named. `deterministic` claims that calls agree bit for bit.
    `supported` lists the cases that run, which `unsupported` may narrow, by size for instance; one of them must be there.
    `takes_resets` says that layers take a mask of resets; `times_in_build` that `build` times something, alone on the machine;
    `costly_shapes` that each new shape is compiled for seconds: drawn cases then have few shapes, and no boundary sizes;
    `runs_unnamed`, where False, that an own one runs only where it is named.
    `delegate` names the implementation that one which chooses runs, "" of any other; like the declarations it may change in
    `build`.
    """

    carry: Precision
    gate_gradients: Precision = "float32"
    saved_gates: Precision = "float32"
    products: Precision = "float32"
    weight_gradients: Precision = "float32"
    activation_error: float = 0.0
    weight_rounding: WeightRounding = "none"
    deterministic: bool
    supported: SupportedCases = EVERY_CASE
    takes_resets: bool = False
    times_in_build: bool = False
    costly_shapes: bool = False
    runs_unnamed: bool = True
    delegate: str = ""

    @property
    def declared(self) -> Declared:
        return Declared(*(getattr(self, name) for name in Declared._fields))

    def refusal(self, case: Case) -> str | None:
        """The reason why the harness will not run `case`, or None: asked by it wherever it may run one."""
        import torch

        if case.resets and not self.takes_resets:
            return "takes no resets"
        if self.weight_rounding != "none" and case.training:
            return f"runs inference alone: its weights are rounded to {self.weight_rounding}"
        if self.weight_rounding == "int8" and case.contents in ODD_WEIGHTS:
            return "int8 has no NaN and no infinity"
        if reason := self.supported.refusal(replace(case, resets=False) if case.resets else case):
            return reason
        try:
            return self.unsupported(case, torch.device(case.device))
        except _skip_exception() as skip:
            return skip_reason(skip)

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        """The reason why this will not run `case` on `device`, beyond what `supported` refuses, or None.

        Asked on every case before the first row runs, in one process for all, and again when a row is set up.
        """
        return None

    @abstractmethod
    def build(self, case: Case, weights: Weights) -> Layer:
        """A callable `layer(x, state, lengths) -> (output, final_state)`, given `resets` as well where the case has them.

        x: [T, B, I] ([B, T, I] with `batch_first`; with `projected`, D*G*H in place of I). state: None, or [L*D, B, H]
        for each of the cell's states, a tuple where there are several. lengths: None, or int64 [B] on the CPU, each
        from 1 to T; the longest may be less than T, and the output has T steps all the same. output: like x, with D*H
        last. Results are fresh tensors that share no memory with each other, and that later calls never touch.
        `case.layout` says how x, states and lengths lie in memory.

        resets: bool [T, B] ([B, T] with `batch_first`), contiguous, on the case's device. Where it is true the step starts, in
        every layer, from zeros in place of all the cell's states: nothing passes, neither a NaN or an infinity nor a gradient,
        which is exactly 0 for an initial state whose first step is reset. The reverse direction has the same mask: there too
        the step that is marked starts from zeros, and what comes before it in that order is what stands after it. After a
        sequence's end a reset has no effect.

        Compilation and workspaces belong here, and for inference weight re-layout; in training mode nothing derived
        from the weights' values or addresses may be kept, because they change between calls, in place or by
        `weight.data = ...`. Raises Unsupported.
        """

    def cost(self, case: Case) -> Cost:
        """Returns this algorithm's memory traffic and operations in one call (forward and backward in training mode).

        The fewest that any algorithm needs, unless a subclass knows its own.
        """
        from pytest_ecornn.contract import cells

        return cells.minimum_cost(case)

    def notes(self) -> str:
        """Names the library, algorithm or form that actually ran; known after `build`."""
        return ""
