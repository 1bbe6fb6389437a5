"""Right implementations that are called or store otherwise: layouts, memory, threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear, pad
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import (
    RECURRENT_CELLS,
    LayerResult,
    Parameters,
    Right,
    RightLayer,
    alive,
    kept,
    order,
    x_gates,
)


class BatchOutermost(RightLayer):
    """Outputs lie batch-first in memory and are returned as a view, whichever way the case has it; states likewise."""

    def build(self, case: Case, weights: Weights) -> Layer:
        whole = super().build(case, weights)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            output, final = whole(x, state, lengths)
            finals = final if isinstance(final, tuple) else (final,)
            views = tuple(torch.stack(list(final.unbind(1))).transpose(0, 1) for final in finals if final is not None)
            return output, views if len(views) > 1 else views[0]  # [L*D, B, H], in memory [B, L*D, H]

        return layer

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates, outputs = x_gates(x.transpose(0, 1), parameters), dict[int, Tensor]()  # [B, T, G*H]
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(gates[:, t], state, parameters)
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))], 2).permute(2, 0, 1), state


def _product(parameters: Parameters, kind: str, columns: Tensor) -> Tensor:
    product = parameters[f"weight_{kind}"] @ columns
    return product + parameters[f"bias_{kind}"][:, None] if f"bias_{kind}" in parameters else product


class ChannelsFirst(RightLayer):
    """Channels come first, [H, B]: weights are multiplied from the left, and outputs are transposed views."""

    cells = RECURRENT_CELLS

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        count, columns = len(self.cell.gates), x.permute(0, 2, 1)  # [T, I, B]
        gates = _product(parameters, "ih", columns) if "weight_ih" in parameters else columns
        state, outputs = tuple(one.T for one in state), dict[int, Tensor]()
        for t in order(len(x), reverse):
            new = self.cell.step(gates[t].chunk(count), _product(parameters, "hh", state[0]).chunk(count), state, parameters)
            is_alive = torch.full((x.shape[1],), True) if lengths is None else lengths > t
            state = tuple(torch.where(is_alive, a, b) for a, b in zip(new, state, strict=True))
            outputs[t] = torch.where(is_alive, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]).permute(0, 2, 1), tuple(one.T for one in state)


class ExpandedStates(RightLayer):
    """Initial states are one number expanded, masks are expanded too, and states lie in one tensor that is unbound."""

    takes_resets = True

    def zeros(self, x: Tensor) -> GateTensors:
        return (x.new_zeros(()).expand(x.shape[1], self.case.hidden_size),) * len(self.cell.states)

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates, outputs, zero = x_gates(x, parameters), list[Tensor](), x.new_zeros(())
        states = torch.stack(state)  # [S, B, H]
        ends = x.new_full((1,), len(x), dtype=torch.int64).expand(x.shape[1]) if lengths is None else lengths
        for t in order(len(x), reverse):
            mask = (ends > t)[:, None].expand_as(states[0])
            if self.resets is not None:  # none in padding, where states wait for their sequence's end
                starts = (self.resets[t] & (ends > t))[:, None].expand_as(states)
                states = torch.where(starts, zero.expand_as(states), states)
            new = torch.stack(self.advance(gates[t], states.unbind(0), parameters))
            states = torch.where(mask, new, states)
            outputs.append(torch.where(mask, new[0], zero))
        return torch.stack(outputs[::-1] if reverse else outputs), states.unbind(0)


class FinalIsLastOutput(RightLayer):
    """Rows of equal length: final h is a copy of the stored output's last step, through which autograd sums both gradients."""

    refused = {"ragged": True, "bidirectional": True}

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return super().unsupported(case, device) or ("runs one layer" if case.layers > 1 else None)

    def build(self, case: Case, weights: Weights) -> Layer:
        whole = super().build(case, weights)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            output, final = whole(x, state, lengths)
            last = (output[:, -1:].transpose(0, 1) if case.batch_first else output[-1:]).clone()
            return output, (last, final[1]) if isinstance(final, tuple) else last

        return layer

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates, outputs = x_gates(x, parameters), list[Tensor]()
        for t in order(len(x), reverse):
            state = self.advance(gates[t], state, parameters)
            outputs.append(state[0])
        return torch.stack(outputs), state


