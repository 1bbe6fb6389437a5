"""Contents of a case: weights, inputs, states, lengths, resets and loss weights, all from the case's seed or a state dict.

Each kind of contents stresses something: "saturated" gates, keep gates "near_one", "large" and "denormal" inputs; see
`non_finite` for NaN and infinities.

"zeros": half the rows of x. A drawn pattern of pruned weights then has an empty row and an empty column, and zeros inside.

"small": pre-activations and states are near zero, where tanh and the like are exact relative to their values. In positive
cells the candidate is small, by a bias. So a result is as small, and its error is judged relative to it.

"drifting": keep gates are open, and each step adds a little to the state, nearly the same as the last. In float32 it adds up.
In 16 bits it is rounded as often as it is added. Recurrent weights are small, so that the rounding of their operands hides
nothing. Loss weights have one sign, so that gradients summed over steps and sequences grow as well.

"cancelling": two large terms of each pair are followed by what is left of them, somewhere in the sum. The columns of a weight
are negated in pairs, and the elements of an operand nearly equal in the same pairs. A sum in float32 keeps what is left in any
order, as pairs are drawn at random. One in 16 bits, or of parts in 16 bits, loses most of it.

Initial states are of either sign, but positive where the cell's are, except in "negative_state".

Loss weights are random per element; for every other seed they are zero before each sequence's last step.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from pytest_ecornn.cases import memory_layout, non_finite, state_dict
from pytest_ecornn.contract import NEGATIVE_STATES, Case, Weights, cells

_X_SCALE = {"saturated": 8.0, "large": 100.0}
_KEEP_BIAS = 6.0
_RESETS = (1 / 8, 16)  # share of the steps, but no more than so many of a sequence, or a long one would be short ones
_RECURRENT_SCALE = 2.0**-5
_SMALL_SCALE = {"float16": 2.0**-2}  # 2^-30 elsewhere: results of float16 would vanish
_ZERO_SHARE = 1 / 8  # of a pruned weight's elements
_DRIFT_SCALE, _DRIFT_NOISE = 2.0**-1, 2.0**-4  # of what all steps' inputs share, and of what they do not
_CANCELLED_SIZE = 8.0  # times what is left of a pair: float32 keeps 20 bits of it
# float16 has so small a range that unscaled gradients would be subnormal: loss scaling, as in training.
_LOSS_SCALE = {"float16": 16.0}


@dataclass(frozen=True)
class Problem:
    """A case with its values. x: as `Implementation.build` says; state: one [L*D, B, H] a state, () for none;
    lengths: int64 [B] on the CPU or None; resets: as there or None; output_gradients: the gradients given for output and final
    states.
    """

    case: Case
    weights: Weights
    x: Tensor
    state: tuple[Tensor, ...]
    lengths: Tensor | None
    resets: Tensor | None
    output_gradients: tuple[Tensor, ...]

    @property
    def state_argument(self) -> Tensor | tuple[Tensor, ...] | None:
        """The state in the form that layers take."""
        return None if not self.state else self.state if len(self.state) > 1 else self.state[0]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that a call is given, by name."""
        states = zip((f"initial {name}" for name in cells.get(self.case.cell).states), self.state, strict=False)
        loss = {f"loss weight {number}": weight for number, weight in enumerate(self.output_gradients)}
        named = {"x": self.x, **dict(states), **self.weights, "lengths": self.lengths, "resets": self.resets, **loss}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Problem:
        """The same problem with `function(name, tensor)` in place of each tensor."""
        done = {name: function(name, tensor) for name, tensor in self.tensors.items()}
        weights = {name: nn.Parameter(done[name].detach(), one.requires_grad) for name, one in self.weights.items()}
        return replace(
            self,
            weights=Weights(weights, self.weights.masks),
            x=done["x"],
            state=tuple(one for name, one in done.items() if name.startswith("initial ")),
            lengths=done.get("lengths"),
            resets=done.get("resets"),
            output_gradients=tuple(one for name, one in done.items() if name.startswith("loss weight ")),
        )

    def copied(self) -> Problem:
        """The same problem, except its weights, at new addresses in the same layout."""
        copy = self.map(lambda name, tensor: tensor if name in self.weights else placed_tensor(tensor))
        return replace(copy, weights=self.weights)

    @cached_property
    def padding(self) -> Tensor | None:
        """True where a step lies after its sequence's end, laid out as x without its last dimension; None if nowhere."""
        if self.lengths is None:
            return None
        late = torch.arange(self.case.steps)[:, None] >= self.lengths[None, :]  # [T, B]
        return (late.T if self.case.batch_first else late).to(self.x.device)


