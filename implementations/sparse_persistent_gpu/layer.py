"""One layer in one direction of sparse_persistent_gpu, forward and backward, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_ecornn.contract import Unsupported
from pytest_ecornn.implementations._common.autograd_ops import differentiable_once
from pytest_ecornn.implementations._common.input_projection import held
from pytest_ecornn.implementations._common.padded_gemm import matmul_tn
from pytest_ecornn.implementations._common.padding import shifted_states
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, ProblemSize
from pytest_ecornn.implementations._cuda.bias_gradients import bias_gradients
from pytest_ecornn.implementations._cuda.memory import address, empty
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim, shape_of, sizes_of
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.sparse_persistent_gpu.config import ALL, BLOCK_THREADS, SparseConfig, Techniques
from pytest_ecornn.implementations.sparse_persistent_gpu.csr import PADDING, from_mask
from pytest_ecornn.implementations.sparse_persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.sparse_persistent_gpu.kernel import get_layer_kernel
from pytest_ecornn.implementations.sparse_persistent_gpu.packing import PackedEll, divided_counts, pack


class UnitPermutation:
    """Units in another order, with gaps, or as they are: a kernel's rows of K values a unit, H of each beside each other."""

    def __init__(self, order: NDArray[np.int32], hidden: int, device: torch.device):
        is_plain = np.array_equal(order[:hidden], np.arange(hidden))
        self.hidden = hidden if is_plain else len(order)  # as the kernel has it
        self._unit_at = self._place_of = None
        if not is_plain:
            place_of = np.empty(hidden, np.int64)
            place_of[order[order != PADDING]] = np.flatnonzero(order != PADDING)
            self._unit_at = torch.from_numpy(np.maximum(order, 0).astype(np.int64)).to(device)  # a gap has some unit's
            self._place_of = torch.from_numpy(place_of).to(device)

    def permute(self, rows: Tensor) -> Tensor:
        """[.., K*H] -> [.., K*places]."""
        return self._moved(rows, self._place_of, self._unit_at)

    def unpermute(self, rows: Tensor) -> Tensor:
        """[.., K*places] -> [.., K*H], the inverse of `laid`."""
        return self._moved(rows, self._unit_at, self._place_of)

    @staticmethod
    def _moved(rows: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        if before is None or after is None or not rows.shape[-1]:
            return rows
        found: Tensor = rows.unflatten(-1, (-1, len(before)))
        return found.index_select(-1, after).flatten(-2)


class PackedWeight:
    """W_hh of a pattern, packed for one pass. Raises Unsupported, with the numbers, where it does not fit.

    mask: [G*H, H] bool. A view of it by `values` is what the kernel multiplies by.
    """

    def __init__(self, mask: Tensor, problem: ProblemSize, device: torch.device, techniques: Techniques):
        pattern = from_mask(mask.T if problem.is_backward else mask)
        form = select_config(problem, pattern.counts, Device.of(device), techniques, partial(divided_counts, pattern))
        if isinstance(form, str):
            raise Unsupported(f"{form}{' backward' * problem.is_backward}")
        packed = pack(pattern, form.spread, techniques.balance, techniques.bank_order)
        assert packed.num_rounds == form.rounds
        self.form, self._is_wide = form, problem.arithmetic.bytes == 4
        self.places = UnitPermutation(packed.unit_permutation, problem.hidden, device)
        self._from, self._is_none = (one.to(device) for one in self._sources(packed, problem.is_backward))
        places = packed.col_indices.astype(np.int32) * (form.wide_bytes // form.position_unit_bytes)
        places = places.reshape(form.blocks, form.pairs, 2, BLOCK_THREADS)
        self._fixed = [
            torch.from_numpy(np.ascontiguousarray(one)).to(device)
            for one in (places[:, :, 0] | places[:, :, 1] << 16, *_slots_and_firsts(packed, form))
        ]

    def _sources(self, packed: PackedEll, is_transposed: bool) -> tuple[Tensor, Tensor]:
        """Returns the index in W_hh of each value, in the order of values, and a mask of those that no element has."""
        pattern, sources = packed.nonzeros, packed.sources
        at = pattern.col_indices.astype(np.int64) * pattern.shape[0] + pattern.rows if is_transposed else pattern.places
        found = np.append(at, 0)[sources].reshape(self.form.blocks, self.form.pairs, 2, BLOCK_THREADS)
        is_none = (sources == PADDING).reshape(found.shape)
        packed_rows = [one if self._is_wide else one.swapaxes(2, 3) for one in (found, is_none)]
        return torch.from_numpy(packed_rows[0].astype(np.int32)), torch.from_numpy(np.ascontiguousarray(packed_rows[1]))

    def values(self, weight: Tensor) -> Tensor:
        """weight: [G*H, H]."""
        found = weight.reshape(-1).index_select(0, self._from.flatten()).view(self._from.shape)
        return found.masked_fill_(self._is_none, 0)

    def addresses(self, values: Tensor) -> tuple[int, int, int, int]:
        """Addresses in the kernels' order: places, values, slots, firsts."""
        places, slots, firsts = self._fixed
        return places.data_ptr(), values.data_ptr(), slots.data_ptr(), firsts.data_ptr()


def _slots_and_firsts(packed: PackedEll, form: SparseConfig) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns the slots of threads' partial sums, and each row's first slot or, in clusters, how many a block receives.

    Sources: kernels/partial_sums.cuh and kernels/cluster_reduce.cuh.
    """
    if not form.partials_per_row:
        return packed.slots, packed.row_offsets
    spread, found = packed.spread, np.empty_like(packed.slots)
    each, a_block = form.max_partials // form.cluster, form.partials_per_row * spread.rows + 1
    for block, (first, slots) in enumerate(zip(packed.row_offsets, packed.slots, strict=True)):
        row = np.searchsorted(first, slots, side="right") - 1
        owner, own = np.divmod(row, spread.rows)
        own = own % spread.gates * spread.units + own // spread.gates
        place = own * form.partials_per_row + block % spread.cluster * each + slots - first[row]
        found[block] = np.where(
            row < spread.shared_rows,
            owner * a_block + place,
            spread.rows * form.partials_per_row if form.cluster == 1 else PADDING,
        )
    if form.cluster == 1:
        return found, packed.row_offsets
    sent = np.diff(packed.row_offsets).reshape(-1, form.cluster, form.cluster, spread.rows).sum(axis=(1, 3))
    return found, sent.reshape(-1, 1).astype(np.int32)


class LayerInputs(NamedTuple):
    """gates: W_ih x [T, B, G*H], or [B, T, G*H]. states: none, or [B, H] of each. biases: of G*H, None for none.

    weight: [G*H, H], with its zeros; not looked at where a layer's values are fixed.
    """

    gates: Tensor
    initial_states: Sequence[Tensor]
    weight: Tensor
    biases: Sequence[Tensor | None]
    lengths: Tensor | None


class SavedTensors(NamedTuple):
    """Tensors saved for backward: the output, four values a unit of LSTM and GRU, and c of LSTM in float32."""

    output: Tensor
    gates: Tensor
    cells: Tensor


class Layer:
    """mask: [G*H, H] bool, of W_hh. Raises Unsupported where it does not fit."""

    def __init__(
        self,
        cell: str,
        mask: Tensor,
        batch: int,
        spec: KernelSpec,
        batch_first: bool,
        is_reverse: bool,
        techniques: Techniques = ALL,
    ):
        self._cell, self._spec, self._batch_first, self._is_reverse = cell, spec, batch_first, is_reverse
        self.hidden, self._mask = mask.shape[1], mask
        passes = (spec, spec.backward)[: 1 + spec.saves_for_backward]
        self.passes = [PackedWeight(mask, one.problem(cell, self.hidden, batch), spec.device, techniques) for one in passes]
        self._values: Tensor | None = None

    def freeze(self, weight: Tensor) -> None:
        """Its values, from now on the same."""
        self._values = self.passes[0].values(weight)

    def __call__(self, given: LayerInputs) -> list[Tensor]:
        """Output and final states."""
        initial_states = [*given.initial_states, None, None][:2]
        if self._spec.saves_for_backward:
            found = _Differentiable.apply(self, given.lengths, given.gates, given.weight, *given.biases, *initial_states)  # type: ignore[no-untyped-call]
            return list(found)
        return self.forward(given)[0]

    def _room(self, like: Tensor, each: int, hidden: int, dtype: torch.dtype | None = None) -> Tensor:
        """Allocates `each` values a unit for every step."""
        steps_and_batch = sizes_of(like, self._batch_first)
        sizes = Shape(self._cell, *steps_and_batch, hidden, self._batch_first)
        return empty(shape_of(sizes, each * hidden), dtype or self._spec.dtype, self._spec.device)

    def _launch(self, which: int, output: Tensor, other: Tensor) -> Any:
        pruned, spec = self.passes[which], (self._spec.backward if which else self._spec)
        shape = Shape(self._cell, *sizes_of(output, self._batch_first), pruned.places.hidden, self._batch_first)
        strides = [tuple(reversed(one.stride()[:2])) if self._batch_first else one.stride()[:2] for one in (output, other)]
        return get_layer_kernel(shape, spec, pruned.form, self._is_reverse, *strides)

    def forward(self, given: LayerInputs) -> tuple[list[Tensor], SavedTensors]:
        """Output, final states; what is kept, where that is asked for."""
        pruned, places = self.passes[0], self.passes[0].places
        gates, keeps, wide = (
            contiguous_last_dim(places.permute(given.gates)),
            self._spec.saves_for_backward,
            GATES[self._cell] > 1,
        )
        initial_states = [places.permute(one).contiguous() for one in given.initial_states]
        biases = [None if one is None else places.permute(one).contiguous() for one in given.biases]
        output = self._room(gates, 1, places.hidden)
        kept = (
            self._room(gates, 4 * (keeps and wide), places.hidden),
            self._room(gates, int(keeps and self._cell == "lstm"), places.hidden, torch.float32),
        )
        final_states = [
            output.new_empty(output.select(0 if not self._batch_first else 1, 0).shape) for _ in range(self._states)
        ]
        values = pruned.values(given.weight) if self._values is None else self._values
        self._launch(0, output, gates)((
            gates.data_ptr(), *pruned.addresses(values), *map(address, biases), *_h_and_c_addresses(initial_states),
            output.data_ptr(), *_h_and_c_addresses(final_states), address(given.lengths), *map(address, kept),
        ))  # fmt: skip
        found = [places.unpermute(one) for one in (output, *final_states)]
        return found, SavedTensors(found[0], places.unpermute(kept[0]), places.unpermute(kept[1]))

    @property
    def _states(self) -> int:
        return 2 if self._cell == "lstm" else 1

    def backward(
        self, given: LayerInputs, kept: SavedTensors, d_output: Tensor | None, d_finals: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Gradients of the gates, of GRU's product for n, and of the initial states."""
        pruned, places = self.passes[1], self.passes[1].places
        output, own_gates, cells = map(places.permute, kept)
        d_output = torch.zeros_like(output) if d_output is None else contiguous_last_dim(places.permute(d_output))
        initial_states = [places.permute(one).contiguous() for one in given.initial_states]
        final_states = [None if one is None else places.permute(one).contiguous() for one in d_finals]
        d_gates = self._room(output, GATES[self._cell], places.hidden)
        d_product = self._room(output, 1, places.hidden) if self._cell == "gru" else None
        grad_initial_states = [
            output.new_empty(output.select(0 if not self._batch_first else 1, 0).shape) for _ in range(self._states)
        ]
        values = pruned.values(given.weight)
        self._launch(1, output, d_output)((
            own_gates.data_ptr(), cells.data_ptr(), output.data_ptr(), *pruned.addresses(values),
            *_h_and_c_addresses(initial_states),
            d_output.data_ptr(), *_h_and_c_addresses(final_states), d_gates.data_ptr(), address(d_product),
            *_h_and_c_addresses(grad_initial_states),
            address(given.lengths),
        ))  # fmt: skip
        of_product = None if d_product is None else places.unpermute(d_product)
        return places.unpermute(d_gates), of_product, [places.unpermute(one) for one in grad_initial_states]

    def weight_gradients(
        self, given: LayerInputs, kept: SavedTensors, d_gates: Tensor, d_product: Tensor | None, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """Gradients of W_hh's non-zeros, 0 elsewhere, and of the biases, where they are wanted."""
        rows = d_gates.flatten(0, 1)
        begin = given.initial_states[0] if given.initial_states else None
        of_product = None if d_product is None else d_product.flatten(0, 1)
        found: list[Tensor | None] = [None, None, None]
        if wanted[1] or wanted[2]:
            of_ih, of_hh = bias_gradients(rows, of_product)
            found[1:] = of_ih if wanted[1] else None, of_hh if wanted[2] else None
        if wanted[0]:  # GRU multiplies by W_hn before r does
            of_h = rows if of_product is None else torch.cat((rows[:, : 2 * self.hidden], of_product), 1)
            before = shifted_states(kept.output, begin, given.lengths, self._batch_first, self._is_reverse).flatten(0, 1)
            with held(rows, self._spec.tf32):
                found[0] = matmul_tn(of_h, before, self._spec.tf32).masked_fill_(~self._mask, 0)
        return found


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: Layer, lengths: Tensor | None, gates: Tensor, weight: Tensor, *others: Tensor | None) -> Any:
        biases, initial_states = others[:2], [one for one in others[2:] if one is not None]
        given = LayerInputs(gates, initial_states, weight, biases, lengths)
        found, kept = layer.forward(given)
        ctx.layer, ctx.has_biases, ctx.states = layer, [one is not None for one in biases], len(initial_states)
        ctx.save_for_backward(weight, lengths, *initial_states, *kept)
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    @differentiable_once("sparse_persistent_gpu")
    def backward(ctx: Any, d_output: Tensor | None, *d_finals: Tensor | None) -> Any:
        weight, lengths, *rest = ctx.saved_tensors
        given, kept = LayerInputs(weight, rest[: ctx.states], weight, (), lengths), SavedTensors(*rest[ctx.states :])
        d_gates, d_product, grad_initial_states = ctx.layer.backward(given, kept, d_output, d_finals)
        of_gates, *of_weights = ctx.needs_input_grad[2:6]
        found = ctx.layer.weight_gradients(given, kept, d_gates, d_product, of_weights)
        d_states = [*grad_initial_states[: ctx.states], None, None][:2]
        return None, None, d_gates if of_gates else None, *found, *d_states


def _h_and_c_addresses(states: Sequence[Tensor | None]) -> tuple[int, int]:
    """h and c, 0 where there is none."""
    found = [*map(address, states), 0, 0]
    return found[0], found[1]
