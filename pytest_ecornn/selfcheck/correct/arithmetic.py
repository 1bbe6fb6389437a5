"""Right implementations that compute otherwise: other sums, products and formulas."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, einsum
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid, pad
from torch.utils.checkpoint import checkpoint

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import (
    RECURRENT_CELLS,
    LayerResult,
    Parameters,
    RightLayer,
    alive,
    kept,
    order,
    x_gates,
)


class EinsumByGate(RightLayer):
    """Weights are seen as [G, H, I], and products are sums over named dimensions."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        hidden, outputs = self.case.hidden_size, dict[int, Tensor]()
        by_gate = {name: value.unflatten(0, (-1, hidden)) for name, value in parameters.items()}
        if "weight_ih" in by_gate:
            gates = einsum("ghi,tbi->tgbh", by_gate["weight_ih"], x)
            gates = gates + by_gate["bias_ih"][:, None] if "bias_ih" in by_gate else gates
        else:
            gates = x.unflatten(-1, (-1, hidden)).movedim(-2, 1)
        for t in order(len(x), reverse):
            h_gates: GateTensors = ()
            if self.cell.recurrent:
                product = einsum("ghk,bk->gbh", by_gate["weight_hh"], state[0])
                h_gates = (product + by_gate["bias_hh"][:, None] if "bias_hh" in by_gate else product).unbind(0)
            new = self.cell.step(gates[t].unbind(0), h_gates, state, parameters)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state


class Float64Inside(RightLayer):
    """All is computed in float64, whatever the case's dtype, and rounded once at the end."""

    def compute(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
        for t in order(len(x), reverse):
            mask = alive(lengths, t, x.shape[1])
            new = self.advance(gates[t], state, parameters)
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state


def _gates(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """r, z, n, and W_hn h + b_hn."""
    a_r, a_z, product = torch.addmm(bias, h, weight.T).chunk(3, 1)
    x_r, x_z, x_n = x.chunk(3, 1)
    r, z = (x_r + a_r).sigmoid(), (x_z + a_z).sigmoid()
    return r, z, (x_n + r * product).tanh(), product


class _Gru(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, ends: Tensor, reverse: bool) -> Any:
        before, output = x.new_empty(len(x), *h.shape), x.new_zeros(len(x), *h.shape)
        for t in order(len(x), reverse):
            before[t] = h
            _, z, n, _ = _gates(x[t], h, weight, bias)
            is_alive = (ends > t)[:, None]
            new = n + z * (h - n)
            h = torch.where(is_alive, new, h)
            output[t] = new.masked_fill(~is_alive, 0.0)
        ctx.save_for_backward(x, weight, bias, before, ends)
        ctx.reverse = reverse
        return output, h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, dh: Tensor) -> Any:
        x, weight, bias, before, ends = ctx.saved_tensors
        dx, d_product = torch.zeros_like(x), torch.zeros_like(x)
        for t in order(len(x), not ctx.reverse):
            r, z, n, product = _gates(x[t], before[t], weight, bias)
            is_alive = (ends > t)[:, None]
            d_new = dh + d_output[t]
            d_n = d_new * (1 - z) * (1 - n * n)
            d_z = d_new * (before[t] - n) * z * (1 - z)
            d_r = d_n * product * r * (1 - r)
            dx[t] = torch.cat([d_r, d_z, d_n], 1).masked_fill(~is_alive, 0.0)
            d_product[t] = torch.cat([d_r, d_z, d_n * r], 1).masked_fill(~is_alive, 0.0)
            dh = torch.where(is_alive, d_product[t] @ weight + d_new * z, dh)
        rows = d_product.flatten(0, 1)
        return dx, rows.T @ before.flatten(0, 1), rows.sum(0), dh, None, None


class GruByHand(RightLayer):
    """GRU with its backward pass written out, which computes the gates again from the states that the steps began with."""

    cells = ("gru",)

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        bias = parameters.get("bias_hh", x.new_zeros(3 * self.case.hidden_size))
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        given = x_gates(x, parameters), parameters["weight_hh"], bias, *state, ends, reverse
        output, h = _Gru.apply(*given)  # type: ignore[no-untyped-call]
        return output, (h,)


class LogSpace(RightLayer):
    """The cells of a positive candidate in logarithms, which are float64."""

    cells = ("mingru_positive", "minlstm_positive")
    dtypes = ("float32", "bfloat16", "float16")
    refused = {"ragged": True}
    refuses_infinities = True

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        wide = x_gates(x, parameters).double()
        *gates, candidate = (wide.flip(0) if reverse else wide).chunk(len(self.cell.gates), -1)
        take = gates[0] if len(gates) == 1 else logsigmoid(gates[1]) - logsigmoid(gates[0])
        kept = torch.cumsum(logsigmoid(-take), 0)
        value = torch.where(candidate >= 0, (candidate.relu() + 0.5).log(), logsigmoid(candidate))
        terms = (logsigmoid(take) + value - kept).unbind(0)  # second derivatives of torch's logcumsumexp are NaN
        carried = torch.stack([*accumulate(terms, torch.logaddexp)])
        states = ((carried + kept).exp() + kept.exp() * state[0].double()).to(x.dtype)
        return (states.flip(0) if reverse else states), (states[-1],)


class _Lstm(Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, mask: Tensor, reverse: bool) -> Any:
        hidden = h.shape[1]
        acts, hs, cs = torch.empty_like(gates), gates.new_empty(len(gates), *h.shape), gates.new_empty(len(gates), *h.shape)
        output = gates.new_empty(len(gates), *h.shape)
        for t in order(len(gates), reverse):
            hs[t], cs[t] = h, c  # what the step starts from
            a = gates[t] + h @ weight.T
            act = torch.cat(
                [a[:, : 2 * hidden].sigmoid(), a[:, 2 * hidden : 3 * hidden].tanh(), a[:, 3 * hidden :].sigmoid()], 1
            )
            i, f, g, o = act.chunk(4, 1)
            new = f * c + i * g
            out, is_alive = o * new.tanh(), mask[t, :, None]
            acts[t], output[t] = act, out.where(is_alive, torch.zeros_like(out))
            h, c = torch.where(is_alive, out, h), torch.where(is_alive, new, c)
        ctx.save_for_backward(weight, acts, hs, cs, mask)
        ctx.reverse = reverse
        return output, h.clone(), c.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, dh: Tensor, dc: Tensor) -> Any:
        weight, acts, hs, cs, mask = ctx.saved_tensors
        d_gates = torch.zeros_like(acts)
        for t in order(len(acts), not ctx.reverse):
            (i, f, g, o), c, is_alive = acts[t].chunk(4, 1), cs[t], mask[t, :, None]
            tanh = (f * c + i * g).tanh()
            d_out = dh + d_output[t]
            d_new = dc + d_out * o * (1 - tanh * tanh)
            parts = d_new * g * i * (1 - i), d_new * c * f * (1 - f), d_new * i * (1 - g * g), d_out * tanh * o * (1 - o)
            d_gates[t] = torch.cat(parts, 1).masked_fill(~is_alive, 0.0)
            dh = torch.where(is_alive, d_gates[t] @ weight, dh)
            dc = torch.where(is_alive, d_new * f, dc)
        d_weight = d_gates.flatten(0, 1).T @ hs.flatten(0, 1)
        return d_gates, d_weight, dh, dc, None, None


