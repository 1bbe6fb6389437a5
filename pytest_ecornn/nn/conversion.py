"""Conversion between torch.nn's RNN, LSTM and GRU and this package's, alone and in whole models.

A module changes its class and nothing else: parameters, parametrizations, hooks, mode and names in its state_dict stay.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.overrides import TorchFunctionMode

from pytest_ecornn.nn.recurrent import GRU, LSTM, RNN, _Recurrent

Model = TypeVar("Model", bound=nn.Module)
_CLASSES: dict[type[nn.Module], type[_Recurrent]] = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}
_NAMES = {cls.__name__ for cls in _CLASSES}


class Replacement(NamedTuple):
    """What `replace` did with a module: its names in the model, what it is, and why it was left, "" where it was replaced."""

    names: tuple[str, ...]
    module: str
    reason: str


class Replacements(list[Replacement]):
    """What `replace` did, printed as a table."""

    @property
    def replaced(self) -> list[Replacement]:
        return [row for row in self if not row.reason]

    @property
    def left(self) -> list[Replacement]:
        return [row for row in self if row.reason]

    def __repr__(self) -> str:
        rows = [(", ".join(row.names), row.module, f"left: {row.reason}" if row.reason else "replaced") for row in self]
        if not rows:
            return "no recurrent modules of torch.nn"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, f"{len(self.replaced)} replaced, {len(self.left)} left"])


def replace(model: nn.Module, backend: str = "auto") -> Replacements:
    """Makes torch.nn's RNN, LSTM and GRU in a model this package's, in place. Returns what was replaced, and left and why.

    Modules stay the same objects, as do parameters and hooks, so that optimizers and handles hold. backend: as LSTM's. Raises
    ValueError for another. `to_torch` is the way back.
    """
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name or "(model)")
    rows = Replacements()
    for module, of_module in names.items():
        if (reason := _reason_to_leave(module)) is None:
            continue
        rows.append(Replacement(tuple(of_module), _described(module), reason))
        if not reason:
            _make_own(module, backend)
    return rows


def from_torch(module: nn.RNNBase, backend: str = "auto") -> RNN | GRU | LSTM:
    """This package's module in place of a torch.nn.RNN, LSTM or GRU, with the same parameters, hooks and mode.

    backend: as LSTM's. Raises TypeError for others, subclasses among them, and ValueError for another backend.
    """
    reason = _reason_to_leave(module)
    if reason or reason is None:
        why = f", {reason}" if reason else ""
        raise TypeError(f"expected a torch.nn.RNN, LSTM or GRU, got {type(module).__name__}{why}; replace takes whole models")
    own = _make_own(_copy(module), backend)
    assert isinstance(own, RNN | GRU | LSTM)
    return own


@overload
def to_torch(model: _Recurrent) -> nn.RNNBase: ...
@overload
def to_torch(model: Model) -> Model: ...
def to_torch(model: nn.Module) -> nn.Module:
    """A copy of a model, or of one module, with torch.nn's RNN, LSTM and GRU in place of this package's.

    Tensors and hooks are those of the model, not copies. Subclasses of this package's modules stay what they are.
    """
    model = _copy(model)
    for module in model.modules():
        if type_before_parametrizations(module) in _CLASSES.values():
            assert isinstance(module, _Recurrent)
            _change_class(module, module._torch_class)
            for name in (*_Recurrent.own_attributes(), "_notes", "_has_weights"):
                module.__dict__.pop(name, None)
    return model


def _reason_to_leave(module: nn.Module) -> str | None:
    """Why a recurrent module stays what it is, "" for none. None for modules of other kinds."""
    cls = type_before_parametrizations(module)
    if cls in _CLASSES:
        return "its instance has a forward of its own" if "forward" in module.__dict__ else ""
    if isinstance(module, _Recurrent):
        return "already of pytest_ecornn.nn"
    base = next((base.__name__ for base in _CLASSES if isinstance(module, base)), None)
    if base is not None:
        return f"a subclass of torch.nn.{base}, whose methods may differ"
    if isinstance(module, nn.RNNCellBase):
        return "a cell, called for each step"
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted" if module.original_name in _NAMES else None
    is_torchs = cls.__module__.startswith("torch.ao.nn.")
    return "quantized" if is_torchs and any(cls.__name__.endswith(name) for name in _NAMES) else None


def _described(module: nn.Module) -> str:
    return f"{type_before_parametrizations(module).__name__}({module.extra_repr()})" + " parametrized" * is_parametrized(module)


def _make_own(module: nn.Module, backend: str) -> nn.Module:
    own = _CLASSES[type_before_parametrizations(module)]
    attributes = own.own_attributes(backend)
    _change_class(module, own)
    module.__dict__.update(attributes)
    return module


def _change_class(module: nn.Module, cls: type[nn.Module]) -> None:
    """Changes a module's class. A parametrized one's is a subclass, whose properties are the parametrized tensors."""
    if is_parametrized(module):
        own = {name: value for name, value in vars(type(module)).items() if name not in ("__dict__", "__weakref__")}
        cls = type(f"Parametrized{cls.__name__}", (cls,), own)
    module.__class__ = cls


class _SharedTensors(TorchFunctionMode):
    """Has deepcopy share tensors, wherever an object keeps them. Those with a graph cannot be copied."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.__deepcopy__ else func(*args, **kwargs or {})


def _copy(model: Model) -> Model:
    """A copy that shares tensors and hooks with the model."""
    shared: list[object] = [*model.parameters(), *model.buffers()]  # no mode sees Parameter.__deepcopy__
    for module in model.modules():
        hooks_by_kind = [hooks for name, hooks in vars(module).items() if name.endswith("_hooks") and hooks]
        shared += [hook for hooks in hooks_by_kind for hook in hooks.values()]
    with _SharedTensors():
        return copy.deepcopy(model, {id(item): item for item in shared})
