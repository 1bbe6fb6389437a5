"""One step of a cell on a row, forward and backward, in vectors of units: for Numba kernels. Of minGRU and minLSTM forward.

Equations and order of gates: torch.nn's. x: W_ih x + b_ih. sums: W_hh h + b_hh. Gates lie in blocks of H.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pytest_ecornn.implementations._cpu.lanes import Elements, Lanes, for_elements
from pytest_ecornn.implementations._cpu.memory import BITS

_MOST_BLOCKS = 5


class Row:
    """The arrays of a row at some of its units."""

    def __init__(self, elements: Elements, pointers: dict[str, tuple[Any, Any]], blocks: list[Any]):
        self._elements, self._pointers, self._blocks = elements, pointers, blocks

    def load(self, name: str, block: int = 0) -> Lanes:
        """The units' elements of a block of H."""
        return self._elements.load(*self._pointers[name], self._blocks[block])

    def store(self, lanes: Lanes, name: str, block: int = 0) -> None:
        self._elements.store(lanes, *self._pointers[name], self._blocks[block])


def _step(*names: str) -> Callable[[Callable[[Row], None]], Any]:
    """Decorates a formula as an intrinsic of a tuple of pointers by these names, and of H, for all units of a row."""

    def decorate(formula: Callable[[Row], None]) -> Any:
        @intrinsic
        def step(typingctx: Any, pointers: Any, hidden: Any) -> Any:
            elements = dict(zip(names, (pointer.dtype for pointer in pointers), strict=True))

            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values = dict(zip(names, cgutils.unpack_tuple(builder, args[0]), strict=True))
                arrays = {name: (values[name], elements[name]) for name in names}
                blocks = [None, *(builder.mul(args[1], ir.Constant(BITS[64], k)) for k in range(1, _MOST_BLOCKS))]
                for_elements(builder, elements["h"], args[1], lambda units: formula(Row(units, arrays, blocks)))
                return context.get_dummy_value()

            return types.none(pointers, types.int64), codegen

        return step

    return decorate


_FORWARD = ("x", "sums", "h", "c", "out", "saved", "old")  # h, c: the state, in place; old: h as the step finds it
_BACKWARD = ("saved", "old", "dout", "h", "c", "dx", "dsums")  # h, c: gradients of the state, in place


def _lstm(row: Row, saves: bool) -> None:
    i, f, g, o = (row.load("x", gate) + row.load("sums", gate) for gate in range(4))
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    before = row.load("c")
    c = f * before + i * g
    if saves:
        row.store(row.load("h"), "old")
        for block, value in enumerate((i, f, g, o, before)):
            row.store(value, "saved", block)
    h = o * c.tanh()
    for value, name in ((c, "c"), (h, "h"), (h, "out")):
        row.store(value, name)


def _gru(row: Row, saves: bool) -> None:
    r, z = ((row.load("x", gate) + row.load("sums", gate)).sigmoid() for gate in range(2))
    inner, before = row.load("sums", 2), row.load("h")
    n = (row.load("x", 2) + r * inner).tanh()
    h = n + z * (before - n)
    if saves:
        row.store(before, "old")
        for block, value in enumerate((r, z, n, inner)):
            row.store(value, "saved", block)
    row.store(h, "h")
    row.store(h, "out")


def _rnn(row: Row, saves: bool, activation: Callable[[Lanes], Lanes]) -> None:
    h = activation(row.load("x") + row.load("sums"))
    if saves:
        row.store(row.load("h"), "old")
        row.store(h, "saved")
    row.store(h, "h")
    row.store(h, "out")


def _relu(x: Lanes) -> Lanes:
    return x.constant(0.0).where(x.less(0.0), x)  # NaN stays NaN


@_step(*_FORWARD)
def lstm(row: Row) -> None:
    _lstm(row, saves=False)


@_step(*_FORWARD)
def lstm_saving(row: Row) -> None:
    _lstm(row, saves=True)


@_step(*_FORWARD)
def gru(row: Row) -> None:
    _gru(row, saves=False)


@_step(*_FORWARD)
def gru_saving(row: Row) -> None:
    _gru(row, saves=True)


@_step(*_FORWARD)
def tanh(row: Row) -> None:
    _rnn(row, False, Lanes.tanh)