class LstmByHand(RightLayer):
    """LSTM with its backward pass written out: gates are saved, lengths are a mask both ways, weights' gradients a product."""

    cells = ("lstm",)

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates = x_gates(x, parameters)
        if "bias_hh" in parameters:
            gates = gates + parameters["bias_hh"]
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        mask = torch.arange(len(x))[:, None] < ends  # [T, B]
        output, h, c = _Lstm.apply(gates, parameters["weight_hh"], *state, mask, reverse)  # type: ignore[no-untyped-call]
        return output, (h, c)


class MasksAppliedLate(RightLayer):
    """All steps run as if there were no lengths; afterwards final states are gathered, and padding is cleared.

    The reverse direction starts each sequence anew at its end.
    """

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates, states, first = x_gates(x, parameters), dict[int, GateTensors](), state
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        for t in order(len(x), reverse):
            if reverse:
                is_first = (ends == t + 1)[:, None]
                state = tuple(torch.where(is_first, a, b) for a, b in zip(first, state, strict=True))
            state = states[t] = self.advance(gates[t], state, parameters)
        all_states = [torch.stack([states[t][k] for t in range(len(x))]) for k in range(len(state))]  # [T, B, H] each
        last = torch.zeros_like(ends) if reverse else ends - 1
        places = last[None, :, None].expand(1, -1, self.case.hidden_size)
        is_padding = (torch.arange(len(x))[:, None] >= ends)[..., None]
        return all_states[0].masked_fill(is_padding, 0.0), tuple(one.gather(0, places)[0] for one in all_states)


