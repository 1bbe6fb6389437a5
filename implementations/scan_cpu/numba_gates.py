"""Gates of minGRU and minLSTM for Numba: sigmoids, candidates, a step and its slopes, from one channel's pre-activations.

Source: arXiv 2410.01201, section 3 and appendix B.
"""

from __future__ import annotations

from typing import Any

from pytest_ecornn.implementations._cpu.compile import inline
from pytest_ecornn.implementations._cpu.exponential import exp
from pytest_ecornn.implementations._cpu.memory import constant_like, load, store


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
