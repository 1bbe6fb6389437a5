"""One time step of a stack of layers a call, for audio, control and policies: no dispatcher, no autograd, no allocation."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pytest_ecornn.implementations._cpu.threads import c_function
from pytest_ecornn.implementations.fused_cpu.fields import C0, CN, H0, HN, NEXT, OUT, X
from pytest_ecornn.implementations.fused_cpu.layout import Packed, packed_in, work_elements
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence, Rows, States

_NUMPY_DTYPES = {torch.float32: np.dtype("float32"), torch.float64: np.dtype("float64"), torch.float16: np.dtype("float16")}
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class StreamOptions(NamedTuple):
    """What a stream runs. dtype: of inputs, outputs and states. weight_dtype: in which packed weights lie; int8 has scales."""

    cell: str
    input_size: int
    hidden_size: int
    layers: int
    batch: int
    dtype: torch.dtype
    weight_dtype: torch.dtype


class Stream:
    """Steps of a recurrent module in one direction: `output, state = stream(x, state)`.

    It has the weights of the moment it was made; `update` reads them again. It runs on the calling thread. Threads need a
    stream each. Dropout is off. After `warm_up` a call with `out`, or one of `bound`, takes no lock, compiles nothing and
    allocates no array.
    """

    _packed: list[Packed]

    def __init__(self, options: StreamOptions, weights: Callable[[], Mapping[str, Tensor]]):
        """weights: called for torch.nn's parameters. Raises ValueError for sizes, dtypes and devices that no stream has."""
        if options.batch < 1:
            raise ValueError(f"expected batch as 1 or more, got {options.batch}")
        if options.weight_dtype not in (*_DTYPES, torch.int8) or options.dtype not in _DTYPES:
            names = ", ".join(str(dtype) for dtype in _DTYPES)
            raise ValueError(
                f"expected dtypes among {names}, and torch.int8 of weights, got {options.dtype} and weights of "
                f"{options.weight_dtype}"
            )
        compute, of_weights = (torch.promote_types(one, torch.float32) for one in (options.dtype, options.weight_dtype))
        if compute != of_weights:
            raise ValueError(f"expected weights that are computed in {compute}, got {options.weight_dtype}")
        self._options, self._weights = options, weights
        hidden, batch, dtype = options.hidden_size, options.batch, options.dtype
        self._has_c, self._numpy_dtype = options.cell == "lstm", _NUMPY_DTYPES.get(dtype)
        self._x_shape, self._y_shape = (batch, options.input_size), (batch, hidden)
        self._state_shape, self._track_bytes = (options.layers, batch, hidden), batch * hidden * dtype.itemsize
        self._between = [torch.empty(batch, hidden, dtype=dtype, device="cpu") for _ in range(options.layers - 1)]
        self._recurrence = Recurrence(
            options.cell, hidden, dtype, dtype, batch_first=False, reverse=False, threads=1, weight_dtype=options.weight_dtype
        )
        widest = max(options.input_size, hidden if options.layers > 1 else 0)
        gates = self._recurrence.gates
        self._work = torch.empty(work_elements(batch, hidden, widest, gates), dtype=self._recurrence.compute, device="cpu")
        self._packed = []
        self.update()
        self._kernel, self._fields = c_function(self._recurrence.forward_kernel), self._make_fields()

    def update(self) -> None:
        """Reads the weights again, into the memory that calls read them from. Not while another thread calls."""
        with torch.no_grad():
            weights = self._weights()
            if any(not weight.is_cpu for weight in weights.values()):
                raise ValueError(f"expected parameters on the CPU, got {next(iter(weights.values())).device}")
            packed = [self._pack(weights, f"_l{layer}") for layer in range(self._options.layers)]
            for own, new in zip(self._packed, packed, strict=bool(self._packed)):
                for target, source in zip(own[:-1], new[:-1], strict=True):
                    if target is not None and source is not None:
                        target.copy_(source)
        self._packed = self._packed or packed

    def _pack(self, weights: Mapping[str, Tensor], suffix: str) -> Packed:
        """A layer's weights; without W_hh of a cell that has none."""
        given = (weights.get(name + suffix) for name in ("weight_hh", "bias_hh", "weight_ih", "bias_ih"))
        own = (None if one is None else one.to(self._recurrence.compute) for one in given)
        return packed_in(self._options.weight_dtype, *own)

    def _make_fields(self) -> list[array[int]]:
        """The fields of each layer's launch, but for what a call is given."""
        batch, hidden = self._options.batch, self._options.hidden_size
        layers = [
            self._recurrence.fields(
                1, batch, batch, inputs, self._work, packed, Rows(0, 0, inputs), Rows(0, 0, hidden), States()
            )
            for inputs, packed in zip([self._options.input_size, *[hidden] * len(self._between)], self._packed, strict=True)
        ]
        for earlier, later, between in zip(layers[:-1], layers[1:], self._between, strict=True):
            earlier[OUT] = later[X] = between.data_ptr()
        return layers

    def warm_up(self) -> Stream:
        """Runs a step on zeros, and returns the stream."""
        self(torch.zeros(self._x_shape, dtype=self._options.dtype, device="cpu"))
        return self

    def __call__(self, x: Any, state: Any = None, out: Any = None) -> Any:
        """The output [B, H] and the next state, h or (h, c) of [L, B, H]: arrays where x is one, else tensors.

        x: [B, I]. state: as returned, None for zeros. out: the output and the state to write, which may be `state` itself.
        All are tensors on the CPU or NumPy arrays, contiguous, of the module's dtype. Gradients do not pass. Raises ValueError
        for other shapes, dtypes and layouts.
        """
        y, next_state = self._fresh(x) if out is None else out
        self._set(self._fields, x, state, y, next_state)
        for fields in self._fields:
            fields[NEXT] = 0
            self._kernel(fields.buffer_info()[0])
        return y, next_state

    def bound(self, x: Any, out: Any) -> Callable[[], None]:
        """A function of no arguments that runs a step: it reads x, and `out` is the output and the state that goes on.

        The function reads and writes the same memory in each call, and checks nothing. Fill the state before the first.
        """
        y, state = out
        all_fields = self._make_fields()
        self._set(all_fields, x, state, y, state)
        kernel, launches = self._kernel, [(fields.buffer_info()[0], fields) for fields in all_fields]

        def step(arrays: tuple[Any, ...] = (self, x, y, state)) -> None:
            """arrays: what must live as long as the function."""
            for address, fields in launches:
                fields[NEXT] = 0
                kernel(address)

        return step

    def _set(self, all_fields: list[array[int]], x: Any, state: Any, y: Any, next_state: Any) -> None:
        """Writes the addresses of a call into the layers' fields. Raises ValueError where something does not fit."""
        shape, size, address = self._state_shape, self._track_bytes, self._address
        all_fields[0][X], all_fields[-1][OUT] = address(x, self._x_shape, "x"), address(y, self._y_shape, "output")
        if self._has_c:
            (h_next, c_next), (h, c) = next_state, (None, None) if state is None else state
            c0, cn = 0 if c is None else address(c, shape, "c"), address(c_next, shape, "c")
            for layer, fields in enumerate(all_fields):
                fields[C0], fields[CN] = c0 and c0 + layer * size, cn + layer * size
        else:
            h_next, h = next_state, state
        h0, hn = 0 if h is None else address(h, shape, "h"), address(h_next, shape, "h")
        for layer, fields in enumerate(all_fields):
            fields[H0], fields[HN] = h0 and h0 + layer * size, hn + layer * size

    def _fresh(self, x: Any) -> tuple[Any, Any]:
        """An output and a state to write."""
        shapes = [self._y_shape, *[self._state_shape] * (1 + self._has_c)]
        arrays: list[Any]
        if isinstance(x, Tensor) or self._numpy_dtype is None:
            arrays = [torch.empty(shape, dtype=self._options.dtype, device="cpu") for shape in shapes]
        else:
            arrays = [np.empty(shape, self._numpy_dtype) for shape in shapes]
        return arrays[0], tuple(arrays[1:]) if self._has_c else arrays[1]

    def _address(self, values: Any, shape: tuple[int, ...], name: str) -> int:
        if isinstance(values, Tensor):
            if (
                values.dtype is self._options.dtype
                and values.shape == shape
                and values.is_contiguous()
                and values.is_cpu
                and not values.is_neg()
            ):
                return values.data_ptr()
        elif isinstance(values, np.ndarray) and values.dtype == self._numpy_dtype and values.shape == shape:
            address: int = values.__array_interface__["data"][0]
            if values.flags.c_contiguous:
                return address
        raise ValueError(self._expectation(values, shape, name))

    def _expectation(self, values: Any, shape: tuple[int, ...], name: str) -> str:
        kind = f"{type(values).__name__} {tuple(getattr(values, 'shape', ()))} of {getattr(values, 'dtype', 'no dtype')}"
        return f"expected {name} as {shape} of {self._options.dtype}, contiguous on the CPU, got {kind}"


def make_stream(module: nn.Module, cell: str, names: Sequence[str], batch: int, weight_dtype: torch.dtype | None) -> Stream:
    """A stream of a module of one direction. names: of its parameters, which are of one dtype."""

    def weights() -> dict[str, Tensor]:
        return {name: getattr(module, name) for name in names}  # computed where parametrized

    dtype = weights()["weight_ih_l0"].dtype
    sizes = module.input_size, module.hidden_size, module.num_layers
    options = StreamOptions(cell, *sizes, batch, dtype, weight_dtype or torch.promote_types(dtype, torch.float32))  # type: ignore[arg-type]
    return Stream(options, weights)
