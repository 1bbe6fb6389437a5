"""The steps of the transposed-layout layer: per step one product by cuBLAS and one kernel for all gates, layers in a wavefront.

Layer l runs a chunk of steps while layer l - 1 runs the next, each on its own stream; both directions of a layer run side by
side. Source: EcoRNN (arXiv 1805.08899); wavefront: Appleyard et al., arXiv 1604.01946.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isqrt
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.implementations._common import long_sums
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.implementations._cuda.kernel import Kernel, TensorArg, one_thread_per_element
from pytest_ecornn.implementations.transposed_gpu.buffers import Form, Gradients, PseudoLayerBuffers

_SOURCE = Path(__file__).parent / "kernels" / "pointwise.cu"
_MAX_CHUNK_STEPS = 16


class TrackWeights(NamedTuple):
    """A track's parameters, storage type. weight_ih [G*H, I] (None where x is projected), weight_hh [G*H, H], biases [G*H].

    As operands both weights are padded with zeros, see `operand`.
    """

    weight_ih: Tensor | None
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def operands(self, form: Form) -> TrackWeights:
        weight_ih = None if self.weight_ih is None else operand(form, self.weight_ih)
        return self._replace(weight_ih=weight_ih, weight_hh=operand(form, self.weight_hh))


def operand(form: Form, matrix: Tensor) -> Tensor:
    """A weight [G*H, K] with zeros after its rows and columns, as many as tensor cores want; itself where that is none."""
    rows, width = form.gate_features - form.gates, form.padded(matrix.shape[1]) - matrix.shape[1]
    return pad(matrix, (0, width, 0, rows)) if rows or width else matrix


def operand_rows(form: Form, x: Tensor) -> Tensor:
    """[T, B, K] -> [T*B, K], K padded as `operand` does."""
    width = form.padded(x.shape[2]) - x.shape[2]
    return (pad(x, (0, width)) if width else x).reshape(-1, x.shape[2] + width)


def layer_input(form: Form, tracks: Sequence[PseudoLayerBuffers], number: int) -> Tensor:
    """Input of a track above the first layer: the outputs of the layer below, [T, B, D*H], for D = 1 with h's padding."""
    directions = form.case.directions
    layer_below = number // directions * directions - directions
    if directions == 1:
        return tracks[layer_below].output
    return torch.cat(
        [track.output[..., : form.case.hidden_size] for track in tracks[layer_below : layer_below + directions]], -1
    )


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """out = a b, accumulated in out's dtype or wider; strides are heeded, nothing is copied."""
    if a.dtype == out.dtype:
        return long_sums.mm(a, b, out=out)
    summed = long_sums.summed_terms(a)
    torch.ops.aten.mm.dtype_out(a[:, :summed], b[:summed], out.dtype, out=out)
    return out if summed == a.shape[1] else out.add_(product(a[:, summed:], b[summed:], torch.empty_like(out)))


