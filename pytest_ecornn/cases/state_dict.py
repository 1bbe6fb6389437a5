"""Weights of a user's own torch.nn.RNN, LSTM or GRU from a file, for cases to run on: as they are, or pruned by magnitude.

What torch.nn.utils.prune has pruned stays pruned, whether its masks are in the file or were made permanent: a recurrent
weight's zeros are its pattern.

Anyone may have made the file: whatever it holds, a ValueError of one line is the worst. torch's own messages are not passed on:
they advise to load the file unsafely.
"""

from __future__ import annotations

import re
import stat
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils.prune import L1Unstructured

from pytest_ecornn.contract import DTYPES, Case, cells
from pytest_ecornn.results.formatting import one_line

EXPECTED = "expected what torch.save(model.state_dict(), FILE) writes of a torch.nn.RNN, LSTM or GRU"
MAX_LAYERS = 1000
_MAX_NAME_LENGTH = 60
_RECURRENT_DIMENSIONS = 2
_OF_GATES = {1: ("rnn_tanh", "rnn_relu"), 3: ("gru",), 4: ("lstm",)}
# Of a module, beside its parameters, what torch.nn.utils.prune makes of a pruned one.
_PARAMETER = re.compile(r"\w+_l[0-9]+(_reverse)?(_orig|_mask)?")


