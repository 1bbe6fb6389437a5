"""The recurrent product is summed up in an order that differs from call to call, and bit-equal repeats are claimed."""

from __future__ import annotations

import random

from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters

CAUGHT_BY = "property: repeats"


_CHANCE = random.Random(1)


class Fault(Loop):
    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        shift = _CHANCE.randrange(h.shape[-1])
        return super().h_gates(h.roll(shift, -1), parameters | {"weight_hh": parameters["weight_hh"].roll(shift, -1)})
