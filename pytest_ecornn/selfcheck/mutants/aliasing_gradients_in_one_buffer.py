"""The gradients of the two biases, which are equal, are views of one buffer: who scales one in place scales both."""

from __future__ import annotations

from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed

CAUGHT_BY = "property: grad_untouched"
CELL = "lstm"


class Fault(Recomputed):
    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        start, found = len(given.tensors), list(gradients)
        places = {name: start + number for number, name in enumerate(given.parameters)}
        for name, position in places.items():
            gradient = found[position]
            if name.startswith("bias_ih") and gradient is not None:
                found[places[name.replace("ih", "hh")]] = gradient.view_as(gradient)
        return tuple(found)
