"""torch's own functions and kernels, in whose place Python code may put others.

Functions can be put back. Of a kernel nothing but the end of its library takes the other one away.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch

from pytest_ecornn.verification.guards.setting import GlobalSetting, cannot_be_put_back, differing_keys

# What loops in Python, torch.nn's layers and autograd call: too much else is in torch to be looked at after every block.
_CALLED = tuple(
    """
    addmm bmm cat chunk empty empty_like lerp matmul mm relu sigmoid stack tanh unbind where zeros zeros_like autograd.grad
    autograd.graph._engine_run_backward nn.functional.linear nn.functional.logsigmoid nn.functional.softplus nn.GRU.__call__
    nn.GRU.forward nn.LSTM.__call__ nn.LSTM.forward nn.RNN.__call__ nn.RNN.forward nn.RNNBase.check_forward_args
    nn.Module._call_impl nn.Module.__getattr__ Tensor.__add__ Tensor.__getitem__ Tensor.__matmul__ Tensor.__mul__
    Tensor.__rsub__ Tensor.__sub__ Tensor.chunk Tensor.copy_ Tensor.detach Tensor.sigmoid Tensor.tanh Tensor.to Tensor.unbind
    Tensor.view
    """.split()  # noqa: SIM905 - it is read as a list of words
)
_CODES = [f"{name}.__code__" for name in _CALLED if isinstance(attrgetter(name)(torch), FunctionType)]
_NAMES = (*_CALLED, *_CODES)
_get = attrgetter(*_NAMES)
_hidden: Any = torch._VF


def _functions() -> dict[str, Any]:
    """Returns functions by name, and what hides those of `torch._VF`, whose own dictionary has none."""
    return dict(zip(_NAMES, _get(torch), strict=True)) | {f"_VF.{name}": value for name, value in vars(_hidden).items()}


def _tell_functions(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Leaves out the code of a function that is another itself."""
    codes = {f"{name}.__code__" for name in before if before[name] is not after.get(name)}
    return differing_keys(*({name: values[name] for name in values if name not in codes} for values in (before, after)))


def _put_back(old: dict[str, Any]) -> None:
    for name, value in _functions().items():
        place, _, last = name.rpartition(".")
        owner = attrgetter(place)(torch) if place else torch
        if name not in old:
            delattr(owner, last)
        elif value is not old[name]:
            setattr(owner, last, old[name])


@cache
def _aten_by_python(count: int) -> frozenset[str]:
    """Returns `_by_python`, asked anew where there are more or fewer kernels of Python: each look takes half a millisecond."""
    return frozenset(_by_python())


QUICK = (  # which take a few microseconds each to read
    GlobalSetting("functions of torch", _functions, _put_back, dict.__eq__, tell=_tell_functions),
    GlobalSetting(
        "torch's operators with kernels of Python",
        lambda: _aten_by_python(len(getattr(torch.library, "_impls", ()))),
        cannot_be_put_back,
        tell=lambda before, after: f"{len(before)} as before, got {', '.join(sorted(before ^ after))}",
    ),
)
# All of these kernels take two milliseconds to read: before and after a row.
_OPERATORS = """
    abs add.Tensor addmm amax bmm cat clone copy_ div.Tensor empty.memory_format equal fill_.Scalar gru.input index_select
    linear lstm.input masked_fill.Scalar matmul mkldnn_rnn_layer mm mul.Tensor ne.Tensor nonzero randn.generator
    randperm.generator relu rnn_relu.input rnn_tanh.input sigmoid split.Tensor stack sub.Tensor sum.dim_IntList t tanh
    _to_copy where.self zeros
"""
_KEYS = tuple(f"{prefix}{device}:" for prefix in ("", "Autograd", "Autocast") for device in ("CPU", "CUDA"))


class Overrides:
    """Snapshot of the registered kernels, to be compared with later ones."""

    def __init__(self) -> None:
        self._kernels, self._by_python = _kernels(), _by_python()

    def changes(self) -> Iterator[str]:
        """Yields a line for each operator whose kernels have changed since."""
        changed = [name for name, kernels in _kernels().items() if kernels != self._kernels[name]]
        for name in dict.fromkeys([*changed, *sorted(_by_python() - self._by_python)]):
            yield (
                f"torch.ops.aten.{name}: expected torch's own kernel as before, but another is registered over it, "
                "which this process keeps"
            )


def _kernels() -> dict[str, list[str]]:
    """Returns where each operator's kernels were registered, on devices that have timed rows."""
    return {
        name: [line for line in torch._C._dispatch_dump_table(f"aten::{name}").splitlines() if line.startswith(_KEYS)]
        for name in _OPERATORS.split()
    }


def _by_python() -> set[str]:
    """Operators for which Python code has registered kernels, on what has timed rows: any of torch's own."""
    registered = (one.split("/") for one in getattr(torch.library, "_impls", ()))
    return {name for library, name, key in registered if library == "aten" and f"{key}:".endswith(_KEYS)}