def gemm_single_rounding(form: Form, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """out = a b, summed in the compute type and rounded once.

    cuBLAS may split a long sum and add the parts in out's dtype: in float16 a part may overflow where the whole does not.
    """
    if out.dtype == form.compute:
        return product(a, b, out)
    return out.copy_(product(a, b, torch.empty(out.shape, dtype=form.compute, device=out.device)))


def kernels(form: Form) -> tuple[Kernel, Kernel]:
    """The forward and the backward step."""
    case, compute, storage = form.case, form.compute, form.storage
    cell = NN_CELLS.index(case.cell)
    flags = {
        "BATCH_MINOR": form.is_batch_minor, "SAVE_GATES": case.training,
        "WIDE_OFFSETS": form.largest_array >= 2**31, f"STORAGE_{case.dtype.upper()}": True,
    }  # fmt: skip
    macros = (("CELL", str(cell)), *((name, str(int(is_set))) for name, is_set in flags.items()))
    step = case.batch * case.hidden_size
    gates = TensorArg(compute, case.steps * case.batch * form.saved)
    state, h = TensorArg(compute, (case.steps + 1) * step), TensorArg(storage, (case.steps + 1) * case.batch * form.h_features)
    d_gates = TensorArg(storage, case.steps * case.batch * form.gate_features)
    bias, lengths = TensorArg(storage, form.gates, is_optional=True), TensorArg(torch.int64, case.batch, is_optional=True)
    a_step = TensorArg(compute, step)
    product_of_h, product_of_d = (
        TensorArg(compute, case.batch * features, is_optional=True) for features in (form.gate_features, form.h_features)
    )
    numbers: dict[str, TensorArg | type[int]] = dict.fromkeys(
        ("t", "steps", "batch", "hidden", "h_features", "gate_features", "reverse"), int
    )
    forward: dict[str, TensorArg | type[int]] = {
        "gates": gates, "recurrent": product_of_h, "bias_ih": bias, "bias_hh": bias, "state": state,
        "h": h, "lengths": lengths, **numbers,
    }  # fmt: skip
    backward: dict[str, TensorArg | type[int]] = {
        "gates": gates, "state": state, "d_output": TensorArg(compute, case.steps * step),
        "dh_recurrent": product_of_d, "dh_carry": a_step, "dc_carry": a_step, "d_gates_x": d_gates,
        "d_gates_h": d_gates, "lengths": lengths, **numbers,
    }  # fmt: skip
    return (
        Kernel(_SOURCE, "step_forward", (*macros, ("BACKWARD", "0")), forward, form.device),
        Kernel(_SOURCE, "step_backward", (*macros, ("BACKWARD", "1")), backward, form.device),
    )


class Streams:
    """A stream for each track but the first, which runs on the current one. On a device without streams all run in turn."""

    def __init__(self, form: Form):
        self._streams = (
            [torch.cuda.Stream(form.device) for _ in range(form.num_pseudo_layers - 1)] if form.device.type == "cuda" else []
        )

    @contextmanager
    def fork_join(self) -> Iterator[None]:
        """Within it, work on the streams follows what came before; after it, all of it has been waited for."""
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream())
        yield
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)

    @contextmanager
    def on(self, track: int) -> Iterator[None]:
        if track and self._streams:
            with torch.cuda.stream(self._streams[track - 1]):
                yield
        else:
            yield

    def record_event(self) -> torch.cuda.Event | None:
        """A mark after what was launched on the current stream so far."""
        return torch.cuda.current_stream().record_event() if self._streams else None

    def wait(self, event: torch.cuda.Event | None) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


