"""Stand-ins for other people's packages, as far as the adapters use them: their signatures and demands, and the scan by a loop.

What they demand and leave out is read from the sources of accelerated-scan 0.3.1 and fla-core 0.6.0.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations.peers import _peer


def by_loop(kept: Tensor, taken: Tensor, first: Tensor | None, time: int) -> Tensor:
    """h[t] = kept[t] h[t-1] + taken[t], differentiable."""
    state, outputs = torch.zeros_like(taken.select(time, 0)) if first is None else first, []
    for k, t in zip(kept.unbind(time), taken.unbind(time), strict=True):
        state = k * state + t
        outputs.append(state)
    return torch.stack(outputs, time)


def _scan(gates: Tensor, tokens: Tensor) -> Tensor:
    assert gates.shape == tokens.shape
    assert gates.dtype == tokens.dtype
    assert gates.is_contiguous()
    assert tokens.is_contiguous()
    return by_loop(gates, tokens, None, 2)


def warp(gates: Tensor, tokens: Tensor) -> Tensor:
    steps = gates.shape[2]
    assert 32 <= steps <= 65_536, steps
    assert steps & (steps - 1) == 0, steps
    return _scan(gates, tokens)


def scalar(forget: Tensor, inputs: Tensor) -> Tensor:
    assert forget.shape[2] % 2048 == 0 or not inputs.requires_grad, "the backward kernel would read beyond the end"
    return _scan(forget, inputs)


def chunk_hgrn(
    x: Tensor, g: Tensor, initial_state: Tensor | None = None, output_final_state: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Without a gradient of the initial state, or from the final one."""
    first = None if initial_state is None else initial_state.detach()
    states = by_loop(g.exp(), x, first, 1)
    return states, states[:, -1].detach() if output_final_state else None


def fused_recurrent_hgrn(
    x: Tensor,
    g: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    states = by_loop(g.exp(), x, initial_state, 1)
    return states, states[:, -1] if output_final_state else None


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the packages were installed, and triton, of which torch would want more than a stand-in has."""
    hgrn = {"chunk_hgrn": chunk_hgrn, "fused_recurrent_hgrn": fused_recurrent_hgrn}
    modules: dict[str, dict[str, Any]] = {
        "accelerated_scan": {"__version__": "0.3.1"}, "accelerated_scan.warp": {"scan": warp},
        "accelerated_scan.scalar": {"scan": scalar},
        "fla": {"__version__": "0.6.0"}, "fla.ops": {}, "fla.ops.hgrn": hgrn,
    }  # fmt: skip
    made = {name: ModuleType(name) for name in modules}
    for name, members in modules.items():
        parent, _, last = name.rpartition(".")
        vars(made[name]).update(members, __path__=[])
        if parent:
            setattr(made[parent], last, made[name])
        monkeypatch.setitem(sys.modules, name, made[name])
    monkeypatch.setattr(_peer, "find_spec", lambda name: made.get(name, True))