def to_device(problem: Problem, device: str) -> Problem:
    """Copies a problem and its weights to another device, in the layout that `Tensor.to` gives; lengths stay on the CPU."""
    moved = problem.map(lambda name, tensor: tensor if name == "lengths" else tensor.detach().to(device))
    masks = {name: mask.to(device) for name, mask in problem.weights.masks.items()}
    return replace(moved, case=replace(problem.case, device=device), weights=Weights(moved.weights, masks))


def problem(case: Case, role: str = "", weights: Weights | None = None) -> Problem:
    """The problem of `case`, with these weights if they are given; another `role` gives other values of the same kind."""
    lengths = sequence_lengths(case)
    rows = sample_x_rows(case, case.steps * case.batch, generator(case.seed, "x" + role))
    state = initial_state(case, generator(case.seed, "state" + role))
    loss = output_gradients(case, lengths, generator(case.seed, "loss" + role))
    resets = reset_mask(case, generator(case.seed, "resets" + role))
    own = make_weights(case, role) if weights is None else weights
    return Problem(case, own, memory_layout.x_at(case, rows, 0), state, lengths, resets, loss)


def placed_tensor(tensor: Tensor, change: Callable[[Tensor], Tensor] = lambda same: same) -> Tensor:
    """A copy with the strides of `tensor`, as far from the start of its memory; its values changed where that is asked for."""
    return empty_with_strides(tensor).copy_(change(tensor))


def empty_with_strides(like: Tensor) -> Tensor:
    """Memory with the shape and strides of `like`, which begins as far from its start."""
    start = like.storage_offset()
    if not start and like.is_contiguous():
        return torch.empty_like(like)
    span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    return like.new_zeros(start + span).as_strided(like.shape, like.stride(), start)


def torch_dtype(case: Case) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, case.dtype)
    return dtype


def make_weights(case: Case, role: str = "") -> Weights:
    """Draws weights uniformly within 1/sqrt(H), as torch.nn initialises; sparse recurrent weights have a random fixed pattern.

    A case with weights of a state dict gets these and their pattern, the pattern alone where there is a `role`.
    """
    given = state_dict.of_case(case) if case.weights else None
    random = generator(case.seed, "weights" + role)
    bound = case.hidden_size**-0.5
    parameters, masks = {}, make_masks(case)
    for name, shape in cells.parameter_shapes(case).items():
        value = (torch.rand(shape, generator=random, dtype=torch.float64) * 2 - 1) * bound
        if given and not role:
            value = given.parameters[name].to(torch.float64, copy=True)
        if name.startswith("bias"):
            value *= _input_scale(case)
        if name.startswith("bias_ih"):
            value += _gate_bias(case)
        if case.contents == "drifting":
            _scale_recurrent(name, value)
        if case.contents == "cancelling":
            cancel_columns(case.seed, name, value)
        if name in masks:
            value *= masks[name].cpu()
            if case.contents == "zeros":
                value[torch.rand(shape, generator=random) < _ZERO_SHARE] = 0
        non_finite.change_weight(case, name, value, random)
        parameters[name] = nn.Parameter(value.to(case.device, torch_dtype(case)), requires_grad=case.training)
    return Weights(parameters, masks)


def make_masks(case: Case) -> dict[str, Tensor]:
    """Boolean masks of the places where each sparse recurrent weight may differ from 0, on the case's device."""
    random = generator(case.seed, "masks")
    masks = {}
    for name, shape in cells.parameter_shapes(case).items():
        if name.startswith("weight_hh") and case.density < 1:
            of_file = state_dict.of_case(case).pattern(name, case.density) if case.weights else None
            pattern = _drawn_pattern(case, shape, random) if of_file is None else of_file
            masks[name] = pattern.to(case.device)
    return masks


