"""Vectors in Numba kernels: arithmetic on several lanes at once, as LLVM's vector instructions, and loops over elements.

A formula is a Python function of `Lanes`. It is emitted once for full vectors, and once for the elements that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pytest_ecornn.implementations._cpu.exponential import EXP, LOG2E
from pytest_ecornn.implementations._cpu.memory import BITS, FLOATS, computed, lane_type, load_lanes, narrow

VECTOR_BYTES = 32  # of a formula's vectors: more lanes would leave more elements to the scalar loop
_FUSED = ("contract",)  # lets LLVM make a fused multiply-add, and assume nothing else


@dataclass(frozen=True)
class Lanes:
    """A vector of `count` values of the computing type `kind`, in the function that `builder` builds."""

    builder: Any
    kind: Any
    count: int
    value: Any

    def _with(self, value: Any) -> Lanes:
        return Lanes(self.builder, self.kind, self.count, value)

    def _other(self, other: Any) -> Any:
        return other.value if isinstance(other, Lanes) else self.constant(other).value

    def constant(self, value: float) -> Lanes:
        lanes = [value] * self.count
        return self._with(ir.Constant(lane_type(FLOATS[self.kind.bitwidth], self.count), value if self.count == 1 else lanes))

    def __add__(self, other: Any) -> Lanes:
        return self._with(self.builder.fadd(self.value, self._other(other), flags=_FUSED))

    def __sub__(self, other: Any) -> Lanes:
        return self._with(self.builder.fsub(self.value, self._other(other), flags=_FUSED))

    def __rsub__(self, other: float) -> Lanes:
        return self.constant(other) - self

    def __mul__(self, other: Any) -> Lanes:
        return self._with(self.builder.fmul(self.value, self._other(other), flags=_FUSED))

    def __truediv__(self, other: Any) -> Lanes:
        return self._with(self.builder.fdiv(self.value, self._other(other)))

    def __neg__(self) -> Lanes:
        return self._with(self.builder.fneg(self.value))

    def less(self, other: Any) -> Any:
        """A mask, false where either is NaN."""
        return self.builder.fcmp_ordered("<", self.value, self._other(other))

    def at_most(self, other: Any) -> Any:
        """A mask, false where either is NaN."""
        return self.builder.fcmp_ordered("<=", self.value, self._other(other))

    def where(self, mask: Any, other: Any) -> Lanes:
        """These lanes where `mask` is true, else `other`."""
        return self._with(self.builder.select(mask, self.value, self._other(other)))

    def bounded(self, most: float) -> Lanes:
        """Values beyond `most` on either side as that; NaN stays NaN."""
        high = self.constant(most).where(self.constant(most).less(self), self)
        return self.constant(-most).where(high.less(-most), high)

    def absolute(self) -> Lanes:
        return self._with(self._intrinsic("llvm.fabs", self.value))

    def with_sign_of(self, other: Lanes) -> Lanes:
        return self._with(self._intrinsic("llvm.copysign", self.value, other.value))

    def _intrinsic(self, name: str, *arguments: Any) -> Any:
        kind = arguments[0].type
        suffix = f".v{self.count}f{self.kind.bitwidth}" if self.count > 1 else f".f{self.kind.bitwidth}"
        function = ir.FunctionType(kind, [kind] * len(arguments))
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function, name + suffix), arguments)

    def _scaled(self, lowest: float, margin: int) -> tuple[Lanes, Lanes]:
        """Returns r and 2^(n + margin) for x = n ln(2) + r, |r| <= ln(2)/2. x below `lowest` counts as that."""
        _, bias, mantissa, _, ln2_high, ln2_low, _ = EXP[self.kind]
        x = self.constant(lowest).where(self.less(lowest), self)
        magic = 1.5 * 2.0**mantissa + bias + margin
        shifted = x * LOG2E + magic
        n = shifted - magic
        word = lane_type(BITS[self.kind.bitwidth], self.count)
        shift = ir.Constant(word, mantissa if self.count == 1 else [mantissa] * self.count)
        bits = self.builder.shl(self.builder.bitcast(shifted.value, word), shift)
        return (x - n * ln2_high) - n * ln2_low, self._with(self.builder.bitcast(bits, self.value.type))

    def exp(self) -> Lanes:
        """e^x for x <= 0, to about an ulp; underflows gradually."""
        lowest, _, _, margin, _, _, powers = EXP[self.kind]
        r, power = self._scaled(lowest, margin)
        scaled = [coefficient * 2.0**-margin for coefficient in powers]
        return _polynomial(r, scaled) * power

    def sigmoid(self) -> Lanes:
        """1 / (1 + e^-x), to 2.2 ulp of itself on either side."""
        e = (-self.absolute()).exp()
        return e.where(self.less(0.0), 1.0) / (e + 1.0)

    def tanh(self) -> Lanes:
        """-m / (2 + m) for m = e^(-2|x|) - 1: to 3 ulp, near 0 too."""
        r, power = (self.absolute() * -2.0)._scaled(_LOWEST_OF_TANH[self.kind.bitwidth], 0)
        m = _polynomial(r, EXP[self.kind][-1][:-1]) * r * power + (power - 1.0)
        return (-m / (m + 2.0)).with_sign_of(self)


_LOWEST_OF_TANH = {32: -20.0, 64: -40.0}  # of -2|x|, where tanh is 1


def _polynomial(r: Lanes, coefficients: Any) -> Lanes:
    value = r.constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * r + coefficient
    return value


class Elements:
    """Access to arrays at the element that a loop has reached, several at a time."""

    def __init__(self, builder: Any, kind: Any, index: Any, count: int):
        self.builder, self.kind, self.index, self.count = builder, kind, index, count

    def load(self, start: Any, element: Any, block: Any = None) -> Lanes:
        """start: a pointer to elements of the Numba type `element`. block: elements to skip, or None."""
        value = load_lanes(self.builder, element, start, self._index(block), self.count)
        return Lanes(self.builder, self.kind, self.count, value)

    def store(self, lanes: Lanes, start: Any, element: Any, block: Any = None) -> None:
        value = narrow(self.builder, element, lanes.value, self.count)
        address = self.builder.gep(start, [self._index(block)], inbounds=True)
        self.builder.store(value, self.builder.bitcast(address, ir.PointerType(value.type)), align=element.bitwidth // 8)

    def _index(self, block: Any) -> Any:
        return self.index if block is None else self.builder.add(self.index, block)


def for_elements(builder: Any, element: Any, total: Any, formula: Callable[[Elements], None]) -> None:
    """Emits `formula` for all of `total` elements. element: the storage type whose computing type the lanes have."""
    kind, word = computed(element), BITS[64]
    count = VECTOR_BYTES * 8 // kind.bitwidth
    whole = builder.mul(builder.udiv(total, ir.Constant(word, count)), ir.Constant(word, count))
    for start, end, lanes in ((ir.Constant(word, 0), whole, count), (whole, total, 1)):
        with cgutils.for_range_slice(builder, start, end, ir.Constant(word, lanes)) as (index, _):
            formula(Elements(builder, kind, index, lanes))