@_step(*_FORWARD)
def tanh_saving(row: Row) -> None:
    _rnn(row, True, Lanes.tanh)


@_step(*_FORWARD)
def relu(row: Row) -> None:
    _rnn(row, False, _relu)


@_step(*_FORWARD)
def relu_saving(row: Row) -> None:
    _rnn(row, True, _relu)


def _positive(x: Lanes) -> Lanes:
    """g of arXiv 2410.01201, appendix B."""
    return x.sigmoid().where(x.less(0.0), x + 0.5)


def _as_is(x: Lanes) -> Lanes:
    return x


def _mingru(row: Row, candidate: Callable[[Lanes], Lanes]) -> None:
    z = row.load("x")
    h = (-z).sigmoid() * row.load("h") + z.sigmoid() * candidate(row.load("x", 1))
    row.store(h, "h")
    row.store(h, "out")


def _minlstm(row: Row, candidate: Callable[[Lanes], Lanes]) -> None:
    """f / (f + i) = u / (u + v) for u = 1 / i and v = 1 / f, both divided by the larger of e^-f, e^-i and 1."""
    f, i = (row.load("x", gate).bounded(1e30) for gate in range(2))
    u, v = (-i.absolute()).exp() + 1.0, (-f.absolute()).exp() + 1.0
    difference = i.where(i.less(0.0), 0.0) - f.where(f.less(0.0), 0.0)
    scale = (-difference.absolute()).exp()
    is_less = difference.less(0.0)
    u, v = u.where(is_less, u * scale), (v * scale).where(is_less, v)
    h = (u * row.load("h") + v * candidate(row.load("x", 2))) / (u + v)
    row.store(h, "h")
    row.store(h, "out")


@_step(*_FORWARD)
def mingru(row: Row) -> None:
    _mingru(row, _as_is)


@_step(*_FORWARD)
def mingru_positive(row: Row) -> None:
    _mingru(row, _positive)


@_step(*_FORWARD)
def minlstm(row: Row) -> None:
    _minlstm(row, _as_is)


@_step(*_FORWARD)
def minlstm_positive(row: Row) -> None:
    _minlstm(row, _positive)


@_step(*_BACKWARD)
def lstm_backward(row: Row) -> None:
    i, f, g, o, before = (row.load("saved", block) for block in range(5))
    d_h = row.load("dout") + row.load("h")
    tanh_c = (f * before + i * g).tanh()
    d_c = row.load("c") + d_h * o * ((1.0 - tanh_c) * (tanh_c + 1.0))
    d_gates = (
        d_c * g * (i * (1.0 - i)), d_c * before * (f * (1.0 - f)), d_c * i * ((1.0 - g) * (g + 1.0)),
        d_h * tanh_c * (o * (1.0 - o)),
    )  # fmt: skip
    for gate, value in enumerate(d_gates):
        row.store(value, "dx", gate)
        row.store(value, "dsums", gate)
    row.store(d_c * f, "c")
    row.store(d_c.constant(0.0), "h")


@_step(*_BACKWARD)
def gru_backward(row: Row) -> None:
    r, z, n, inner = (row.load("saved", block) for block in range(4))
    d_h = row.load("dout") + row.load("h")
    d_n = d_h * (1.0 - z) * ((1.0 - n) * (n + 1.0))
    d_r, d_z = d_n * inner * (r * (1.0 - r)), d_h * (row.load("old") - n) * (z * (1.0 - z))
    for gate, value, of_sum in ((0, d_r, d_r), (1, d_z, d_z), (2, d_n, d_n * r)):
        row.store(value, "dx", gate)
        row.store(of_sum, "dsums", gate)
    row.store(d_h * z, "h")


@_step(*_BACKWARD)
def tanh_backward(row: Row) -> None:
    h = row.load("saved")
    _rnn_backward(row, (row.load("dout") + row.load("h")) * ((1.0 - h) * (h + 1.0)))


@_step(*_BACKWARD)
def relu_backward(row: Row) -> None:
    d_h = row.load("dout") + row.load("h")
    _rnn_backward(row, d_h.constant(0.0).where(row.load("saved").at_most(0.0), d_h))  # NaN passes it, as in torch


def _rnn_backward(row: Row, gradient: Lanes) -> None:
    row.store(gradient, "dx")
    row.store(gradient, "dsums")
    row.store(gradient.constant(0.0), "h")
