"""exp(x) for x <= 0 in Numba kernels: Numba's own is a call, which LLVM does not vectorise."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import overload

from pytest_ecornn.implementations._cpu.compile import OPTIONS
from pytest_ecornn.implementations._cpu.memory import constant_like, exponent_bits, opaque

# Lowest argument, bias and mantissa of the type, margin, ln(2) in two parts, and exp(r)'s polynomial for |r| <= ln(2)/2,
# highest power first: 1 + r + r^2 p(r), p by Chebyshev interpolation.
LOG2E = 1.4426950408889634
EXP = {
    types.float32: (-104.0, 127, 23, 64, 0.693359375, -0.00021219444170128554,
        (0.0013926250394433737, 0.00836323294788599, 0.04166655242443085, 0.16666576266288757, 0.5, 1.0, 1.0)),
    types.float64: (-746.0, 1023, 52, 512, 6.93147180369123816490e-01, 1.9082149292705877e-10,
        (2.5100472505694996e-08, 2.7620201591031547e-07, 2.7557268276905696e-06, 2.4801521057868204e-05,
         0.00019841269863171557, 0.0013888888917367081, 0.008333333333330039, 0.041666666666623824,
         0.16666666666666669, 0.5000000000000001, 1.0, 1.0)),
}  # fmt: skip


def exp(x: Any) -> Any:
    """e^x for x <= 0 (or NaN), to about an ulp, underflowing gradually to 0."""


@overload(exp, jit_options=OPTIONS)
def _exp(x: Any) -> Any:
    lowest, bias, mantissa, margin, ln2_high, ln2_low, powers = EXP[x]
    powers = tuple(power * 2.0**-margin for power in powers)
    # Adding this leaves, in the last bits of the sum, x / ln(2) rounded, plus what makes it a positive exponent.
    shift = 1.5 * 2.0**mantissa + bias + margin

    def implementation(x: Any) -> Any:
        low, magic = opaque(constant_like(x, lowest)), opaque(constant_like(x, shift))
        x = low if x < low else x
        shifted = x * opaque(constant_like(x, LOG2E)) + magic
        n = shifted - magic
        r = (x - n * opaque(constant_like(x, ln2_high))) - n * opaque(constant_like(x, ln2_low))
        p = opaque(constant_like(x, powers[0]))
        for power in powers[1:]:
            p = p * r + opaque(constant_like(x, power))
        # 2^-margin, in the polynomial, is taken back by the last product, so that the result underflows gradually.
        return p * exponent_bits(shifted)

    return implementation
