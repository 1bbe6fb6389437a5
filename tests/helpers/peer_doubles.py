"""Stand-ins for other people's packages, as far as the adapters use them: their signatures and demands, and loops over time.

What they demand, leave out and round is read from the sources of accelerated-scan 0.3.1, fla-core 0.6.0 and flashrnn 1.0.8.
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


class _FusedLstm(torch.autograd.Function):
    """FlashRNN's fused LSTM, rounded where it rounds: forward gates have the biases' type, all else that of the states."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """[T, B, 4, H], [2, B, H], [4, H, H], [4, H] -> states [2, T + 1, B, H]."""
        recurrent, states, kept = weight.float().flatten(0, 1).T, [first], list[Tensor]()
        for x_t in x.float():
            h, c = states[-1].float()
            i, f, z, o = (bias + (h @ recurrent).unflatten(-1, bias.shape) + x_t).unbind(1)
            gates = torch.stack([i.sigmoid(), f.sigmoid(), z.tanh(), o.sigmoid()])
            c = gates[1] * c + gates[0] * gates[2]
            states.append(torch.stack([gates[3] * c.tanh(), c]).to(x.dtype))
            kept.append(gates.to(x.dtype))
        found = torch.stack(states, 1)
        ctx.save_for_backward(weight, bias, found, torch.stack(kept))
        return found

    @staticmethod
    def backward(ctx: Any, d_states: Tensor) -> Any:
        weight, bias, states, kept = ctx.saved_tensors

        def r(x: Tensor) -> Tensor:
            return x.to(states.dtype).float()

        d_h, d_c, recurrent, d_gates = 0.0 * states[0, 0].float(), 0.0 * states[1, 0].float(), weight.float().flatten(0, 1), []
        for t in reversed(range(len(kept))):
            i, f, z, o = kept[t].float()
            c, squashed = states[1, t].float(), r(states[1, t + 1].float().tanh())
            d_h, d_c = r(d_states[0, t + 1] + d_h), r(d_states[1, t + 1] + d_c)
            d_c = r(d_c + r(r(1 - r(squashed**2)) * r(o * d_h)))
            d_i, d_f, d_o = (
                r(r(gate * r(1 - gate)) * given) for gate, given in ((i, r(z * d_c)), (f, r(c * d_c)), (o, r(squashed * d_h)))
            )
            d_gates.append(torch.stack([d_i, d_f, r(r(d_c * i) * r(1 - r(z**2))), d_o], 1))  # [B, 4, H]
            d_h, d_c = r(d_gates[-1].flatten(1) @ recurrent), r(f * d_c)
        found = torch.stack(d_gates[::-1])
        d_weight = found.flatten(2).flatten(0, 1).T @ states[0, :-1].float().flatten(0, 1)
        d_first = torch.stack([d_h, d_c]).to(states.dtype)
        return found.to(states.dtype), d_first, d_weight.view_as(weight).to(weight.dtype), found.sum((0, 1)).to(bias.dtype)


def flashrnn(
    Wx: Tensor,  # noqa: N803
    R: Tensor,  # noqa: N803
    b: Tensor,
    states: Tensor | None = None,
    function: str = "lstm",
    config: object = None,
    backend: str = "cuda_fused",
    dtype: str = "bfloat16",
) -> tuple[Tensor, Tensor]:
    """Wx [B, T, G, heads, D], R [G, heads, D, D], b [G, heads, D], states [S, B, 1, heads, D], of one head here."""
    batch, _, gates, heads, width = Wx.shape
    assert (function, backend, dtype, config) == ("lstm", "cuda_fused", "bfloat16", None)
    assert (gates, heads, R.shape, b.shape) == (4, 1, (4, 1, width, width), (4, 1, width))
    assert {Wx.dtype, R.dtype} == {torch.bfloat16}
    assert b.dtype == torch.float32, "with biases of 16 bits each operation of a gate would be rounded to them"
    states = Wx.new_zeros(2, batch, 1, 1, width) if states is None else states
    assert states.shape == (2, batch, 1, 1, width)
    found: Tensor = _FusedLstm.apply(Wx[:, :, :, 0].transpose(0, 1), states[:, :, 0, 0], R[:, 0], b[:, 0])
    by_sequence = found.transpose(1, 2)[:, :, :, None]
    return by_sequence[:, :, 1:], by_sequence[:, :, -1:]


def get_gpu_info(device_id: int) -> dict[str, int]:
    raise RuntimeError("Error building extension 'gpu_info2'")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the packages were installed, and triton, of which torch would want more than a stand-in has."""
    hgrn = {"chunk_hgrn": chunk_hgrn, "fused_recurrent_hgrn": fused_recurrent_hgrn}
    modules: dict[str, dict[str, Any]] = {
        "accelerated_scan": {"__version__": "0.3.1"}, "accelerated_scan.warp": {"scan": warp},
        "accelerated_scan.scalar": {"scan": scalar},
        "fla": {"__version__": "0.6.0"}, "fla.ops": {}, "fla.ops.hgrn": hgrn, "flashrnn": {"flashrnn": flashrnn},
        "flashrnn.flashrnn": {"flashrnn": flashrnn}, "flashrnn.flashrnn.flashrnn": {"get_gpu_info": get_gpu_info},
    }  # fmt: skip
    made = {name: ModuleType(name) for name in modules}
    for name, members in modules.items():
        parent, _, last = name.rpartition(".")
        vars(made[name]).update(members, __path__=[])
        if parent and last not in modules[parent]:  # a function may stand for the module of its name
            setattr(made[parent], last, made[name])
        monkeypatch.setitem(sys.modules, name, made[name])
    monkeypatch.setattr(_peer, "find_spec", lambda name: made.get(name, True))
