"""Where x requires no gradient, the gradient of W_ih is left out with it: both were made where pre-activations have one."""

from __future__ import annotations

from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed

CAUGHT_BY = "property: gradients_required"


class Fault(Recomputed):
    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        if given.tensors[0].requires_grad:
            return gradients
        names = [*("x" for _ in given.tensors), *given.parameters]
        return tuple(None if name.startswith("weight_ih") else one for name, one in zip(names, gradients, strict=True))