class KeptIndices(RightLayer):
    """Index tensors are made at a length's first call and kept: what depends on lengths alone is no value of x or weights."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], list[Tensor]] = {}

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        ends = [len(x)] * x.shape[1] if lengths is None else lengths.tolist()
        rows = self._rows(tuple(ends), len(x))
        gates, outputs = x_gates(x, parameters), list[Tensor]()
        for t in order(len(x), reverse):
            new = self.advance(gates[t, rows[t]], tuple(one[rows[t]] for one in state), parameters)
            state = tuple(one.index_copy(0, rows[t], part) for one, part in zip(state, new, strict=True))
            outputs.append(torch.zeros_like(state[0]).index_copy(0, rows[t], new[0]))
        return torch.stack(outputs[::-1] if reverse else outputs), state

    def _rows(self, ends: tuple[int, ...], steps: int) -> list[Tensor]:
        """Indices of the sequences that have each step, a tensor a step."""
        if ends not in self._kept:
            with torch.inference_mode(False):  # whose tensors no training call may save
                self._kept[ends] = [
                    torch.tensor([b for b, end in enumerate(ends) if end > t], dtype=torch.int64) for t in range(steps)
                ]
        return self._kept[ends]


class MappedOverBatch(RightLayer):
    """One sequence's step, mapped over the batch by torch.vmap."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        def step(gates: Tensor, is_alive: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            new = self.advance(gates, state, parameters)
            kept = (torch.where(is_alive, a, b) for a, b in zip(new, state, strict=True))
            return torch.where(is_alive, new[0], 0.0), *kept

        gates, outputs, mapped = x_gates(x, parameters), dict[int, Tensor](), torch.vmap(step)
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        for t in order(len(x), reverse):
            outputs[t], *new = mapped(gates[t], ends > t, *state)
            state = tuple(new)
        return torch.stack([outputs[t] for t in range(len(x))]), state


Array = Any  # numpy.ndarray of the case's dtype


class NumpyRoundTrip(RightLayer):
    """Inference in NumPy: torch's memory is read, and the result is NumPy's."""

    cells = ("rnn_tanh", "rnn_relu", "gru")
    dtypes = ("float32", "float64")
    refused = {"mode": "training"}

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        by_name = {name: value.detach().numpy() for name, value in parameters.items()}
        gates, h = x.detach().numpy(), state[0].detach().numpy().copy()
        if "weight_ih" in by_name:
            with np.errstate(all="ignore"):
                gates = gates @ by_name["weight_ih"].T + by_name.get("bias_ih", 0)
        output = np.zeros((*gates.shape[:2], self.case.hidden_size), h.dtype)
        ends = np.full(x.shape[1], len(x)) if lengths is None else lengths.numpy()
        for t in order(len(x), reverse):
            rows = np.flatnonzero(ends > t)
            with np.errstate(all="ignore"):  # as torch, which does not warn of infinities
                h[rows] = output[t, rows] = self._stepped(gates[t, rows], h[rows], by_name)
        return torch.from_numpy(output), (torch.from_numpy(h),)

    def _stepped(self, x: Array, h: Array, named: dict[str, Array]) -> Array:
        product = h @ named["weight_hh"].T + named.get("bias_hh", 0)
        if self.case.cell == "rnn_tanh":
            return np.tanh(x + product)
        if self.case.cell == "rnn_relu":
            return np.maximum(x + product, 0)
        (x_r, x_z, x_n), (h_r, h_z, h_n) = np.split(x, 3, 1), np.split(product, 3, 1)
        r, z = (1 / (1 + np.exp(-one)) for one in (x_r + h_r, x_z + h_z))
        n = np.tanh(x_n + r * h_n)
        return n + z * (h - n)


class OwnBuffers(RightLayer):
    """Steps work in place in inference, in one workspace that each call makes; out of place in training."""

    cells = ("lstm",)

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        gates = x_gates(x, parameters)
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        if torch.is_grad_enabled():
            return self._out_of_place(gates, state, parameters, ends, reverse)
        (h, c), output = (one.clone() for one in state), torch.empty(len(x), x.shape[1], self.case.hidden_size, dtype=x.dtype)
        workspace = torch.empty_like(gates[0])
        for t in order(len(x), reverse):
            torch.mm(h, parameters["weight_hh"].T, out=workspace)
            workspace.add_(gates[t])
            if "bias_hh" in parameters:
                workspace.add_(parameters["bias_hh"])
            i, f, g, o = workspace.chunk(4, -1)
            i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
            new = f.mul_(c).addcmul_(i, g)
            is_alive = (ends > t)[:, None]
            c.copy_(torch.where(is_alive, new, c))
            output[t] = o.mul_(new.tanh())
            h.copy_(torch.where(is_alive, output[t], h))
            output[t].masked_fill_(~is_alive, 0.0)
        return output, (h, c)

    def _out_of_place(
        self, gates: Tensor, state: GateTensors, parameters: Parameters, ends: Tensor, reverse: bool
    ) -> LayerResult:
        (h, c), outputs = state, dict[int, Tensor]()
        for t in order(len(gates), reverse):
            i, f, g, o = (gates[t] + linear(h, parameters["weight_hh"], parameters.get("bias_hh"))).chunk(4, -1)
            new = f.sigmoid() * c + i.sigmoid() * g.tanh()
            out, is_alive = o.sigmoid() * new.tanh(), (ends > t)[:, None]
            h, c, outputs[t] = out.where(is_alive, h), new.where(is_alive, c), out.masked_fill(~is_alive, 0.0)
        return torch.stack([outputs[t] for t in range(len(gates))]), (h, c)


