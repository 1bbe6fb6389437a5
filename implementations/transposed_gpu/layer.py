"""One call of the transposed-layout layer, forward and backward: from the contract's tensors to theirs, by the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.padding import is_padding
from pytest_ecornn.implementations.transposed_gpu.buffers import (
    Form,
    Gradients,
    PseudoLayerBuffers,
    make_pseudo_layers,
    reserve,
)
from pytest_ecornn.implementations.transposed_gpu.steps import (
    StepLauncher,
    TrackWeights,
    gemm_single_rounding,
    layer_input,
    product,
)
from pytest_ecornn.reference.precision import fp32_precision

Tensors = list[Tensor]


class Plan:
    """How one case is run: the form, the steps, and the library (cublas, cublaslt) of the products."""

    def __init__(self, form: Form, library: str):
        self.form, self.library, self.steps = form, library, StepLauncher(form)
        names = list(cells.parameter_shapes(form.case))
        self._prepared: list[TrackWeights] = []
        self._places = [
            [names.index(name + suffix) if name + suffix in names else None for name in TrackWeights._fields]
            for _, _, suffix in cells.parameter_suffixes(form.case)
        ]

    @contextmanager
    def settings(self) -> Iterator[None]:
        """torch's global settings of matrix products as this plan wants them, put back afterwards."""
        if self.form.device.type != "cuda":
            yield
            return
        library = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library(self.library)
        try:
            with fp32_precision("matmul", self.form.case.precision):
                yield
        finally:
            torch.backends.cuda.preferred_blas_library(library)

    def weights(self, flat: Sequence[Tensor]) -> list[TrackWeights]:
        """The parameters of each track, from all of them in torch.nn's order."""
        of_tracks = [[None if place is None else flat[place] for place in places] for places in self._places]
        return [TrackWeights(*found) for found in of_tracks]  # type: ignore[arg-type]

    def prepare(self, flat: Sequence[Tensor]) -> None:
        """Makes operands of weights that will not change any more; of none where they may."""
        self._prepared = self.operands(flat) if flat else []

    def operands(self, flat: Sequence[Tensor]) -> list[TrackWeights]:
        """The parameters of each track as operands of products."""
        return self._prepared or [one.operands(self.form) for one in self.weights(flat)]

    def time_first(self, x: Tensor) -> Tensor:
        """[B, T, F] or [T, B, F] as the case lays it out -> [T, B, F], and back."""
        return x.transpose(0, 1) if self.form.case.batch_first else x


def run_forward(plan: Plan, x: Tensor, flat: Sequence[Tensor], state: Sequence[Tensor], lengths: Tensor | None) -> Tensors:
    """Output, final states, and in training what the backward pass needs: uint8.

    x, state: as the contract's layer takes them; lengths: on the device; flat: all parameters in torch.nn's order.
    """
    form = plan.form
    memory = reserve(form)
    own = make_pseudo_layers(form, memory)
    with plan.settings():
        weights = plan.operands(flat)
        _load_inputs(plan, own, x, weights, state)
        plan.steps.forward(own, weights, lengths)
    return [*_collect_outputs(plan, own, lengths), *([memory] if form.case.training else [])]


def _load_inputs(
    plan: Plan, own: Sequence[PseudoLayerBuffers], x: Tensor, weights: Sequence[TrackWeights], state: Sequence[Tensor]
) -> None:
    """Writes what the forward steps start from: the product of x and the initial states."""
    form, hidden = plan.form, plan.form.case.hidden_size
    for number, track in enumerate(own):
        track.h[:, :, hidden:].zero_()
        if state:
            track.h[track.initial_index, :, :hidden].copy_(state[0][number])
            track.state[track.initial_index].copy_(state[-1][number])
        else:
            track.h[track.initial_index].zero_()
            track.state[track.initial_index].zero_()
        if number < form.case.directions:
            if weights[number].weight_ih is None:
                width = slice(number * form.gates, (number + 1) * form.gates)
                track.gates[:, :, : form.gates].copy_(plan.time_first(x)[..., width])
            else:
                plan.steps.input_gemm(plan.time_first(x), weights[number], track, 0, form.case.steps)


def _collect_outputs(plan: Plan, own: Sequence[PseudoLayerBuffers], lengths: Tensor | None) -> Tensors:
    """Output and final states, in memory of their own."""
    form, case, hidden = plan.form, plan.form.case, plan.form.case.hidden_size
    output = torch.empty((*form.leading_dims, case.directions * hidden), dtype=form.storage, device=form.device)
    by_time = plan.time_first(output)
    for direction, track in enumerate(own[-case.directions :]):
        by_time[..., direction * hidden : (direction + 1) * hidden].copy_(track.output[..., :hidden])
    if lengths is not None:
        by_time.masked_fill_(is_padding(lengths, case.steps, batch_first=False), 0)
    final_states = [_stacked(form, [track.h[track.final_index, :, :hidden] for track in own])]
    if case.cell == "lstm":
        final_states.append(_stacked(form, [track.state[track.final_index] for track in own]))
    return [output, *final_states]