class StepLauncher:
    """Launches the steps of all tracks of a form. All weights are given as operands."""

    def __init__(self, form: Form):
        self.form, self.streams = form, Streams(form)
        self._forward, self._backward = kernels(form)
        case = form.case
        self._launch = one_thread_per_element(case.batch * case.hidden_size)
        self._sizes = {
            "steps": case.steps, "batch": case.batch, "hidden": case.hidden_size, "h_features": form.h_features,
            "gate_features": form.gate_features,
        }  # fmt: skip
        is_wavefront = case.layers > 1 and case.directions == 1
        self._chunk = min(_MAX_CHUNK_STEPS, max(1, isqrt(case.steps))) if is_wavefront else case.steps

    def _chunks(self) -> list[tuple[int, int]]:
        """First step and the one after the last, in rising order."""
        steps = self.form.case.steps
        return [(start, min(steps, start + self._chunk)) for start in range(0, steps, self._chunk)]

    def forward(self, tracks: Sequence[PseudoLayerBuffers], weights: Sequence[TrackWeights], lengths: Tensor | None) -> None:
        """The gates of the first layer hold x's product; all other arrays are filled."""
        form, directions = self.form, self.form.case.directions
        results = [form.empty(1, form.gate_features, form.compute) for _ in tracks]
        events: dict[int, torch.cuda.Event | None] = {}
        with self.streams.fork_join():
            for start, end in self._chunks():
                for number, track in enumerate(tracks):
                    layer_below = number // directions * directions - directions
                    with self.streams.on(number):
                        if layer_below >= 0:
                            for other in range(layer_below, layer_below + directions):
                                self.streams.wait(events[other])
                            self.input_gemm(layer_input(form, tracks, number)[start:end], weights[number], track, start, end)
                        self._run_forward(track, weights[number], results[number], lengths, start, end)
                        events[number] = self.streams.record_event()

    def input_gemm(self, x: Tensor, weights: TrackWeights, track: PseudoLayerBuffers, start: int, end: int) -> None:
        """The product of the layer's input x [end - start, B, I] into the gates of these steps."""
        assert weights.weight_ih is not None
        target = track.gates[start:end, :, : self.form.gates].flatten(0, 1)
        product(operand_rows(self.form, x), weights.weight_ih[: self.form.gates].T, target)

    def _run_forward(
        self, track: PseudoLayerBuffers, weights: TrackWeights, result: Tensor, lengths: Tensor | None, start: int, end: int
    ) -> None:
        case = self.form.case
        begin = case.steps - 1 if track.is_reverse else 0
        for t in range(end - 1, start - 1, -1) if track.is_reverse else range(start, end):
            is_zero = t == begin and not case.has_state
            if not is_zero:
                product(track.h_before[t], weights.weight_hh.T, result[0])
            self._forward(
                self._launch, gates=track.gates, recurrent=None if is_zero else result, bias_ih=weights.bias_ih,
                bias_hh=weights.bias_hh, state=track.state, h=track.h, lengths=lengths, t=t, reverse=int(track.is_reverse),
                **self._sizes,
            )  # fmt: skip

    def backward(
        self,
        tracks: Sequence[PseudoLayerBuffers],
        weights: Sequence[TrackWeights],
        gradients: Sequence[Gradients],
        lengths: Tensor | None,
    ) -> None:
        """The last layer's d_output, and what is passed to every final state, are given; all other gradients are filled.

        Afterwards `passed` plus `product` is the gradient of the initial h, `d_cell` that of the initial c.
        """
        directions = self.form.case.directions
        events: dict[int, torch.cuda.Event | None] = {}
        with self.streams.fork_join():
            for start, end in reversed(self._chunks()):
                for number in range(len(tracks) - 1, -1, -1):
                    above = range((number // directions + 1) * directions, (number // directions + 2) * directions)
                    with self.streams.on(number):
                        if above.start < len(tracks):
                            for other in above:
                                self.streams.wait(events[other])
                            given = [(gradients[other].d_gates_x[start:end], weights[other].weight_ih) for other in above]
                            self.output_gradient(given, number % directions, gradients[number].d_output[start:end])
                        self._run_backward(tracks[number], weights[number], gradients[number], lengths, start, end)
                        events[number] = self.streams.record_event()

    def output_gradient(self, given: Sequence[tuple[Tensor, Tensor | None]], direction: int, d_output: Tensor) -> None:
        """The gradient of a track's output, from the gates and the weights of the layer above."""
        hidden, target = self.form.case.hidden_size, d_output.flatten(0, 1)
        for number, (d_gates, weight) in enumerate(given):
            assert weight is not None
            width = weight[:, direction * hidden : (direction + 1) * hidden]
            if number == 0:
                product(d_gates.flatten(0, 1), width, target)
            else:
                target += product(d_gates.flatten(0, 1), width, torch.empty_like(target))

    def _run_backward(
        self,
        track: PseudoLayerBuffers,
        weights: TrackWeights,
        gradients: Gradients,
        lengths: Tensor | None,
        start: int,
        end: int,
    ) -> None:
        case = self.form.case
        begin, last = (0, case.steps - 1) if track.is_reverse else (case.steps - 1, 0)
        for t in range(start, end) if track.is_reverse else range(end - 1, start - 1, -1):
            self._backward(
                self._launch, gates=track.gates, state=track.state, d_output=gradients.d_output,
                dh_recurrent=None if t == begin else gradients.product, dh_carry=gradients.passed, dc_carry=gradients.d_cell,
                d_gates_x=gradients.d_gates_x, d_gates_h=gradients.d_gates_h, lengths=lengths, t=t,
                reverse=int(track.is_reverse), **self._sizes,
            )  # fmt: skip
            if t != last or case.has_state:
                product(gradients.d_gates_h[t], weights.weight_hh, gradients.product[0])
