"""Gates of minGRU and minLSTM for Numba: sigmoids, candidates, a step and its slopes, from one channel's pre-activations.

Exponentials are our own because Numba's are calls that LLVM does not vectorise. Source: arXiv 2410.01201, section 3 and
appendix B.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.extending import overload

from pytest_ecornn.implementations.scan_cpu.numba_memory import constant_like, exponent_bits, load, opaque, store

# No flag that lets LLVM assume away NaN, infinities or signed zeros; "contract" alone makes fused multiply-adds.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "forceinline": True}
inline = njit(**OPTIONS)

# Lowest argument, bias and mantissa of the type, margin, ln(2) in two parts, and exp(r)'s polynomial for |r| <= ln(2)/2,
# highest power first: 1 + r + r^2 p(r), p by Chebyshev interpolation.
_LOG2E = 1.4426950408889634
_EXP = {
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
    lowest, bias, mantissa, margin, ln2_high, ln2_low, powers = _EXP[x]
    powers = tuple(power * 2.0**-margin for power in powers)
    # Adding this leaves, in the last bits of the sum, x / ln(2) rounded, plus what makes it a positive exponent.
    shift = 1.5 * 2.0**mantissa + bias + margin

    def implementation(x: Any) -> Any:
        low, magic = opaque(constant_like(x, lowest)), opaque(constant_like(x, shift))
        x = low if x < low else x
        shifted = x * opaque(constant_like(x, _LOG2E)) + magic
        n = shifted - magic
        r = (x - n * opaque(constant_like(x, ln2_high))) - n * opaque(constant_like(x, ln2_low))
        p = opaque(constant_like(x, powers[0]))
        for power in powers[1:]:
            p = p * r + opaque(constant_like(x, power))
        # 2^-margin, in the polynomial, is taken back by the last product, so that the result underflows gradually.
        return p * exponent_bits(shifted)

    return implementation


@inline
def sigmoid_pair(x: Any) -> Any:
    """sigmoid(x) and sigmoid(-x), neither by a subtraction from 1, so both keep their relative accuracy."""
    e = exp(-abs(x))
    large = constant_like(x, 1.0) / (constant_like(x, 1.0) + e)
    small = e * large
    return (large, small) if x >= constant_like(x, 0.0) else (small, large)


@inline
def as_is(x: Any) -> Any:
    """The candidate and its slope."""
    return x, constant_like(x, 1.0)


@inline
def positive(x: Any) -> Any:
    """g of appendix B and its slope."""
    small, other = sigmoid_pair(x)
    is_linear = x >= constant_like(x, 0.0)
    return (x + constant_like(x, 0.5) if is_linear else small), (constant_like(x, 1.0) if is_linear else small * other)


@inline
def mingru(x: Any, c: int, hidden: int) -> Any:
    """Returns the old state's factor, the candidate's factor and the candidate's pre-activation."""
    take, keep = sigmoid_pair(load(x, c))
    return keep, take, load(x, c + hidden)


@inline
def mingru_next(x: Any, c: int, hidden: int, state: Any, candidate: Any) -> Any:
    """The new state, by one division."""
    z, (value, _) = load(x, c), candidate(load(x, c + hidden))
    e = exp(-abs(z))
    is_open = z >= constant_like(z, 0.0)
    more, less = (value, state) if is_open else (state, value)
    return (e * less + more) / (constant_like(z, 1.0) + e)


@inline
def mingru_slopes(x: Any, dx: Any, c: int, hidden: int, width: int, push: Any, pull: Any) -> None:
    """Stores the pre-activations' gradients, a block of `width` a gate. push: dL/dtake * keep * take; pull: the candidate's."""
    store(dx, c, push)
    store(dx, c + width, pull)


@inline
def bounded(x: Any) -> Any:
    """Infinity made finite (the difference of two infinities is no number), all else, NaN too, as it is."""
    most = constant_like(x, 1e30)
    x = most if x > most else x
    return -most if x < -most else x


@inline
def inverses(f: Any, i: Any) -> Any:
    """1 / sigmoid(i) and 1 / sigmoid(f), divided by the larger of exp(-f), exp(-i) and 1: only their ratio counts."""
    f, i = bounded(f), bounded(i)
    zero, one = constant_like(f, 0.0), constant_like(f, 1.0)
    u, v = one + exp(-abs(i)), one + exp(-abs(f))
    difference = (i if i < zero else zero) - (f if f < zero else zero)
    scale = exp(-abs(difference))
    return (u, v * scale) if difference < zero else (u * scale, v)


@inline
def minlstm(x: Any, c: int, hidden: int) -> Any:
    """Returns the same as `mingru`: f / (f + i) = u / (u + v) for u = 1 / i and v = 1 / f."""
    u, v = inverses(load(x, c), load(x, c + hidden))
    both = constant_like(u, 1.0) / (u + v)
    return u * both, v * both, load(x, c + hidden + hidden)


@inline
def minlstm_next(x: Any, c: int, hidden: int, state: Any, candidate: Any) -> Any:
    u, v = inverses(load(x, c), load(x, c + hidden))
    value, _ = candidate(load(x, c + hidden + hidden))
    return (u * state + v * value) / (u + v)


@inline
def minlstm_slopes(x: Any, dx: Any, c: int, hidden: int, width: int, push: Any, pull: Any) -> None:
    _, closed_f = sigmoid_pair(load(x, c))
    _, closed_i = sigmoid_pair(load(x, c + hidden))
    store(dx, c, -push * closed_f)
    store(dx, c + width, push * closed_i)
    store(dx, c + width + width, pull)