@dataclass(frozen=True, eq=False)
class StateDict:
    """The parameters of one RNN, LSTM or GRU by torch.nn's names, on the CPU, with zeros where they are pruned.

    Raises ValueError where they are not those of such a module, or their dtype is none of DTYPES.
    """

    source: str
    parameters: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        bare = Case(cell=self._cells[0], steps=1, batch=1, **self._sizes)
        shapes = cells.parameter_shapes(bare)
        for name in [*shapes, *self.parameters]:
            expected, found = shapes.get(name), self.parameters.get(name)
            if found is None or found.shape != expected:
                wanted = "no such parameter" if expected is None else f"shape {list(expected)}"
                got = "none" if found is None else f"shape {list(found.shape)}"
                raise ValueError(f"{self.source}: {shown(name)}: expected {wanted}, got {got}, in a module with {bare}'s sizes")

    @property
    def _cells(self) -> tuple[str, ...]:
        """Names of the cells that have as many gates as the weights."""
        check_matrix(self.source, "weight_hh_l0", self.parameters["weight_hh_l0"])
        rows, hidden = self.parameters["weight_hh_l0"].shape
        if rows not in [gates * hidden for gates in _OF_GATES]:
            raise ValueError(
                f"{self.source}: weight_hh_l0: expected [G*H, H] with G 1, 3 or 4 and no proj_size, got [{rows}, {hidden}]"
            )
        return _OF_GATES[rows // hidden]

    @cached_property
    def _sizes(self) -> dict[str, Any]:
        """Case fields that the weights determine: a case may omit them and must not contradict them."""
        first = self.parameters["weight_hh_l0"]
        into = self.parameters.get("weight_ih_l0", first)
        check_matrix(self.source, "weight_ih_l0", into)
        inputs, layers = into.shape[1], count_layers(self.source, self.parameters)
        is_both = "weight_hh_l0_reverse" in self.parameters
        return {
            "hidden_size": first.shape[1], "input_size": inputs, "layers": layers, "bidirectional": is_both,
            "bias": "bias_hh_l0" in self.parameters,
        }  # fmt: skip

    @cached_property
    def name(self) -> str:
        """A checksum of all values: what `Case.weights` calls them."""
        checksum = 0
        for name, value in self.parameters.items():
            checksum = zlib.crc32(value.contiguous().view(torch.uint8).numpy().data, zlib.crc32(name.encode(), checksum))
        return f"{checksum:08x}"

    @cached_property
    def density(self) -> float:
        """Density of all recurrent weights together, rounded up to a case's steps of 0.0001."""
        recurrent = [value for name, value in self.parameters.items() if name.startswith("weight_hh")]
        kept = sum(int(value.count_nonzero()) for value in recurrent)
        return max(1, ceil(10_000 * kept / sum(value.numel() for value in recurrent) - 1e-6)) / 10_000

    def case(self, text: str) -> Case:
        """The case that `text` says, CELL-T#-B#[-option...], with these weights.

        The cell may be left out: torch.nn.RNN is then taken for one of tanh. A dtype and a density that are not said are the
        file's.
        Raises ValueError for what the weights contradict.
        """
        if text.partition("-")[0] not in cells.names():
            text = f"{self._cells[0]}-{text}"
        dtype = str(self.parameters["weight_hh_l0"].dtype).removeprefix("torch.")
        sizes = {name: value for name, value in self._sizes.items() if name != "input_size" or "projected" not in text}
        case = Case.parse(text, **{**sizes, "dtype": dtype, "density": self.density, "weights": self.name})
        for name, value in {**sizes, "weights": self.name}.items():
            if getattr(case, name) != value:
                raise ValueError(f"{text!r} says {name} {getattr(case, name)}, but {self.source} has {value}")
        if case.cell not in self._cells:
            raise ValueError(f"{text!r} is of {case.cell}, but {self.source} of {' or '.join(self._cells)}")
        if case.density > self.density:
            raise ValueError(f"{text!r} asks for density {case.density}, but of {self.source} only {self.density} is left")
        return case

    def pattern(self, name: str, density: float) -> Tensor:
        """bool: where that recurrent weight keeps its elements, those of largest magnitude where it has too many."""
        weight = self.parameters[name]
        found = weight != 0
        if density < self.density:
            dropped = weight.numel() - round(density * weight.numel())
            found = L1Unstructured(amount=dropped).compute_mask(weight, found)
        return found


def read(source: str) -> StateDict:
    """Reads FILE, or FILE:MODULE where the file's model has several such modules. Raises ValueError in one line."""
    path, prefix = _split(source)
    content = _load_tensors(path)
    prefix = _module(path, list(content), prefix)
    own = {name.removeprefix(prefix): value.detach() for name, value in content.items() if name.startswith(prefix)}
    used = {name: value for name, value in own.items() if _PARAMETER.fullmatch(name)}
    for name, value in used.items():
        check(source, f"{prefix}{name}", value)
    return StateDict(source, _unmasked(source, used))


def _split(source: str) -> tuple[Path, str | None]:
    """The file, and the module's name in it where one is given."""
    path, colon, module = source.rpartition(":")
    return (Path(source), None) if not colon or Path(source).exists() else (Path(path), module)


def _module(path: Path, names: list[str], wanted: str | None) -> str:
    """Returns the prefix of the wanted module's parameter names."""
    found = [match[1] for name in names if (match := re.fullmatch(r"(.*?)weight_hh_l0(?:_orig)?", name))]
    modules = ", ".join(f"{path}:{prefix.rstrip('.')}" for prefix in found)
    if not found:
        raise ValueError(f"{path} has no weight_hh_l0, but {', '.join(map(shown, names[:5])) or 'nothing'}: {EXPECTED}")
    if wanted is not None:
        if (prefix := f"{wanted}." if wanted else "") not in found:
            raise ValueError(f"{path} has no module {wanted!r}: expected one of {modules}")
        return prefix
    if len(found) > 1:
        raise ValueError(f"{path} has {len(found)} modules: expected one of {modules}")
    return found[0]


def _unmasked(source: str, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters as the module would use them: of those that are pruned what their masks leave."""
    values = {name.removesuffix("_orig"): value for name, value in own.items() if not name.endswith("_mask")}
    masks = {name.removesuffix("_mask"): value for name, value in own.items() if name.endswith("_mask")}
    return {name: masked(source, name, value, masks[name]) if name in masks else value for name, value in values.items()}


_loaded: dict[str, StateDict] = {}


def load(source: str) -> StateDict:
    """Reads a file, and keeps it for the cases that have its weights."""
    found = read(source)
    return _loaded.setdefault(found.name, found)


def of_case(case: Case) -> StateDict:
    """Returns the weights that `case.weights` names. Raises ValueError where no such file was given."""
    if case.weights not in _loaded:
        raise ValueError(f"{case}: weights of a state dict: expected --ecornn-state-dict FILE, of weights{case.weights}")
    return _loaded[case.weights]


def _load_tensors(path: Path) -> dict[str, Tensor]:
    """The file's tensors. Raises ValueError for another file, and for anything in it that is no tensor with a name."""
    _check_is_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a parser of foreign bytes may raise anything
        raise ValueError(f"cannot read {path} ({_reason(error)}): {EXPECTED}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}: {EXPECTED}")
    for name, value in content.items():
        if not isinstance(name, str):
            raise ValueError(f"{path}: expected names as keys, got {shown(repr(name))}: {EXPECTED}")
        if not isinstance(value, Tensor):
            raise ValueError(f"{path} holds something else than tensors by names, {shown(name)}: {EXPECTED}")
    return dict(content)


def _check_is_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path} ({getattr(error, 'strerror', None) or error}): {EXPECTED}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise ValueError(f"cannot read {path} (it is {kind}): {EXPECTED}")


def _reason(error: Exception) -> str:
    """Why torch could not read the file, in our words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if name := re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error)):
        return f"it holds an object of {shown(name[1])}, not tensors alone"
    if "TorchScript" in str(error):
        return "it is a TorchScript archive"
    return "it is damaged, or torch.save did not write it"


def check(source: str, name: str, value: Tensor) -> None:
    """Raises ValueError unless the tensor can be used as a weight: dense, in memory, not empty, of finite numbers."""
    if problem := _problem(value):
        raise ValueError(f"{source}: {shown(name)}: expected {problem[0]}, got {problem[1]}")


def _problem(value: Tensor) -> tuple[str, str] | None:
    """Returns (expected, actual) for an unusable weight; None for a usable one."""
    kinds = {"nested": value.is_nested, "quantized": value.is_quantized, str(value.layout): value.layout != torch.strided}
    kinds[type(value).__name__] = type(value) not in (Tensor, Parameter)
    if special := [kind for kind, is_so in kinds.items() if is_so]:
        return "a dense tensor", f"one that is {special[0]}"
    if value.device.type != "cpu":
        return "a tensor with values", f"one on the device {value.device}"
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        return f"one of {', '.join(DTYPES)}", str(value.dtype)
    if value.numel() == 0:
        return "at least one element", f"shape {list(value.shape)}"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "as many elements in the file as in the tensor", f"shape {list(value.shape)} of fewer"
    return None if value.isfinite().all() else ("finite numbers", "NaN or infinity")


def check_matrix(source: str, name: str, value: Tensor) -> None:
    """Raises ValueError unless the tensor has rows and columns."""
    if value.dim() != _RECURRENT_DIMENSIONS:
        raise ValueError(f"{source}: {shown(name)}: expected two dimensions, [G*H, columns], got shape {list(value.shape)}")


def count_layers(source: str, names: Iterable[str]) -> int:
    """Counts layers by the numbers in parameter names. Raises ValueError where these are not 0, 1, ..., or too many."""
    numbers = {int(match[1]): name for name in names if (match := re.search(r"_l([0-9]{1,9})(?:_reverse)?$", name))}
    if len(numbers) > MAX_LAYERS or sorted(numbers) != list(range(len(numbers))):
        last = shown(numbers[max(numbers)])
        raise ValueError(f"{source}: {last}: expected layers 0, 1, ... without a gap, {MAX_LAYERS} at most")
    return len(numbers)


def masked(source: str, name: str, value: Tensor, mask: Tensor) -> Tensor:
    """Applies the mask to the parameter. Raises ValueError for a mask that is not one of torch.nn.utils.prune."""
    if mask.shape != value.shape:
        raise ValueError(f"{source}: {shown(name)}_mask: expected shape {list(value.shape)}, got {list(mask.shape)}")
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{source}: {shown(name)}_mask: expected zeros and ones, got other numbers")
    return value * mask


def shown(name: Any) -> str:
    """Foreign text in one short line."""
    return one_line(name, _MAX_NAME_LENGTH)