def _stacked(form: Form, of_tracks: Sequence[Tensor]) -> Tensor:
    """[L*D, B, H], contiguous, of the storage type."""
    out = torch.empty((len(of_tracks), *of_tracks[0].shape), dtype=form.storage, device=form.device)
    for place, one in zip(out, of_tracks, strict=True):
        place.copy_(one)
    return out


def run_backward(
    plan: Plan, d_output: Tensor, d_finals: Sequence[Tensor], x: Tensor, flat: Sequence[Tensor], memory: Tensor,
    lengths: Tensor | None,
) -> Tensors:  # fmt: skip
    """The gradients of x, of the initial states where there are any, and of all parameters in torch.nn's order."""
    form, case = plan.form, plan.form.case
    own, gradients = make_pseudo_layers(form, memory), [Gradients(form) for _ in range(form.num_pseudo_layers)]
    by_time = plan.time_first(d_output)
    for number, one in enumerate(gradients):
        one.passed[0].copy_(d_finals[0][number])
        one.d_cell[0].copy_(d_finals[-1][number])
        if (direction := number - form.num_pseudo_layers + case.directions) >= 0:
            one.d_output.copy_(by_time[..., direction * case.hidden_size : (direction + 1) * case.hidden_size])
    with plan.settings():
        weights = plan.operands(flat)
        plan.steps.backward(own, weights, gradients, lengths)
        d_state = _gradients_of_state(form, gradients) if case.has_state else []
        return [_gradient_of_x(plan, gradients, weights), *d_state, *_gradients_of_weights(plan, own, gradients, x, flat)]


def _gradients_of_state(form: Form, gradients: Sequence[Gradients]) -> Tensors:
    hidden = form.case.hidden_size
    found = [_stacked(form, [one.passed[0] + one.product[0, :, :hidden] for one in gradients])]
    return [*found, _stacked(form, [one.d_cell[0] for one in gradients])] if form.case.cell == "lstm" else found


def _gradients_of_weights(
    plan: Plan, own: Sequence[PseudoLayerBuffers], gradients: Sequence[Gradients], x: Tensor, flat: Sequence[Tensor]
) -> Tensors:
    """One product over all steps for each weight; the tracks side by side."""
    form, case = plan.form, plan.form.case
    found = [torch.empty_like(weight, memory_format=torch.contiguous_format) for weight in flat]
    with plan.steps.streams.fork_join():
        for number, into in enumerate(plan.weights(found)):
            with plan.steps.streams.on(number):
                d_x, d_h = (
                    g[..., : form.gates].flatten(0, 1) for g in (gradients[number].d_gates_x, gradients[number].d_gates_h)
                )
                gemm_single_rounding(form, d_h.T, own[number].h_before[..., : case.hidden_size].flatten(0, 1), into.weight_hh)
                if into.bias_hh is not None:
                    torch.sum(d_h, 0, out=into.bias_hh)
                if into.bias_ih is not None:
                    torch.sum(d_x, 0, out=into.bias_ih)
                if into.weight_ih is not None:
                    inputs = plan.time_first(x) if number < case.directions else layer_input(form, own, number)
                    gemm_single_rounding(form, d_x.T, inputs[..., : into.weight_ih.shape[1]].flatten(0, 1), into.weight_ih)
    return found


def _gradient_of_x(plan: Plan, gradients: Sequence[Gradients], weights: Sequence[TrackWeights]) -> Tensor:
    """Laid out as x: [T, B, I], or [T, B, D*G*H] where x is projected."""
    form, case = plan.form, plan.form.case
    given = [(one.d_gates_x, by.weight_ih) for one, by in zip(gradients[: case.directions], weights, strict=False)]
    if case.projected:
        d_x = torch.empty((*form.leading_dims, case.directions * form.gates), dtype=form.storage, device=form.device)
        plan.time_first(d_x).copy_(torch.cat([d_gates[..., : form.gates] for d_gates, _ in given], -1))
        return d_x
    pieces = []
    for d_gates, weight in given:
        assert weight is not None
        out = torch.empty(case.steps * case.batch, weight.shape[1], dtype=form.compute, device=form.device)
        pieces.append(product(d_gates.flatten(0, 1), weight, out))
    total = sum(pieces[1:], pieces[0]).to(form.storage)
    return plan.time_first(total[:, : case.input_size].view(case.steps, case.batch, case.input_size)).contiguous()