class OwnThreads(RightLayer):
    """A pool of two threads shares the batch, and rests between calls."""

    deterministic = False  # two threads' gradients of the same weights are added in either order

    def build(self, case: Case, weights: Weights) -> Layer:
        self._pool = ThreadPoolExecutor(2)
        return super().build(case, weights)

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        middle, has_gradients = -(-x.shape[1] // 2), torch.is_grad_enabled()  # which is each thread's own

        def half(part: slice) -> LayerResult:
            with torch.set_grad_enabled(has_gradients):
                some = None if lengths is None else lengths[part]
                return self._half(x[:, part], tuple(one[part] for one in state), parameters, some, reverse)

        parts = [slice(0, middle), slice(middle, None)][: 1 if x.shape[1] == 1 else 2]
        halves = [done.result() for done in [self._pool.submit(partial(half, part)) for part in parts]]
        finals = zip(*(final for _, final in halves), strict=True)
        return torch.cat([output for output, _ in halves], 1), tuple(torch.cat(one) for one in finals)

    def _half(
        self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool
    ) -> LayerResult:
        gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(gates[t], state, parameters)
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state


_MODULES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}


class PackedModules(Right):
    """torch.nn's modules on packed sequences, called with the given weights by torch.func.functional_call."""

    cells = RECURRENT_CELLS
    dtypes = ("float32", "float64")
    refused = {"projected": True}

    def build(self, case: Case, weights: Weights) -> Layer:
        options = {"nonlinearity": case.cell[4:]} if case.cell.startswith("rnn") else {}
        module = _MODULES[case.cell](
            case.input_size,
            case.hidden_size,
            case.layers,
            bias=case.bias,
            batch_first=case.batch_first,
            bidirectional=case.bidirectional,
            device="meta",
            **options,
        )

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            given = {name: weights.masked(name) for name in weights}
            if lengths is None:
                return functional_call(module, given, (x, state))  # type: ignore[no-any-return]
            packed = pack_padded_sequence(x, lengths, case.batch_first, enforce_sorted=False)
            output, final = functional_call(module, given, (packed, state))
            padded, _ = pad_packed_sequence(output, case.batch_first, total_length=case.steps)
            return padded, final

        return layer


_MULTIPLE = 16


def _padded(values: Tensor) -> Tensor:
    return pad(values, (0, -values.shape[-1] % _MULTIPLE))


class PaddedChannels(RightLayer):
    """Hidden and input sizes are rounded up to multiples of 16 with zeros; outputs are slices of what was computed.

    Padded channels are set to zero after each step: a zero weight times an infinite input is NaN.
    """

    cells = RECURRENT_CELLS
    refused = {"projected": True}

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        hidden, count, outputs = self.case.hidden_size, len(self.cell.gates), dict[int, Tensor]()
        wide = {name: self._widened(value) for name, value in parameters.items()}
        gates = linear(_padded(x), wide["weight_ih"], wide.get("bias_ih"))
        state = tuple(map(_padded, state))
        for t in order(len(x), reverse):
            h_gates = linear(state[0], wide["weight_hh"], wide.get("bias_hh"))
            computed = self.cell.step(gates[t].chunk(count, -1), h_gates.chunk(count, -1), state, wide)
            new = tuple(_padded(one[:, :hidden]) for one in computed)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        output = torch.stack([outputs[t] for t in range(len(x))])
        return output[..., :hidden], tuple(one[:, :hidden] for one in state)

    def _widened(self, parameter: Tensor) -> Tensor:
        """Each gate's rows by themselves."""
        blocks = parameter.unflatten(0, (-1, self.case.hidden_size))
        extra = -self.case.hidden_size % _MULTIPLE
        if parameter.ndim == 1:
            return pad(blocks, (0, extra)).flatten()
        return pad(blocks, (0, -parameter.shape[1] % _MULTIPLE, 0, extra)).flatten(0, 1)


