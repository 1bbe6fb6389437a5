"""The backward pass runs over the padding too."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.selfcheck._correct_layers import Loop, with_value

CAUGHT_BY = "equivalence: grad x"


class Fault(Loop):
    def padded(self, alive: Tensor, output: Tensor) -> Tensor:
        return with_value(output, torch.where(alive, output, 0))