def _drawn_pattern(case: Case, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    pattern = torch.rand(shape, generator=random) < case.density
    if case.contents == "zeros":
        row, column = (int(torch.randint(size, (), generator=random)) for size in shape)
        pattern[row] = False
        pattern[:, column] = False
    return pattern


def _gate_bias(case: Case) -> Tensor:
    """[G*H]: what opens the cell's keep gates wide, or makes its positive candidate small; 0 where the contents do not."""
    cell, size = cells.get(case.cell), {"near_one": _KEEP_BIAS, "drifting": _drifting_bias(case.dtype)}.get(case.contents, 0.0)
    added = dict.fromkeys(cell.gates, 0.0) | {gate: size * sign for gate, sign in cell.keep.items()}
    if cell.positive and "candidate" in added:
        added["candidate"] += math.log(_small_scale(case))
    return torch.tensor(list(added.values())).repeat_interleave(case.hidden_size)


def _small_scale(case: Case) -> float:
    """The size of small states, 1 where the contents are not small."""
    return _SMALL_SCALE.get(case.dtype, 2.0**-30) if case.contents == "small" else 1.0


def _input_scale(case: Case) -> float:
    """The size of inputs and biases, except saturated or large inputs. Positive cells' states are not as small as these."""
    return 1.0 if cells.get(case.cell).positive else _small_scale(case)


def _drawn_dtype(case: Case) -> torch.dtype:
    """The dtype in which values are drawn: all bits of a float64 case's are random."""
    return torch.float64 if case.dtype == "float64" else torch.float32


def sample_x_rows(case: Case, rows: int, random: torch.Generator) -> Tensor:
    """Contents of x for `rows` (time, batch) pairs, one after the other: [rows, width], padded or shifted by the layout."""
    width, dtype = cells.x_width(case), torch_dtype(case)
    values = torch.randn(rows, width, generator=random, dtype=_drawn_dtype(case))
    values *= _X_SCALE.get(case.contents, _input_scale(case))
    if case.contents == "denormal":
        tiny = torch.rand(values.shape, generator=random) < 0.5
        values[tiny] *= torch.finfo(dtype).tiny * 2**-4
    if case.contents == "zeros":
        values[torch.rand(rows, generator=random) < 0.5] = 0
    if case.contents == "drifting":
        _set_drifting(values, random)
    if case.projected:
        values += _gate_bias(case).repeat(case.directions)
    if case.contents == "cancelling" and not case.projected:
        cancel_elements(case.seed, values, random)
    non_finite.change_x(case, values, random)
    return memory_layout.rows_of_x(case, values.to(case.device, dtype))


def initial_state(case: Case, random: torch.Generator) -> tuple[Tensor, ...]:
    if not case.has_state:
        return ()
    cell, shape = cells.get(case.cell), (case.layers * case.directions, case.batch, case.hidden_size)
    states = _drawn_states(case, shape, random)
    non_finite.change_states(case, states, random)
    if case.contents == "cancelling" and cell.recurrent:
        cancel_elements(case.seed, states[0], random)
    return tuple(memory_layout.laid_out(case, state.to(case.device, torch_dtype(case))) for state in states)


def state_rows(case: Case, rows: int, random: torch.Generator) -> tuple[Tensor, ...]:
    """Usual contents of each state for `rows` (layer and direction, sequence) pairs, one after the other; () for none."""
    if not case.has_state:
        return ()
    states = _drawn_states(case, (rows, case.hidden_size), random)
    return tuple(state.to(case.device, torch_dtype(case)) for state in states)


def _drawn_states(case: Case, shape: tuple[int, ...], random: torch.Generator) -> list[Tensor]:
    """A value of each of the cell's states, of the sign that it has there."""
    scale = 0.5 * _small_scale(case)
    states = [torch.randn(shape, generator=random, dtype=_drawn_dtype(case)) * scale for _ in cells.get(case.cell).states]
    is_positive = cells.get(case.cell).positive and case.contents not in NEGATIVE_STATES
    return [state.abs() for state in states] if is_positive else states


def state_at(case: Case, rows: Iterable[Tensor], start: int) -> tuple[Tensor, ...]:
    """The rows from `start` as states, without a copy: [L*D, B, H] each."""
    shape = (case.layers * case.directions, case.batch, case.hidden_size)
    return tuple(one[start : start + shape[0] * shape[1]].view(shape) for one in rows)


def sequence_lengths(case: Case) -> Tensor | None:
    """int64 [B] from 1 to T, in no order; None where the case is not ragged.

    The longest is T. Where the seed divided by 4 leaves 2 or 3, it is T - 1, of more than one step.
    """
    if not case.ragged:
        return None
    random = generator(case.seed, "lengths")
    longest = max(1, case.steps - 1) if case.seed % 4 >= 2 else case.steps
    lengths = torch.randint(1, longest + 1, (case.batch,), generator=random)
    lengths[int(torch.randint(case.batch, (), generator=random))] = longest
    return memory_layout.laid_out(case, lengths)


def reset_mask(case: Case, random: torch.Generator) -> Tensor | None:
    """bool, [T, B] or [B, T]: often at the first and the last step, some next to each other, none in some sequences.

    At least one is set. None where the case has no resets.
    """
    if not case.resets:
        return None

    def some(share: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=random) < share

    share, most = _RESETS
    marks = some(min(share, most / case.steps), case.steps, case.batch)
    marks[1:] |= marks[:-1] & some(0.25, case.steps - 1, case.batch)
    marks[0] |= some(0.5, case.batch)
    marks[-1] |= some(0.25, case.batch)
    marks &= some(0.75, case.batch)
    if not marks.any():
        marks.view(-1)[int(torch.randint(marks.numel(), (), generator=random))] = True
    return (marks.T.contiguous() if case.batch_first else marks).to(case.device)


def valid_steps(case: Case) -> int:
    """The sum of the sequences' lengths."""
    lengths = sequence_lengths(case)
    return case.steps * case.batch if lengths is None else int(lengths.sum())


def loss_scale(case: Case) -> float:
    return _LOSS_SCALE.get(case.dtype, 1.0)


def output_gradients(case: Case, lengths: Tensor | None, random: torch.Generator) -> tuple[Tensor, ...]:
    """Gradients for output and each final state, in the case's dtype; () in inference mode."""
    if not case.training:
        return ()
    scale, hidden = loss_scale(case), case.directions * case.hidden_size
    dtype = _drawn_dtype(case)
    output = torch.randn(case.steps, case.batch, hidden, generator=random, dtype=dtype) * scale
    if case.seed % 2:
        ends = (torch.full((case.batch,), case.steps) if lengths is None else lengths) - 1
        output *= (torch.arange(case.steps)[:, None] == ends[None, :])[..., None]
    final_shape = (case.layers * case.directions, case.batch, case.hidden_size)
    finals = [torch.randn(final_shape, generator=random, dtype=dtype) * scale for _ in cells.get(case.cell).states]
    if case.contents == "drifting":
        output, finals = output.abs(), [final.abs() for final in finals]
    output = output.transpose(0, 1).contiguous() if case.batch_first else output
    return tuple(weight.to(case.device, torch_dtype(case)) for weight in (output, *finals))


def generator(seed: int, role: str) -> torch.Generator:
    """A generator that draws the same numbers for the same seed and role, and others for another."""
    return torch.Generator().manual_seed((seed * 1_000_003 + zlib.crc32(role.encode())) & 0x7FFF_FFFF_FFFF_FFFF)


def cancel_columns(seed: int, name: str, weight: Tensor) -> None:
    """Sets the second column of each pair to the negated first, in place."""
    if name.startswith("weight_"):
        first, second = _drawn_pairs(seed, weight.shape[1])
        weight[:, second] = -weight[:, first]


def cancel_elements(seed: int, values: Tensor, random: torch.Generator) -> None:
    """Sets the first element of each pair to a large value and adds that value to the second, in place."""
    first, second = _drawn_pairs(seed, values.shape[-1])
    large = torch.randn(*values.shape[:-1], len(first), generator=random, dtype=values.dtype) * _CANCELLED_SIZE
    values[..., first] = large
    values[..., second] += large


def _drawn_pairs(seed: int, width: int) -> tuple[Tensor, Tensor]:
    """The places of either half of so many elements; of an odd number one stays alone."""
    order = torch.randperm(width, generator=generator(seed, f"pairs {width}"))
    return order[: width // 2], order[width // 2 : width // 2 * 2]


def _drifting_bias(dtype: str) -> float:
    """Bias that opens keep gates in 16-bit types; 0 in wider types.

    There a sigmoid made of a tanh, which is right, may have too few bits of a gate that is closed.
    """
    return 4.0 if getattr(torch, dtype).itemsize == 2 else 0.0


def _scale_recurrent(name: str, value: Tensor) -> None:
    """Scales recurrent weights down, in place."""
    if name.startswith("weight_hh"):
        value *= _RECURRENT_SCALE


def _set_drifting(values: Tensor, random: torch.Generator) -> None:
    """Sets `values` [rows, width] to the same values in all rows plus a little noise, in place."""
    values *= _DRIFT_NOISE
    values += torch.randn(values.shape[1], generator=random, dtype=values.dtype) * _DRIFT_SCALE
