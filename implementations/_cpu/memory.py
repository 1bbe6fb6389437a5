"""Memory as Numba code sees it through plain pointers: short elements widened on load and rounded on store, streaming stores.

Numba has no bfloat16 and no arithmetic in float16. Here bfloat16 is held as uint16 and float16 as int16, so that the type of a
pointer picks the conversion, and a loop over `load` and `store` vectorises for every dtype. int8 is loaded alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ELEMENTS: dict[str, Any] = {
    "float32": np.float32, "float64": np.float64, "bfloat16": np.uint16, "float16": np.int16, "int8": np.int8,
}  # fmt: skip
LINE = 64  # bytes of a cache line, and of the vectors that `store_nontemporal` writes
WORKSPACE_ELEMENTS = 3 * 1024  # three gates of the widest tile

BITS = {32: ir.IntType(32), 64: ir.IntType(64)}
FLOATS = {32: ir.FloatType(), 64: ir.DoubleType()}
_NARROW = {types.uint16: "bfloat16", types.int16: "float16", types.int8: "int8"}


def computed(element: Any) -> Any:
    """The type in which elements of a storage type are computed."""
    return types.float32 if element in _NARROW else element


def lane_type(kind: Any, count: int) -> Any:
    return kind if count == 1 else ir.VectorType(kind, count)


def _constant(kind: Any, value: Any, count: int) -> Any:
    return ir.Constant(lane_type(kind, count), value if count == 1 else [value] * count)


def widen(builder: Any, element: Any, value: Any, lanes: int = 1) -> Any:
    """Storage -> computing type. Scalars, or vectors of `lanes`."""
    wide = lane_type(FLOATS[32], lanes)
    if element is types.uint16:
        bits = builder.shl(builder.zext(value, lane_type(BITS[32], lanes)), _constant(BITS[32], 16, lanes))
        return builder.bitcast(bits, wide)
    if element is types.int16:
        return builder.fpext(builder.bitcast(value, lane_type(ir.HalfType(), lanes)), wide)
    if element is types.int8:
        return builder.sitofp(builder.sext(value, lane_type(BITS[32], lanes)), wide)
    return value


def narrow(builder: Any, element: Any, value: Any, lanes: int = 1) -> Any:
    """Computing type -> storage, rounded to nearest even; NaN stays NaN. Scalars, or vectors of `lanes`."""
    if element is types.uint16:
        word, short = BITS[32], lane_type(ir.IntType(16), lanes)
        bits = builder.bitcast(value, lane_type(word, lanes))
        sixteen = _constant(word, 16, lanes)
        odd = builder.and_(builder.lshr(bits, sixteen), _constant(word, 1, lanes))
        rounded = builder.add(bits, builder.add(odd, _constant(word, 0x7FFF, lanes)))
        is_nan = builder.fcmp_unordered("uno", value, value)
        quiet = _constant(word, 0x7FC00000, lanes)
        return builder.trunc(builder.lshr(builder.select(is_nan, quiet, rounded), sixteen), short)
    if element is types.int16:
        return builder.bitcast(builder.fptrunc(value, lane_type(ir.HalfType(), lanes)), lane_type(ir.IntType(16), lanes))
    return value


def load_lanes(builder: Any, element: Any, start: Any, index: Any, lanes: int) -> Any:
    """Emits the load of `lanes` elements from `index` of a pointer to the storage type `element`, in the computing type."""
    raw = FLOATS[element.bitwidth] if isinstance(element, types.Float) else ir.IntType(element.bitwidth)
    address = builder.bitcast(builder.gep(start, [index], inbounds=True), ir.PointerType(lane_type(raw, lanes)))
    return widen(builder, element, builder.load(address, align=element.bitwidth // 8), lanes)


@intrinsic
def pointer(typingctx: Any, address: Any, dtype: Any) -> Any:
    """The integer `address` as a pointer to elements of the NumPy `dtype`."""
    return _cast(types.CPointer(dtype.dtype), dtype)


def _cast(result: Any, model: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.int64, model), codegen


@intrinsic
def same_type(typingctx: Any, address: Any, model: Any) -> Any:
    """The integer `address` as a pointer of the type of `model`."""
    return _cast(model, model)


@intrinsic
def state_pointer(typingctx: Any, address: Any, model: Any) -> Any:
    """The integer `address` as a pointer to the type in which elements of the pointer `model` are computed."""
    return _cast(types.CPointer(computed(model.dtype)), model)


@intrinsic
def workspace(typingctx: Any, model: Any) -> Any:
    """Room on the stack for ROOM elements of the pointer `model`'s type."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        room = cgutils.alloca_once(builder, ir.ArrayType(context.get_value_type(model.dtype), WORKSPACE_ELEMENTS))
        return builder.bitcast(room, context.get_value_type(model))

    return model(model), codegen


