"""Quantization by `torch.ao.quantization`, which looks modules up by their very class.

Where dynamic quantization takes torch.nn's LSTM or GRU, it takes this package's, into torch's own quantized module. What stays
in float is said in a warning.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from torch import nn
from torch.ao.nn.quantized import dynamic
from torch.ao.quantization.quantization_mappings import get_default_dynamic_quant_module_mappings
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations


def qconfig_of(module: Any, qconfig: Any) -> Any:
    """The qconfig of a module of this package, to which `torch.ao.quantization` is about to set `qconfig`.

    The specification that torch propagates to all modules is read from its caller, as torch hands it to nobody.
    """
    place, own = sys._getframe(2).f_locals, type_before_parametrizations(module)
    specification, name = place.get("qconfig_dict"), place.get("prefix", "")
    if not isinstance(specification, dict) or "qconfig" in module.__dict__ or "_torch_class" not in vars(own):
        return qconfig  # a user's choice, or a subclass
    if name not in specification and own not in specification:
        qconfig = specification.get(module._torch_class, qconfig)
    if qconfig is None:
        return None
    if reason := _refusal(module, bool(specification)):
        if not specification or any(_names(key, name, own) for key in specification):
            warnings.warn(f"{own.__name__} {name!r} stays in float: torch.ao quantizes {reason}", stacklevel=4)
        return None
    get_default_dynamic_quant_module_mappings()[own] = _Quantized
    return qconfig


def _names(key: Any, name: str, own: Any) -> bool:
    """Whether a key of a specification is of a module or of one around it, and not of the whole model."""
    return key in (name, own, own._torch_class) or (isinstance(key, str) and key != "" and name.startswith(f"{key}."))


def _refusal(module: Any, is_dynamic: bool) -> str | None:
    """Why torch has no quantized form of a module, or None."""
    if not is_dynamic:
        return "no LSTM but torch.nn's in static quantization: to_torch(model) has it"
    if module.mode not in ("LSTM", "GRU"):
        return "LSTM and GRU alone"
    if module.proj_size:
        return "no LSTM with proj_size"
    return "no parametrized module" if is_parametrized(module) else None


class _Quantized:
    """torch's quantized module of one of this package's, as `torch.ao.quantization` makes it."""

    @staticmethod
    def from_float(module: Any, use_precomputed_fake_quant: bool = False) -> nn.Module:
        quantized: nn.Module = getattr(dynamic, module.mode).from_float(module.to_torch())
        return quantized
