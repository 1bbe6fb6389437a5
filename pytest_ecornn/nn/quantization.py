"""Dynamic quantization of LSTM and GRU by `torch.ao.quantization`, which looks modules up by their very class.

Where torch.nn's class is to be quantized, so is this package's, into torch's own quantized module.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations


def qconfig_of(module: Any, qconfig: Any) -> Any:
    """The qconfig of a module of this package, to which `torch.ao.quantization` is about to set `qconfig`.

    The specification that torch propagates to all modules is read from its caller, as torch hands it to nobody.
    """
    place = sys._getframe(2).f_locals
    specification, name, own = place.get("qconfig_dict"), place.get("prefix"), type_before_parametrizations(module)
    if not isinstance(specification, dict) or "qconfig" in module.__dict__:
        return qconfig
    if name not in specification and own not in specification:
        qconfig = specification.get(module._torch_class, qconfig)
    if qconfig is None or specification.keys().isdisjoint((name, own, module._torch_class)):
        return qconfig  # the parent's
    if reason := _refusal(module):
        warnings.warn(f"{own.__name__} {name!r} stays in float: torch.ao quantizes {reason}", stacklevel=4)
        return None
    _register(own)
    return qconfig


def _refusal(module: Any) -> str | None:
    """Why torch has no quantized form of a module, or None."""
    if module.mode not in ("LSTM", "GRU"):
        return "LSTM and GRU alone"
    if module.proj_size:
        return "no LSTM with proj_size"
    return "no parametrized module: call remove_parametrizations first" if is_parametrized(module) else None


def _register(cls: type[nn.Module]) -> None:
    from torch.ao.quantization.quantization_mappings import get_default_dynamic_quant_module_mappings

    get_default_dynamic_quant_module_mappings()[cls] = _Quantized


class _Quantized:
    """torch's quantized module of one of this package's, as `torch.ao.quantization` makes it."""

    @staticmethod
    def from_float(module: Any, use_precomputed_fake_quant: bool = False) -> nn.Module:
        from torch.ao.nn.quantized import dynamic

        quantized: nn.Module = getattr(dynamic, module.mode).from_float(module.to_torch())
        return quantized
