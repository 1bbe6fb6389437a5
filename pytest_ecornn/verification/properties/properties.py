"""Properties: relations that every right recurrent layer obeys, checked without a reference.

One table says which, and what each means; `conduct` and `relations` say how each is checked, and how strictly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pytest_ecornn.system.graphs import NotCaptured
from pytest_ecornn.verification.calls import WrongForm, WrongResult
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard
from pytest_ecornn.verification.properties import (
    backward_passes,
    between_calls,
    conduct,
    interrupted_calls,
    relations,
    second_derivatives,
)
from pytest_ecornn.verification.properties.subject import CallSubject, NotApplicable, PropertyContext


@dataclass(frozen=True)
class Property:
    """check: raises WrongResult that says in one line what is wrong with a subject. description: what must hold."""

    name: str
    description: str
    check: Callable[[Any], None]


PROPERTIES = (
    Property("globals_unchanged", "settings that the whole process shares are left as they were", conduct.globals_unchanged),
    Property("current_stream", "work is put on the current stream", conduct.current_stream),
    Property("inputs_unchanged", "x, states, masks and weights of any kind are left as they were", conduct.inputs_unchanged),
    Property("repeats", "the same call gives the same result", conduct.repeatable),
    Property("stateless", "no call is affected by those before it", conduct.stateless),
    Property("fresh_results", "results have memory of their own, which later calls do not touch", conduct.results_not_aliased),
    Property("written", "every element of every result is written", conduct.writes_every_element),
    Property("guard_bands", "nothing is written outside the call's own memory, nor read", conduct.guard_bands),
    Property(
        "gradients_required",
        "gradients of what requires one are the same, whatever else requires one",
        backward_passes.gradients_required,
    ),
    Property("unused_results", "a result that is not used sends nothing back", backward_passes.unused_results),
    Property(
        "incoming_layouts", "incoming gradients of any memory layout give the same result", backward_passes.incoming_layouts
    ),
    Property(
        "incoming_sizes",
        "incoming gradients are scaled as a loss is, and overflows show in gradients",
        backward_passes.incoming_sizes,
    ),
    Property("calls_interleaved", "backward passes may follow several calls, in any order", backward_passes.calls_interleaved),
    Property(
        "backward_twice", "later backward passes over a retained graph take their own gradients", backward_passes.backward_twice
    ),
    Property(
        "grad_untouched",
        "`.grad` is left to backward(), which adds to what is there, and no two share memory",
        backward_passes.grad_untouched,
    ),
    Property("layouts", "x, states and lengths of any memory layout give the same result", relations.layouts),
    Property("causal", "no step depends on those that come after it", relations.causal),
    Property("split", "two parts, the second from the first's final state, equal the whole", relations.split_in_time),
    Property("batch_order", "sequences in another order give the same results in that order", relations.batch_permutation),
    Property("expanded_inputs", "one state or sequence may stand for all by strides of 0", relations.expanded_inputs),
    Property("same_state", "one tensor may be every initial state", relations.same_state),
    Property(
        "layers_apart",
        "two layers at once, and their backward passes, compute with weights of their own",
        between_calls.layers_apart,
    ),
    Property("weights_seen", "weights that change in place between calls are used", conduct.sees_weight_updates),
    Property("each_weight_seen", "one weight that changes by itself is used", between_calls.each_weight_seen),
    Property(
        "evaluations_between",
        "calls without gradients may come before, within and between training steps, also under inference_mode",
        between_calls.evaluations_between,
    ),
    Property(
        "state_handed_on",
        "a final state may be the next initial state, in the graph, and the caller may change both in place",
        between_calls.state_handed_on,
    ),
    Property(
        "second_derivatives",
        "gradients of gradients are right where create_graph is taken, or an exception refuses them",
        second_derivatives.second_derivatives,
    ),
    Property("call_raises", "a call that raises leaves the layer as it was", interrupted_calls.call_raises),
    Property("calls_at_once", "two threads may call a layer, or two layers, at the same time", interrupted_calls.calls_at_once),
    Property("capture", "a CUDA graph of a call computes on the contents that it finds", conduct.graph_capturable),
)


# Those that no wrong result and no other property explains.
OWN_CAUSES = frozenset(("globals_unchanged", "current_stream", "inputs_unchanged", "written", "guard_bands", "grad_untouched"))


class PropertyViolation(Exception):
    """A property that does not hold, and in one line how that shows."""

    def __init__(self, broken: Property, message: str):
        super().__init__(f"{broken.name} is broken: {broken.description}; but {message}")
        self.property = broken


def check(subject: CallSubject, chosen: Iterable[Property] = PROPERTIES) -> dict[str, str]:
    """Each property's name, with why it could not be checked or nothing. Raises Broken for the first that does not hold."""
    reasons: dict[str, str] = {}
    for chosen_property in chosen:
        with GlobalStateGuard() as settings:
            reasons[chosen_property.name] = _check(chosen_property, subject)
        if settings.changes:
            raise PropertyViolation(PROPERTIES[0], settings.changes[0])
    return reasons


def _check(chosen: Property, subject: CallSubject) -> str:
    subject.forget_layers()
    try:
        chosen.check(subject)
    except (NotApplicable, NotCaptured) as reason:
        return str(reason)
    except WrongForm:
        raise
    except WrongResult as wrong:
        raise PropertyViolation(chosen, str(wrong)) from None
    return ""


def by_name(name: str) -> Property:
    return next(known for known in PROPERTIES if known.name == name)


def nearer_cause(subject: PropertyContext, broken: Property) -> PropertyViolation | None:
    """The first property that explains why another is broken, of memory and of calls; None where these hold."""
    remembers = replace(by_name("stateless"), check=conduct.remembers_calls)
    for cause in (by_name("written"), remembers, by_name("repeats"), by_name("stateless")):
        if cause is broken:
            return None
        try:
            check(subject, [cause])
        except PropertyViolation as violation:
            return violation
    return None
