"""Products with a matrix in Numba kernels, their sums in registers.

A packed one (layout.py) is read in panels of 32 outputs, by up to four rows of inputs at once. One as torch has it, [N, K], is
read in rows along K, by one row of inputs: for calls so short that packing would take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pytest_ecornn.implementations._cpu.compile import inline
from pytest_ecornn.implementations._cpu.lanes import VECTOR_BYTES
from pytest_ecornn.implementations._cpu.memory import (
    BITS,
    FLOATS,
    at,
    computed,
    constant_like,
    lane_type,
    load,
    load_lanes,
    store,
)
from pytest_ecornn.implementations.fused_cpu.layout import DEPTH, PANEL

_PANEL = ir.Constant(BITS[64], PANEL)
_SUM_BITS = 8 * 8 * (64 if binding.get_host_cpu_features().get("avx512f") else 32)  # of eight registers


def _product(rows: int) -> Any:
    """The product of `rows` rows with a panel."""

    @intrinsic
    def product(
        typingctx: Any,
        weights: Any,
        scales: Any,
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
            # Eight registers hold the sums: fewer would wait for each other, and more would not fit beside the rest.
            lanes = min(PANEL, _SUM_BITS // kind.bitwidth // max(rows, 2))
            for start in range(0, PANEL, lanes):
                _emit(builder, element, kind, args, rows, start, lanes)
            return context.get_dummy_value()

        size = types.int64
        return types.none(weights, scales, size, x, size, first, size, out, size), codegen

    return product


def _emit(builder: Any, element: Any, kind: Any, args: Sequence[Any], rows: int, start: int, lanes: int) -> None:
    """Emits out[row, start : start + lanes] = first[row, ..] + sum over k of x[row, k] weights[k, ..].

    The sum of int8 weights is multiplied by scales[..] before `first` is added.
    """
    weights, scales, depth, x, x_stride, first, first_stride, out, out_stride = args
    is_scaled = element is types.int8
    word, vector = BITS[64], lane_type(FLOATS[kind.bitwidth], lanes)
    partial = 2 if rows == 1 else 1  # sums of a row, of even and odd inputs
    sums = [[cgutils.alloca_once(builder, vector) for _ in range(partial)] for _ in range(rows)]
    starts = [builder.gep(x, [builder.mul(ir.Constant(word, row), x_stride)], inbounds=True) for row in range(rows)]

    def load_part(of: Any, base: Any, index: Any) -> Any:
        return load_lanes(builder, of, base, builder.add(index, ir.Constant(word, start)), lanes)

    def load_first(row: int) -> Any:
        return load_part(kind, first, builder.mul(ir.Constant(word, row), first_stride))

    zeros = ir.Constant(vector, [0.0] * lanes)
    for row, parts in enumerate(sums):
        builder.store(zeros if is_scaled else load_first(row), parts[0])
        for other in parts[1:]:
            builder.store(zeros, other)
    with cgutils.for_range_slice(builder, ir.Constant(word, 0), depth, ir.Constant(word, DEPTH)) as (k, _):
        for step in range(DEPTH):
            index = builder.add(k, ir.Constant(word, step))
            weight = load_part(element, weights, builder.mul(index, _PANEL))
            for row, parts in enumerate(sums):
                value = builder.load(builder.gep(starts[row], [index], inbounds=True))
                added = builder.fmul(_broadcast(builder, value, vector), weight, flags=("contract",))
                place = parts[step % partial]
                builder.store(builder.fadd(builder.load(place), added, flags=("contract",)), place)
    for row, parts in enumerate(sums):
        total = builder.load(parts[0])
        for other in parts[1:]:
            total = builder.fadd(total, builder.load(other))
        if is_scaled:
            total = builder.fmul(total, load_part(kind, scales, ir.Constant(word, 0)), flags=("contract",))
            total = builder.fadd(total, load_first(row), flags=("contract",))
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
    weights: Any, scales: Any, outputs: int, depth: int, x: Any, x_stride: int, first: Any, first_stride: int, out: Any,
    out_stride: int, rows: int,
) -> None:  # fmt: skip
    """out[row] = first[row] + W x[row] for whole panels. weights: packed. depth: K'. first_stride: 0 for one of all rows.

    scales: of the outputs of int8 weights, else not read.
    """
    for panel in range((outputs + PANEL - 1) // PANEL):
        own, given, target = at(weights, panel * depth * PANEL), at(first, panel * PANEL), at(out, panel * PANEL)
        own_scales = at(scales, panel * PANEL)
        row = 0
        while row + 4 <= rows:
            _product_4(
                own, own_scales, depth, at(x, row * x_stride), x_stride, at(given, row * first_stride), first_stride,
                at(target, row * out_stride), out_stride,
            )  # fmt: skip
            row += 4
        if row + 2 <= rows:
            _product_2(
                own, own_scales, depth, at(x, row * x_stride), x_stride, at(given, row * first_stride), first_stride,
                at(target, row * out_stride), out_stride,
            )  # fmt: skip
            row += 2
        if row < rows:
            _product_1(
                own, own_scales, depth, at(x, row * x_stride), x_stride, at(given, row * first_stride), first_stride,
                at(target, row * out_stride), out_stride,
            )  # fmt: skip


@intrinsic
def _dots(typingctx: Any, weights: Any, stride: Any, depth: Any, x: Any, out: Any) -> Any:
    """Adds to out[n] the dot product of x [K] and row n of the weights, for as many rows as a vector has lanes."""
    element, kind = weights.dtype, computed(weights.dtype)
    lanes = VECTOR_BYTES * 8 // kind.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights, stride, depth, x, out = args
        word, vector = BITS[64], lane_type(FLOATS[kind.bitwidth], lanes)
        rows = [builder.gep(weights, [builder.mul(ir.Constant(word, row), stride)], inbounds=True) for row in range(lanes)]
        sums = [cgutils.alloca_once(builder, vector) for _ in rows]

        def add(place: Any, left: Any, right: Any) -> None:
            product = builder.fmul(left, right, flags=("contract",))
            builder.store(builder.fadd(builder.load(place), product, flags=("contract",)), place)

        for place in sums:
            builder.store(ir.Constant(vector, [0.0] * lanes), place)
        whole = builder.mul(builder.udiv(depth, ir.Constant(word, lanes)), ir.Constant(word, lanes))
        with cgutils.for_range_slice(builder, ir.Constant(word, 0), whole, ir.Constant(word, lanes)) as (k, _):
            values = load_lanes(builder, kind, x, k, lanes)
            for row, place in zip(rows, sums, strict=True):
                add(place, load_lanes(builder, element, row, k, lanes), values)
        total = cgutils.alloca_once(builder, vector)
        given = load_lanes(builder, kind, out, ir.Constant(word, 0), lanes)
        builder.store(builder.fadd(given, _sums_of(builder, [*map(builder.load, sums)])), total)
        with cgutils.for_range_slice(builder, whole, depth, ir.Constant(word, 1)) as (k, _):
            column = ir.Constant(vector, ir.Undefined)
            for lane, row in enumerate(rows):
                column = builder.insert_element(column, load_lanes(builder, element, row, k, 1), ir.Constant(BITS[32], lane))
            add(total, column, _broadcast(builder, load_lanes(builder, kind, x, k, 1), vector))
        target = builder.bitcast(out, ir.PointerType(vector))
        builder.store(builder.load(total), target, align=kind.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(weights, types.int64, types.int64, x, out), codegen


def _sums_of(builder: Any, vectors: list[Any]) -> Any:
    """A vector of the sums of as many vectors as each has lanes: pairs of neighbours are added until one is left."""
    lanes = len(vectors)
    even, odd = (ir.Constant(lane_type(BITS[32], lanes), [2 * lane + offset for lane in range(lanes)]) for offset in (0, 1))
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd)) for a, b in pairs]
    return vectors[0]


@intrinsic
def _lanes_of(typingctx: Any, start: Any) -> Any:
    """The lanes of a vector of the type in which the pointer's elements are computed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(BITS[64], VECTOR_BYTES * 8 // computed(signature.args[0].dtype).bitwidth)

    return types.int64(start), codegen


@inline
def multiply_rows(weights: Any, outputs: int, depth: int, x: Any, first: Any, has_first: bool, out: Any) -> None:
    """out [N] = first [N] + W x, of unpacked weights [N, K]. first: not read, and taken as zeros, without `has_first`."""
    lanes = _lanes_of(weights)
    for n in range(outputs):
        store(out, n, load(first, n) if has_first else constant_like(load(out, 0), 0.0))
    n = 0
    while n + lanes <= outputs:
        _dots(at(weights, n * depth), depth, depth, x, at(out, n))
        n += lanes
    while n < outputs:
        total = load(out, n)
        for k in range(depth):
            total += load(weights, n * depth + k) * load(x, k)
        store(out, n, total)
        n += 1