@intrinsic
def at(typingctx: Any, start: Any, offset: Any) -> Any:
    """The pointer `offset` elements after `start`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]], inbounds=True)

    return start(start, types.int64), codegen


@intrinsic
def load(typingctx: Any, start: Any, index: Any) -> Any:
    """Element `index` of a pointer, in the computing type."""
    element = start.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return widen(builder, element, builder.load(builder.gep(args[0], [args[1]], inbounds=True)))

    return computed(element)(start, types.int64), codegen


@intrinsic
def store(typingctx: Any, start: Any, index: Any, value: Any) -> Any:
    """Writes `value`, of the computing type, as element `index` of a pointer."""
    element = start.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(narrow(builder, element, args[2]), builder.gep(args[0], [args[1]], inbounds=True))
        return context.get_dummy_value()

    return types.none(start, types.int64, computed(element)), codegen


@intrinsic
def num_lanes(typingctx: Any, start: Any) -> Any:
    """How many elements of the pointer's type fill a cache line."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(BITS[64], LINE * 8 // signature.args[0].dtype.bitwidth)

    return types.int64(start), codegen


@intrinsic
def store_nontemporal(typingctx: Any, target: Any, source: Any, index: Any) -> Any:
    """Rounds the cache line of elements from `index` of `source` (computing type) into `target`, past the caches.

    The target's address must be a multiple of LINE there. Other threads see it only after a `fence`.
    """
    element = target.dtype
    count = LINE * 8 // element.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = lane_type(FLOATS[computed(element).bitwidth], count)
        place = builder.gep(args[1], [args[2]], inbounds=True)
        value = builder.load(builder.bitcast(place, ir.PointerType(wide)), align=4)
        value = narrow(builder, element, value, count)
        place = builder.bitcast(builder.gep(args[0], [args[2]], inbounds=True), ir.PointerType(value.type))
        written = builder.store(value, place, align=LINE)
        written.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(BITS[32], 1)]))
        return context.get_dummy_value()

    return types.none(target, source, types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, start: Any, index: Any) -> Any:
    """Asks for the cache line of element `index` of a pointer; any address will do."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(builder.gep(args[0], [args[1]]), ir.PointerType(ir.IntType(8)))
        kind = ir.FunctionType(ir.VoidType(), [place.type] + [BITS[32]] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place] + [ir.Constant(BITS[32], value) for value in (0, 3, 1)])
        return context.get_dummy_value()

    return types.none(start, types.int64), codegen


@intrinsic
def fence(typingctx: Any) -> Any:
    """Orders what `store_nontemporal` wrote before everything that follows."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def fetch_add(typingctx: Any, counter: Any) -> Any:
    """Adds one to the integer behind a pointer, atomically; returns what was there."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], ir.Constant(BITS[64], 1), "seq_cst")

    return types.int64(counter), codegen


@intrinsic
def constant_like(typingctx: Any, model: Any, value: Any) -> Any:
    """The constant `value` in the type of `model`: a bare literal would widen float32 arithmetic to float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[1], types.float64, model)

    return model(model, types.float64), codegen


@intrinsic
def opaque(typingctx: Any, value: Any) -> Any:
    """`value`, in a register of its own: what LLVM knows to be constant it reads from memory again and again in a loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = BITS[value.bitwidth]
        nothing = ir.InlineAsm(ir.FunctionType(word, [word]), "", "=r,0")
        bits = builder.call(nothing, [builder.bitcast(args[0], word)], attrs=("readnone", "nounwind"))
        return builder.bitcast(bits, FLOATS[value.bitwidth])

    return value(value), codegen


@intrinsic
def exponent_bits(typingctx: Any, shifted: Any) -> Any:
    """2^(k - bias), k being the integer in the last bits of `shifted` and bias that of its type's exponents."""
    mantissa = {32: 23, 64: 52}[shifted.bitwidth]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = BITS[shifted.bitwidth]
        bits = builder.shl(builder.bitcast(args[0], word), ir.Constant(word, mantissa))
        return builder.bitcast(bits, FLOATS[shifted.bitwidth])

    return shifted(shifted), codegen


@intrinsic
def is_line_start(typingctx: Any, start: Any) -> Any:
    """Whether a pointer's address is a multiple of LINE."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rest = builder.and_(builder.ptrtoint(args[0], BITS[64]), ir.Constant(BITS[64], LINE - 1))
        return cgutils.is_null(builder, rest)

    return types.boolean(start), codegen
