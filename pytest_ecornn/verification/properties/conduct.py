"""Properties of the call: repeated, stateless, on memory and settings that are not its own.

Each takes a `PropertyContext` and returns what is wrong in one line, empty if nothing is, or raises NotApplicable.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.system.graphs import GraphCapture, NotCaptured
from pytest_ecornn.verification import overlap
from pytest_ecornn.verification.agreement import ResultComparator
from pytest_ecornn.verification.calls import Call, MutationGuard, PoisonedAllocations, Tensors, copy_tensors, tree_map_tensors
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, everything, has_busy_threads, live_threads
from pytest_ecornn.verification.guards.guards import RedzoneAllocations, Redzones
from pytest_ecornn.verification.properties.subject import NotApplicable, PropertyContext, changed

_LONGEST_SECONDS, _FEWEST_REPEATS = 5.0, 3
_FEWEST_KEPT, _KEPT_RESULTS = 6, 17  # more than a layer that uses its buffers in turn is likely to have
_ALIKE = 8  # calls that are compared with calls like them
_DELAY_CYCLES = 20_000_000  # of a GPU's clock: about 10 ms


def repeatable(subject: PropertyContext) -> str:
    """A race that shows once in twenty calls is seen in three cases of twenty repeats at 95 %."""
    start = time.monotonic()
    for number in range(1, subject.num_repeats + 1):
        if message := subject.repeated(subject.whole, subject.run(subject.problem)):
            return f"call {number + 1} of the same: {message}"
        if number >= _FEWEST_REPEATS and time.monotonic() - start > _LONGEST_SECONDS:
            break
    return ""


def inputs_unchanged(subject: PropertyContext) -> str:
    """Checks that the build, the first call and a later one on other contents leave inputs unchanged."""
    guard = MutationGuard(Call(subject.other_problem))
    subject.run(subject.other_problem)
    return subject.written_into or changed(guard)


def writes_every_element(subject: PropertyContext) -> str:
    """A layer built and called on poison. NaN may be swallowed by a maximum or a comparison; what is finite is not.

    A result that differs on the same poison as well is none of its.
    """
    for poison, other in ((float("nan"), 0.0), (0.0, 1e3), (1e3, 0.0)):
        got = _on_poison(subject, poison)
        message = subject.repeated(subject.whole, got)
        if message and _is_of_poison(subject, poison, got):
            difference = subject.repeated(_on_poison(subject, other), got) or message
            return f"{poison:g} in place of {other:g} in memory of torch.empty: {difference}"
    return ""


def _is_of_poison(subject: PropertyContext, poison: float, got: Tensors) -> bool:
    """Whether layers on this poison give the same again and again, and one without it something else."""
    repeats = not any(subject.repeated(got, _on_poison(subject, poison)) for _ in range(_ALIKE))
    return repeats and bool(subject.repeated(got, _of_new_layer(subject)))


def _on_poison(subject: PropertyContext, poison: float) -> Tensors:
    with PoisonedAllocations(poison):
        return _of_new_layer(subject)


def _of_new_layer(subject: PropertyContext) -> Tensors:
    """The results of a layer on weights with memory of their own."""
    problem = replace(subject.problem, weights=contents.make_weights(subject.case))
    return subject.run(problem, subject.built(subject.case, problem.weights))


def guard_bands(subject: PropertyContext) -> str:
    bands = Redzones()
    problem = bands.around(subject.problem)
    with RedzoneAllocations(bands):
        layer = subject.built(subject.case, problem.weights)
        got = subject.run(problem, layer)
    message = subject.agreement.allclose(subject.whole, got)  # elsewhere in memory: sums may be blocked otherwise
    return bands.find_overwrite() or (message and f"with NaN around x, states, weights and memory of torch.empty: {message}")


def globals_unchanged(subject: PropertyContext) -> str:
    """Checks shared settings after the first build and call, and after later calls.

    Threads may start once, and must rest.
    """
    was_burning, counts = has_busy_threads(), []
    with GlobalStateGuard(everything()) as kept:
        for _ in range(4):
            subject.run(subject.problem)
            counts.append(live_threads())
    if changes := subject.kept.changes + kept.changes:
        return changes[0]
    if all(before < after for before, after in pairwise(counts)):
        return f"threads: expected no more after a call than before it, got {', '.join(map(str, counts))} after one call each"
    if not was_burning and has_busy_threads():
        return "threads: expected them to rest after a call, but a core is busy"
    return ""


def results_not_aliased(subject: PropertyContext) -> str:
    """Held together with those of later calls on other contents: of a slow layer fewer, as of `repeatable`."""
    start = time.monotonic()
    held = [subject.run(subject.problem)]
    copies = copy_tensors(held[0])
    while len(held) < _FEWEST_KEPT or (len(held) < _KEPT_RESULTS and time.monotonic() - start < _LONGEST_SECONDS):
        held.append(subject.run(subject.other_problem))
    if changed := subject.agreement.bitwise_equal(copies, held[0]):
        return f"once later calls were made, {changed}"
    problem = subject.problem
    given = [("x", problem.x), *problem.weights.items(), *(("an initial state", state) for state in problem.state)]
    results = [
        (f"{name} of call {number}", t)
        for number, result in enumerate(held, 1)
        for name, t in result.items()
        if t is not None and "grad" not in name
    ]
    if folded := [name for name, result in results if overlap.is_folded(result)]:
        return f"{folded[0]}: expected memory of its own for each element, got elements that share it"
    return overlap.shared(results, given)


def remembers_calls(subject: PropertyContext) -> str:
    """Two new layers are called alike: where all calls of both agree, but not with the first one, calls affect later ones."""
    layers = [subject.built(subject.case, subject.problem.weights) for _ in range(2)]
    one, other = ([copy_tensors(subject.run(subject.problem, layer)) for _ in range(_ALIKE)] for layer in layers)
    if any(subject.agreement.bitwise_equal(*results) for results in zip(one, other, strict=True)):
        return ""
    for number, results in enumerate(one, 1):
        if message := subject.repeated(one[0], results):
            return f"call {number} of the same, of each of two layers: {message}"
    return ""


def stateless(subject: PropertyContext) -> str:
    """Other contents come between, in tensors of their own, then in the very same, at the same address and version."""
    between = copy_tensors(subject.run(subject.other_problem))
    if message := subject.repeated(subject.whole, subject.run(subject.problem)):
        return f"after a call on other contents: {message}"
    own = contents.copied_with_strides(subject.problem)
    call = Call(own if own.lengths is None else replace(own, lengths=contents.placed_tensor(own.lengths)))
    others = ResultComparator(subject.other_problem, subject.declared)
    for problem, wanted, agreement in (
        (subject.problem, subject.whole, subject.agreement),
        (subject.other_problem, between, others),
        (subject.problem, subject.whole, subject.agreement),
    ):
        _refill(call.problem, problem)
        if message := subject.repeated(wanted, subject.run_call(call), agreement):
            return f"after new contents were put into the same tensors: {message}"
    return ""


def _refill(own: Problem, contents_of: Problem) -> None:
    """Writes through `data`, which torch does not count as a change."""
    pairs = [(own.x, contents_of.x), *zip(own.state, contents_of.state, strict=True)]
    pairs += zip(own.output_gradients, contents_of.output_gradients, strict=True)
    for mask, value in ((own.lengths, contents_of.lengths), (own.resets, contents_of.resets)):
        if mask is not None and value is not None:
            pairs.append((mask, value))
    for tensor, value in pairs:
        tensor.data.copy_(value)


def sees_weight_updates(subject: PropertyContext) -> str:
    """A layer of its own, called a few times on its first weights, against one that was built on the second."""
    if not subject.case.training:
        raise NotApplicable("weights change in training only")
    weights, new = contents.make_weights(subject.case), contents.make_weights(subject.case, "other")
    layer = subject.built(subject.case, weights)
    changing = replace(subject.problem, weights=weights)
    for _ in range(3):
        subject.run(changing, layer)
    for name, weight in weights.items():
        weight.data.copy_(new[name])
    got, fresh = subject.run(changing, layer), replace(subject.problem, weights=new)
    wanted = subject.run(fresh, subject.built(subject.case, new))
    message = ResultComparator(fresh, subject.declared).allclose(wanted, got)
    return message and f"after the weights were changed in place: {message}"


def current_stream(subject: PropertyContext) -> str:
    """The stream is kept busy, x is filled and the results are read on it: work on another comes too early or too late.

    No call had these contents before, or what is read too early could be what an earlier call has left.
    """
    _needs_gpu(subject)
    with torch.cuda.device(subject.case.device):
        side, new = torch.cuda.Stream(), subject.other_contents("stream")
        problem = contents.copied_with_strides(new)
        problem.x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(_DELAY_CYCLES)
            problem.x.copy_(new.x)
            got = copy_tensors(subject.run(problem))
        torch.cuda.synchronize()
        wanted = copy_tensors(subject.run(new))
        torch.cuda.synchronize()
    message = ResultComparator(new, subject.declared).allclose(wanted, got)
    return message and f"on a stream that fills x first: {message}"


def graph_capturable(subject: PropertyContext) -> str:
    """Captured on other contents. A layer that waits for the device cannot be captured, which is not wrong."""
    _needs_gpu(subject)
    call = Call(contents.copied_with_strides(subject.other_problem if subject.problem.lengths is None else subject.problem))
    capturing, timed = GraphCapture(subject.case.device), partial(call.forward_backward, subject.layer)
    with torch.set_grad_enabled(subject.case.training):
        try:
            capturing.warm_up(timed)
            graph, result = capturing.capture(timed)
        except NotCaptured as reason:
            raise NotApplicable(str(reason)) from reason
    with torch.no_grad():
        _refill(call.problem, subject.problem)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    got = call.results_by_name(*tree_map_tensors(Tensor.detach, result))
    message = subject.agreement.allclose(subject.whole, got)
    return message and f"replayed as a CUDA graph on contents that came after its capture: {message}"


def _needs_gpu(subject: PropertyContext) -> None:
    if not subject.case.device.startswith("cuda"):
        raise NotApplicable("a CPU has no streams and no CUDA graphs")
