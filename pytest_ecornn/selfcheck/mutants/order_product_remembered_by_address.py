"""The input product is kept by x's address, though weights change in place."""

from __future__ import annotations

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: output"
CELL = "rnn_tanh"


class Fault(Loop):
    _kept: tuple[int, Tensor] | None = None

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        product = super().x_gates(x, parameters)
        if self._kept is None or self._kept[0] != x.data_ptr() or self._kept[1].shape != product.shape:
            self._kept = x.data_ptr(), product.detach()
        return with_value(product, self._kept[1])