class SettingsPutBack(RightLayer):
    """Each call sets its own default dtype, thread count and random state, and puts back what it found."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        dtype, threads, random = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state()
        try:
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(1)
            torch.manual_seed(1)
            sequences = torch.randperm(x.shape[1])  # in an order of its own, the same in each call
            return self._permuted(x, state, parameters, lengths, reverse, sequences)
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            torch.set_rng_state(random)

    def _permuted(
        self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool, sequences: Tensor
    ) -> LayerResult:
        lengths = None if lengths is None else lengths[sequences]
        state, outputs = tuple(one[sequences] for one in state), dict[int, Tensor]()
        gates = x_gates(x.index_select(1, sequences), parameters)
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(gates[t], state, parameters)
            state, outputs[t] = kept(mask, new, state), new[0].masked_fill(~mask, 0.0)
        back = sequences.argsort()
        return torch.stack([outputs[t] for t in range(len(x))])[:, back], tuple(one[back] for one in state)


class SingleSequences(RightLayer):
    """Each sequence runs alone, over its own steps only, cut where it is reset."""

    takes_resets = True

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        outputs, finals = list[Tensor](), list[GateTensors]()
        for b in range(x.shape[1]):
            length = len(x) if lengths is None else int(lengths[b])
            starts = set() if self.resets is None else {t for t in range(length) if self.resets[t, b]}
            output, final = self._sequence(
                x[:length, b : b + 1], tuple(s[b : b + 1] for s in state), parameters, starts, reverse
            )
            outputs.append(pad(output, (0, 0, 0, 0, 0, len(x) - length)))
            finals.append(final)
        return torch.cat(outputs, 1), tuple(torch.cat(one) for one in zip(*finals, strict=True))

    def _sequence(self, x: Tensor, state: GateTensors, parameters: Parameters, starts: set[int], reverse: bool) -> LayerResult:
        outputs, gates = list[Tensor](), x_gates(x, parameters)
        for t in order(len(x), reverse):
            state = self.advance(gates[t], self.zeros(x) if t in starts else state, parameters)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs), state


class SlicesOfOneBuffer(Right):
    """All results lie in one fresh buffer, one after the other."""

    takes_resets = True

    def build(self, case: Case, weights: Weights) -> Layer:
        cell, wide = cells.get(case.cell), torch.promote_types(getattr(torch, case.dtype), torch.float32)

        def layer(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
            given = {name: weights.masked(name).to(wide) for name in weights}
            states = tuple(one.to(wide) for one in cells.unpack_state(state))
            output, final = cells.reference(case, given, x.to(wide), states or None, lengths, resets)
            results = [output, *cells.unpack_state(final)]
            buffer = torch.cat([one.reshape(-1) for one in results]).to(x.dtype)
            parts = buffer.split([one.numel() for one in results])
            first, *rest = (part.view(one.shape) for part, one in zip(parts, results, strict=True))
            return first, tuple(rest) if len(cell.states) > 1 else rest[0]

        return layer


class SortedSequences(RightLayer):
    """Sequences are sorted by length, as packed ones are, and the batch shrinks or grows from step to step."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        steps, batch = x.shape[:2]
        lengths = torch.full((batch,), steps) if lengths is None else lengths
        places = lengths.argsort(descending=True)
        gates, state = x_gates(x[:, places], parameters), tuple(one[places] for one in state)
        outputs: dict[int, Tensor] = {}
        for t in order(steps, reverse):
            count = int((lengths > t).sum())
            new = self.advance(gates[t, :count], tuple(one[:count] for one in state), parameters)
            state = tuple(torch.cat([a, b[count:]]) for a, b in zip(new, state, strict=True))
            outputs[t] = pad(new[0], (0, 0, 0, batch - count))
        back = places.argsort()
        return torch.stack([outputs[t] for t in range(steps)])[:, back], tuple(one[back] for one in state)


_SECONDS = 0.01


class VerySlow(RightLayer):
    """Each call sleeps before it works."""

    def run(self, x: Tensor, state: GateTensors, parameters: Parameters, lengths: Tensor | None, reverse: bool) -> LayerResult:
        time.sleep(_SECONDS)
        outputs = dict[int, Tensor]()
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(x_gates(x[t], parameters), state, parameters)
            state, outputs[t] = kept(mask, new, state), new[0].where(mask, torch.zeros(()))
        return torch.stack([outputs[t] for t in range(len(x))]), state
