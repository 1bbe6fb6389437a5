"""Products with a packed matrix in Numba kernels: a panel of 32 outputs by a few rows, its sums in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pytest_ecornn.implementations._cpu.compile import inline
from pytest_ecornn.implementations._cpu.memory import BITS, FLOATS, at, computed, lane_type, widen
from pytest_ecornn.implementations.fused_cpu.layout import DEPTH, PANEL

_PANEL = ir.Constant(BITS[64], PANEL)


def _product(rows: int) -> Any:
    """The product of `rows` rows with a panel."""

    @intrinsic
    def product(
        typingctx: Any,
        weights: Any,
        depth: Any,
        x: Any,
        x_stride: Any,
        first: Any,
        first_stride: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        element, kind = weights.dtype, computed(weights.dtype)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # Eight vectors of 32 bytes hold the sums: fewer would wait for each other, and more would not fit beside the rest.
            lanes = min(PANEL, 8 * 32 * 8 // kind.bitwidth // max(rows, 2))
            for start in range(0, PANEL, lanes):
                _emit(builder, element, kind, args, rows, start, lanes)
            return context.get_dummy_value()

        size = types.int64
        return types.none(weights, size, x, size, first, size, out, size), codegen

    return product


def _emit(builder: Any, element: Any, kind: Any, args: Sequence[Any], rows: int, start: int, lanes: int) -> None:
    """Emits out[row, start : start + lanes] = first[row, ..] + sum over k of x[row, k] weights[k, ..]."""
    weights, depth, x, x_stride, first, first_stride, out, out_stride = args
    scalar, word = FLOATS[kind.bitwidth], BITS[64]
    vector = lane_type(scalar, lanes)
    partial = 2 if rows == 1 else 1  # sums of a row, of even and odd inputs
    raw = scalar if isinstance(element, types.Float) else ir.IntType(element.bitwidth)
    sums = [[cgutils.alloca_once(builder, vector) for _ in range(partial)] for _ in range(rows)]
    starts = [builder.gep(x, [builder.mul(ir.Constant(word, row), x_stride)], inbounds=True) for row in range(rows)]

    def vector_at(base: Any, index: Any, of: Any, bytes_of: int) -> Any:
        address = builder.gep(base, [builder.add(index, ir.Constant(word, start))], inbounds=True)
        return builder.load(builder.bitcast(address, ir.PointerType(of)), align=bytes_of)

    for row, parts in enumerate(sums):
        given = vector_at(first, builder.mul(ir.Constant(word, row), first_stride), vector, kind.bitwidth // 8)
        builder.store(given, parts[0])
        for other in parts[1:]:
            builder.store(ir.Constant(vector, [0.0] * lanes), other)
    with cgutils.for_range_slice(builder, ir.Constant(word, 0), depth, ir.Constant(word, DEPTH)) as (k, _):
        for step in range(DEPTH):
            index = builder.add(k, ir.Constant(word, step))
            loaded = vector_at(weights, builder.mul(index, _PANEL), lane_type(raw, lanes), element.bitwidth // 8)
            weight = widen(builder, element, loaded, lanes)
            for row, parts in enumerate(sums):
                value = builder.load(builder.gep(starts[row], [index], inbounds=True))
                added = builder.fmul(_broadcast(builder, value, vector), weight, flags=("contract",))
                place = parts[step % partial]
                builder.store(builder.fadd(builder.load(place), added, flags=("contract",)), place)
    for row, parts in enumerate(sums):
        total = builder.load(parts[0])
        for other in parts[1:]:
            total = builder.fadd(total, builder.load(other))
        place = builder.add(builder.mul(ir.Constant(word, row), out_stride), ir.Constant(word, start))
        address = builder.bitcast(builder.gep(out, [place], inbounds=True), ir.PointerType(vector))
        builder.store(total, address, align=kind.bitwidth // 8)


def _broadcast(builder: Any, value: Any, vector: Any) -> Any:
    none = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(none, value, ir.Constant(BITS[32], 0))
    return builder.shuffle_vector(one, none, ir.Constant(lane_type(BITS[32], vector.count), [0] * vector.count))


_product_1, _product_2, _product_4 = _product(1), _product(2), _product(4)


@inline
def multiply(
    weights: Any, outputs: int, depth: int, x: Any, x_stride: int, first: Any, first_stride: int, out: Any, out_stride: int,
    rows: int,
) -> None:  # fmt: skip
    """out[row] = first[row] + W x[row] for whole panels. weights: packed. depth: K'. first_stride: 0 for one of all rows."""
    for panel in range((outputs + PANEL - 1) // PANEL):
        own, given, target = at(weights, panel * depth * PANEL), at(first, panel * PANEL), at(out, panel * PANEL)
        row = 0
        while row + 4 <= rows:
            _product_4(
                own, depth, at(x, row * x_stride), x_stride, at(given, row * first_stride), first_stride,
                at(target, row * out_stride), out_stride,
            )  # fmt: skip
            row += 4
        if row + 2 <= rows:
            _product_2(
                own, depth, at(x, row * x_stride), x_stride, at(given, row * first_stride), first_stride,
                at(target, row * out_stride), out_stride,
            )  # fmt: skip
            row += 2
        if row < rows:
            _product_1(
                own, depth, at(x, row * x_stride), x_stride, at(given, row * first_stride), first_stride,
                at(target, row * out_stride), out_stride,
            )  # fmt: skip
