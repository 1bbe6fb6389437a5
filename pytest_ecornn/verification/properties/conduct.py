"""Properties of the call: repeated, stateless, on memory and settings that are not its own.

Each takes a `CallSubject`, of a layer or a function, or what only a layer has. It raises WrongResult that says what is wrong in
one line; or NotApplicable, or NotCaptured.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.system.graphs import GraphCapture
from pytest_ecornn.verification import overlap
from pytest_ecornn.verification.agreement import bitwise_equal
from pytest_ecornn.verification.calls import Copies, PoisonedAllocations, Tensors, copy_tensors, fill, tree_map_tensors
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, everything, has_busy_threads, live_threads
from pytest_ecornn.verification.guards.guards import RedzoneAllocations, Redzones
from pytest_ecornn.verification.properties.subject import CallSubject, NotApplicable, PropertyContext, changed, reject

_LONGEST_SECONDS, _FEWEST_REPEATS = 5.0, 3
_FEWEST_KEPT, _KEPT_RESULTS = 6, 17  # more than a layer that uses its buffers in turn is likely to have
_ALIKE = 8  # calls that are compared with calls like them
_DELAY_CYCLES = 20_000_000  # of a GPU's clock: about 10 ms


def repeatable(subject: CallSubject) -> None:
    """A race that shows once in twenty calls is seen in three cases of twenty repeats at 95 %."""
    start = time.monotonic()
    for number in range(1, subject.num_repeats + 1):
        reject(subject.repeated(subject.whole, subject.run(subject.problem)), f"call {number + 1} of the same")
        if number >= _FEWEST_REPEATS and time.monotonic() - start > _LONGEST_SECONDS:
            return


def inputs_unchanged(subject: CallSubject) -> None:
    """Checks that the build, the first call and a later one on other contents leave inputs unchanged."""
    problem = subject.other_problem.copied()
    guard = Copies(problem.tensors)
    subject.run_call(subject.call(problem))
    reject(subject.written_into or changed(guard))


def writes_every_element(subject: PropertyContext) -> None:
    """A layer built and called on poison. NaN may be swallowed by a maximum or a comparison; what is finite is not.

    A result that differs on the same poison as well is none of its.
    """
    for poison, other in ((float("nan"), 0.0), (0.0, 1e3), (1e3, 0.0)):
        got = _on_poison(subject, poison)
        message = subject.repeated(subject.whole, got)
        if message and _is_of_poison(subject, poison, got):
            difference = subject.repeated(_on_poison(subject, other), got) or message
            reject(difference, f"{poison:g} in place of {other:g} in memory of torch.empty")


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


def guard_bands(subject: CallSubject) -> None:
    bands = Redzones()
    problem = bands.around(subject.problem)
    with RedzoneAllocations(bands):
        got = subject.run_anew(problem)
    message = subject.allclose(subject.whole, got)  # elsewhere in memory: sums may be blocked otherwise
    reject(bands.find_overwrite())
    reject(message, "with NaN around all that is given and memory of torch.empty")


def globals_unchanged(subject: CallSubject) -> None:
    """Checks shared settings after the first build and call, and after later calls.

    Threads may start once, and must rest.
    """
    was_burning, counts = has_busy_threads(), []
    with GlobalStateGuard(everything()) as settings:
        for _ in range(4):
            subject.run(subject.problem)
            counts.append(live_threads())
    reject(next(iter(subject.kept.changes + settings.changes), ""))
    if all(before < after for before, after in pairwise(counts)):
        reject(f"threads: expected no more after a call than before it, got {', '.join(map(str, counts))} after one call each")
    if not was_burning and has_busy_threads():
        reject("threads: expected them to rest after a call, but a core is busy")


def results_not_aliased(subject: CallSubject) -> None:
    """Held together with those of later calls on other contents: of a slow layer fewer, as of `repeatable`."""
    start, problem = time.monotonic(), subject.problem.copied()
    held = [subject.run_call(subject.call(problem))]
    copies = copy_tensors(held[0])
    while len(held) < _FEWEST_KEPT or (len(held) < _KEPT_RESULTS and time.monotonic() - start < _LONGEST_SECONDS):
        held.append(subject.run(subject.other_problem))
    if difference := bitwise_equal(copies, held[0]):
        reject(f"once later calls were made, {difference}")
    results = [
        (f"{name} of call {number}", t)
        for number, result in enumerate(held, 1)
        for name, t in result.items()
        if t is not None and "grad" not in name
    ]
    if folded := [name for name, result in results if overlap.is_folded(result)]:
        reject(f"{folded[0]}: expected memory of its own for each element, got elements that share it")
    reject(overlap.shared(results, [*problem.tensors.items()]))


def remembers_calls(subject: PropertyContext) -> None:
    """Two new layers are called alike: where all calls of both agree, but not with the first one, calls affect later ones."""
    layers = [subject.built(subject.case, subject.problem.weights) for _ in range(2)]
    first, second = ([copy_tensors(subject.run(subject.problem, layer)) for _ in range(_ALIKE)] for layer in layers)
    if not any(bitwise_equal(*results) for results in zip(first, second, strict=True)):
        for number, results in enumerate(first, 1):
            reject(subject.repeated(first[0], results), f"call {number} of the same, of each of two layers")


def stateless(subject: CallSubject) -> None:
    """Other contents come between, in tensors of their own, then in the very same, at the same address and version."""
    between = copy_tensors(subject.run(subject.other_problem))
    reject(subject.repeated(subject.whole, subject.run(subject.problem)), "after a call on other contents")
    own, mine = subject.problem.copied(), (subject.problem, subject.whole)
    call = subject.call(own)
    for problem, wanted in (mine, (subject.other_problem, between), mine):
        fill(own, problem)
        message = subject.repeated(wanted, subject.run_call(call), problem)
        reject(message, "after new contents were put into the same tensors")


def sees_weight_updates(subject: PropertyContext) -> None:
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
    reject(subject.allclose(wanted, got, fresh), "after the weights were changed in place")


def current_stream(subject: CallSubject) -> None:
    """The stream is kept busy, inputs are filled and the results read on it: work on another comes too early or too late.

    No call had these contents before, or what is read too early could be what an earlier call has left.
    """
    _needs_gpu(subject)
    with torch.cuda.device(subject.device):
        side, new, own = torch.cuda.Stream(), subject.other_contents("stream"), subject.problem.copied()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(_DELAY_CYCLES)
            fill(own, new)
            got = copy_tensors(subject.run_call(subject.call(own)))
        torch.cuda.synchronize()
        wanted = copy_tensors(subject.run(new))
        torch.cuda.synchronize()
    reject(subject.allclose(wanted, got, new), "on a stream that fills its inputs first")


def graph_capturable(subject: CallSubject) -> None:
    """Captured on other contents, where there are no lengths, which the host reads. Raises NotCaptured."""
    _needs_gpu(subject)
    own = (subject.problem if "lengths" in subject.problem.tensors else subject.other_problem).copied()
    call, capturing = subject.call(own), GraphCapture(subject.device)
    timed = partial(call.forward_backward, subject.layer)
    with torch.set_grad_enabled(subject.is_training):
        capturing.warm_up(timed)
        graph, result = capturing.capture(timed)
    fill(own, subject.problem)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    got = call.results_by_name(*tree_map_tensors(Tensor.detach, result))
    reject(subject.allclose(subject.whole, got), "replayed as a CUDA graph on contents that came after its capture")


def _needs_gpu(subject: CallSubject) -> None:
    if not subject.device.startswith("cuda"):
        raise NotApplicable("a CPU has no streams and no CUDA graphs")
