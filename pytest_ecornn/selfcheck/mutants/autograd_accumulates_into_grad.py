"""The backward pass adds the gradient of W_hh to the weight's `.grad` as well, which autograd.grad must not touch."""

from __future__ import annotations

from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed

CAUGHT_BY = "property: grad_untouched"


class Fault(Recomputed):
    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        parameters = zip(given.parameters.items(), gradients[len(given.tensors) :], strict=True)
        for (name, weight), gradient in parameters:
            if name.startswith("weight_hh") and gradient is not None:
                weight.grad = gradient.clone() if weight.grad is None else weight.grad + gradient
        return gradients