class OneFusedProduct(RightLayer):
    """x and h stand in one row, W_ih and W_hh in one matrix that is put together in each call: one product a step."""

    cells = ("lstm", "rnn_tanh", "rnn_relu")
    refused = {"projected": True}

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        weight = torch.cat([parameters["weight_ih"], parameters["weight_hh"]], 1)
        if "bias_ih" in parameters:
            weight = torch.cat([weight, (parameters["bias_ih"] + parameters["bias_hh"])[:, None]], 1)
        ones = x.new_ones(x.shape[1], weight.shape[1] - x.shape[2] - state[0].shape[1])
        outputs = dict[int, Tensor]()
        for t in order(len(x), reverse):
            gates = torch.cat([x[t], state[0], ones], 1) @ weight.T
            mask, new = alive(lengths, t, x.shape[1]), self._stepped(gates, state)
            state, outputs[t] = kept(mask, new, state), new[0].masked_fill(~mask, 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state

    def _stepped(self, gates: Tensor, state: GateTensors) -> GateTensors:
        if self.case.cell != "lstm":
            return (gates.tanh() if self.case.cell == "rnn_tanh" else gates.clamp_min(0),)
        i, f, g, o = gates.chunk(4, -1)
        c = torch.addcmul(f.sigmoid() * state[1], i.sigmoid(), g.tanh())
        return o.sigmoid() * c.tanh(), c


def _sigmoid(x: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.tanh(0.5 * x)


class OtherAlgebra(RightLayer):
    """GRU as (1 - z) n + z h, sigmoid as half of 1 + tanh, the weights of each gate split off and multiplied from the left."""

    cells = ("gru",)

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        x_r, x_z, x_n = x_gates(x, parameters).chunk(3, -1)
        w_r, w_z, w_n = parameters["weight_hh"].split(self.case.hidden_size)
        bias = parameters.get("bias_hh", x.new_zeros(3 * self.case.hidden_size))
        b_r, b_z, b_n = bias.split(self.case.hidden_size)
        (h,), outputs = state, dict[int, Tensor]()
        for t in order(len(x), reverse):
            r = _sigmoid((w_r @ h.T).T + (x_r[t] + b_r))
            z = _sigmoid((w_z @ h.T).T + (x_z[t] + b_z))
            n = torch.tanh(torch.addcmul(x_n[t], r, (w_n @ h.T).T + b_n))
            mask = alive(lengths, t, x.shape[1])
            new = (1 - z) * n + z * h
            h, outputs[t] = torch.where(mask, new, h), new.masked_fill(~mask, 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), (h,)


_STEPS = 4


class RecomputedBackward(RightLayer):
    """Nothing but the state of every fourth step is saved for the backward pass, which computes the rest again."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        def some(first: int, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
            for t in order(len(x), reverse):
                mask = alive(lengths, first + t, x.shape[1])
                new = self.advance(gates[t], state, parameters)
                state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
            return torch.stack([outputs[t] for t in range(len(x))]), *state

        parts = dict[int, Tensor]()
        for first in range(0, len(x), _STEPS)[:: -1 if reverse else 1]:
            done: Any = checkpoint(some, first, x[first : first + _STEPS], *state, use_reentrant=False)
            parts[first], state = done[0], tuple(done[1:])
        return torch.cat([parts[first] for first in sorted(parts)]), state


def _scan(decay: Tensor, add: Tensor) -> Tensor:
    """h of h[t] = keep[t] h[t - 1] + add[t], from zeros."""
    distance = 1
    while distance < len(add):
        add = add + decay * _later(add, distance)
        decay = decay * _later(decay, distance, 1.0)
        distance *= 2
    return add


def _later(values: Tensor, steps: int, filled: float = 0.0) -> Tensor:
    return pad(values[:-steps], (0, 0, 0, 0, steps, 0), value=filled)


class _Scan(Function):
    @staticmethod
    def forward(ctx: Any, keep: Tensor, add: Tensor, first: Tensor) -> Tensor:
        states = _scan(keep, torch.cat([add[:1] + keep[:1] * first, add[1:]]))
        ctx.save_for_backward(keep, torch.cat([first[None], states[:-1]]))
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        decay, before = ctx.saved_tensors
        d_add = _scan(_later(decay.flip(0), 1), gradient.flip(0)).flip(0)
        return d_add * before, d_add, d_add[0] * decay[0]


class ScanByDoubling(RightLayer):
    """minGRU and minLSTM by Hillis and Steele's scan: in as many passes as T has binary digits, each over all steps.

    The gradient is a scan in the other direction.
    """

    cells = ("mingru", "mingru_positive", "minlstm", "minlstm_positive")
    refuses_infinities = True  # 0 times infinity, where a product of what is kept underflows

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        *gates, candidate = x_gates(x, parameters).chunk(len(self.cell.gates), -1)
        take = gates[0] if len(gates) == 1 else logsigmoid(gates[1]) - logsigmoid(gates[0])
        if self.case.cell.endswith("positive"):
            candidate = torch.where(candidate < 0, candidate.sigmoid(), candidate + 0.5)
        decay, add = torch.sigmoid(-take), torch.sigmoid(take) * candidate
        mask = None
        if lengths is not None:  # a step of padding keeps all and adds nothing
            mask = (torch.arange(len(x))[:, None] < lengths)[..., None]
            decay, add = torch.where(mask, decay, 1.0), torch.where(mask, add, 0.0)
        if reverse:
            decay, add = decay.flip(0), add.flip(0)
        states: Tensor = _Scan.apply(decay, add, state[0])  # type: ignore[no-untyped-call]
        output = states.flip(0) if reverse else states
        return output if mask is None else torch.where(mask, output, 0.0), (states[-1],)


class StorageCarry(RightLayer):
    """The state crosses steps in the storage type, as is declared; sums are float32."""

    carry = "storage"

    def build(self, case: Case, weights: Weights) -> Layer:
        self._storage: torch.dtype = getattr(torch, case.dtype)
        return super().build(case, weights)

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
        stored = tuple(one.to(self._storage) for one in state)
        for t in order(len(x), reverse):
            mask = alive(lengths, t, x.shape[1])
            new = tuple(
                one.to(self._storage) for one in self.advance(gates[t], tuple(one.to(x.dtype) for one in stored), parameters)
            )
            stored, outputs[t] = kept(mask, new, stored), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), stored


def _product(x: Tensor, parameters: Parameters, kind: str) -> Tensor:
    addends = x[:, None, :] * parameters[f"weight_{kind}"]  # [B, G*H, I]
    while addends.shape[-1] > 1:
        addends = pad(addends, (0, addends.shape[-1] % 2)).unflatten(-1, (-1, 2)).sum(-1)
    product = addends.squeeze(-1)
    return product + parameters[f"bias_{kind}"] if f"bias_{kind}" in parameters else product


class SumsByATree(RightLayer):
    """Every product is made element by element and summed up in pairs, pairs of pairs and so on."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        count, outputs = len(self.cell.gates), dict[int, Tensor]()
        for t in order(len(x), reverse):
            gates = x[t] if "weight_ih" not in parameters else _product(x[t], parameters, "ih")
            h_gates = _product(state[0], parameters, "hh").chunk(count, -1) if self.cell.recurrent else ()
            new = self.cell.step(gates.chunk(count, -1), h_gates, state, parameters)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state


_BLOCK = 7


class SumsInBlocks(RightLayer):
    """The recurrent product is summed up in blocks of seven, the last block first."""

    cells = RECURRENT_CELLS

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates, count = x_gates(x, parameters), len(self.cell.gates)
        blocks = list(parameters["weight_hh"].split(_BLOCK, 1))
        outputs = dict[int, Tensor]()
        for t in order(len(x), reverse):
            product = torch.zeros_like(gates[t])
            for h, weight in reversed(list(zip(state[0].split(_BLOCK, 1), blocks, strict=True))):
                product = product + h @ weight.T
            if "bias_hh" in parameters:
                product = product + parameters["bias_hh"]
            new = self.cell.step(gates[t].chunk(count, -1), product.chunk(count, -1), state, parameters)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state


class TimeReversedTwice(RightLayer):
    """Time is turned round, each sequence about its own end, run from the last to the first, and turned back."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        steps, batch = x.shape[:2]
        ends = torch.full((batch,), steps) if lengths is None else lengths
        times = torch.arange(steps)[:, None]
        turned = torch.where(times < ends, ends - 1 - times, times)[..., None]  # its own inverse
        gates = x_gates(x, parameters)
        gates, outputs = gates.gather(0, turned.expand_as(gates)), dict[int, Tensor]()
        for t in order(steps, not reverse):
            is_alive = (ends > t)[:, None]
            new = self.advance(gates[t], state, parameters)
            state = tuple(a.where(is_alive, b) for a, b in zip(new, state, strict=True))
            outputs[t] = new[0].masked_fill(~is_alive, 0.0)
        output = torch.stack([outputs[t] for t in range(steps)])
        return output.gather(0, turned.expand_as(output)), state
