"""Properties of a function that need no tolerance of their own: what its calls leave alone, and on which memory they are right.

Each takes a `Subject` and returns what is wrong in one line, empty if nothing is, or raises NotApplicable. Results are judged
by the reference of the arguments that they belong to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.cases.memory_layout import behind, spaced
from pytest_ecornn.kernels.arguments import Arguments, Function, FunctionCall, Incoming, made_once, run
from pytest_ecornn.kernels.reference import FunctionReference
from pytest_ecornn.system.graphs import GraphCapture, NotCaptured
from pytest_ecornn.verification import overlap
from pytest_ecornn.verification.agreement import differing_names
from pytest_ecornn.verification.calls import Copies, PoisonedAllocations, Tensors, copy_tensors
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, everything
from pytest_ecornn.verification.guards.guards import RedzoneAllocations, Redzones
from pytest_ecornn.verification.properties.subject import NotApplicable, changed

_REPEATS, _KEPT_RESULTS = 12, 4
_DELAY_CYCLES = 20_000_000  # of a GPU's clock: about 10 ms
_offset = partial(behind, count=3)  # at an address that is aligned to an element alone


class Subject:
    """A function, with arguments and others of the same shapes.

    expected: the reference of the arguments. expect: makes that of others, and of other gradients. changes: of global settings,
    by the first call ever.
    """

    def __init__(
        self,
        function: Function,
        expected: FunctionReference,
        others: Arguments,
        expect: Callable[..., FunctionReference],
        changes: Sequence[str] = (),
    ):
        self.function, self.others, self.expect, self.changes = function, others, expect, changes
        self.arguments, self.incoming = expected.arguments, expected.incoming
        self._references = {id(self.arguments): expected}

    def run(self, arguments: Arguments) -> Tensors:
        """Calls the function, on a copy of what other calls are judged by."""
        is_shared = arguments is self.arguments or arguments is self.others
        return run(self.function, arguments.copied() if is_shared else arguments, self.incoming)

    def judge(self, tensors: Tensors, arguments: Arguments) -> str:
        """Describes the first tensor that is wrong for these arguments, by the values of `arguments` or `others`."""
        key = id(arguments)
        if key not in self._references:
            self._references[key] = self.expect(arguments, incoming=self.incoming)
        return failure(self._references[key], tensors)

    def judged_with(self, incoming: Incoming) -> str:
        """Describes what is wrong with the results for other incoming gradients; empty where nothing is."""
        return failure(self.expect(self.arguments, incoming=incoming), run(self.function, self.arguments.copied(), incoming))


def failure(reference: FunctionReference, tensors: Tensors) -> str:
    """The messages of the tensors that are wrong; empty where none is."""
    return "; ".join(one.message for one in reference.compare(tensors) if one.status == "failed")


def globals_unchanged(subject: Subject) -> str:
    with GlobalStateGuard(everything()) as guard:
        subject.run(subject.arguments)
    return next(iter([*subject.changes, *guard.changes]), "")


def inputs_unchanged(subject: Subject) -> str:
    calling = FunctionCall(subject.arguments.copied(), subject.incoming)
    leaves = calling.arguments.tensors
    guard, places = Copies({name: leaf.detach() for name, leaf in leaves.items()}), _places(leaves)
    with torch.set_grad_enabled(calling.arguments.has_gradients):
        calling.forward_backward(subject.function)
    moved = [name for name, place in _places(leaves).items() if place != places[name]]
    if moved:
        return f"expected {moved[0]} where it was, but it has other memory or strides"
    return changed(guard)


def _places(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for name, tensor in tensors.items()}


def repeats(subject: Subject) -> str:
    first = copy_tensors(subject.run(subject.arguments))
    for number in range(2, _REPEATS + 1):
        if names := differing_names(first, subject.run(subject.arguments)):
            return f"call {number} of the same: {names[0]} has other bits"
    return ""


def stateless(subject: Subject) -> str:
    """Other contents come between, at the same addresses."""
    arguments = subject.arguments.copied()
    for contents in (subject.arguments, subject.others, subject.arguments):
        arguments.fill(contents)
        if message := subject.judge(subject.run(arguments), contents):
            return f"after other contents were put into the same tensors: {message}"
    return ""


def fresh_results(subject: Subject) -> str:
    results = [subject.run(subject.arguments)]
    copies = copy_tensors(results[0])
    results += [subject.run(subject.others) for _ in range(_KEPT_RESULTS)]
    if names := differing_names(copies, results[0]):
        return f"{names[0]} changed when the function was called again"
    given = [*subject.arguments.tensors.items(), *subject.others.tensors.items()]
    every = [(f"{name} of call {k}", t) for k, result in enumerate(results, 1) for name, t in result.items() if t is not None]
    if folded := [name for name, tensor in every if "grad " not in name and overlap.is_folded(tensor)]:
        return f"{folded[0]}: expected memory of its own for each element, got elements that share it"
    return overlap.shared([(name, tensor) for name, tensor in every if "grad " not in name], given)


def written(subject: Subject) -> str:
    """Memory of torch.empty holds numbers that a maximum or a comparison does not swallow."""
    for poison in (1e3, 0.0):
        with PoisonedAllocations(poison):
            tensors = subject.run(subject.arguments)
        if message := subject.judge(tensors, subject.arguments):
            return f"{poison:g} in memory of torch.empty: {message}"
    return ""


def guard_bands(subject: Subject) -> str:
    zones = Redzones()
    dense = subject.arguments.map(lambda _, t: t.detach().contiguous() if overlap.is_folded(t) else t.detach())
    arguments = dense.map(zones.copy)
    with RedzoneAllocations(zones):
        tensors = subject.run(arguments)
    message = subject.judge(tensors, subject.arguments)
    return zones.find_overwrite() or (message and f"with NaN around arguments and memory of torch.empty: {message}")


def _transposed(tensor: Tensor) -> Tensor:
    """The first two dimensions in the other order in memory."""
    return tensor.detach().transpose(0, 1).contiguous().transpose(0, 1)


def _laid_out(subject: Subject, layout: Callable[[Tensor], Tensor], dimensions: int) -> str:
    arguments = subject.arguments.map(lambda _, t: layout(t) if t.ndim >= dimensions and t.numel() else t.detach())
    return subject.judge(subject.run(arguments), subject.arguments)


def incoming_layouts(subject: Subject) -> str:
    """Gradients that lie otherwise in memory, and of sum(), which all are one element."""
    if not subject.arguments.has_gradients:
        raise NotApplicable("no argument requires a gradient")
    layouts: dict[str, Callable[[Tensor], Tensor]] = {
        "expanded from one number, as those of sum()": lambda t: t.new_ones(()).expand(t.shape),
        "offset": _offset,
        "spaced": lambda t: spaced(t) if t.ndim else t,
        "transposed": lambda t: _transposed(t) if t.ndim > 1 else t,
    }
    for label, layout in layouts.items():
        if message := subject.judged_with(partial(_laid_out_gradient, subject.incoming, layout)):
            return f"incoming gradients {label}: {message}"
    return ""


def _laid_out_gradient(own: Incoming, layout: Callable[[Tensor], Tensor], name: str, output: Tensor) -> Tensor | None:
    gradient = own(name, output)
    return None if gradient is None else layout(gradient)


def unused_outputs(subject: Subject) -> str:
    """Each output alone has an incoming gradient."""
    names = [name for name in subject.run(subject.arguments) if not name.startswith("grad ")]
    if len(names) < 2 or not subject.arguments.has_gradients:
        raise NotApplicable("one output, or no argument that requires a gradient")
    for used in names:
        if message := subject.judged_with(partial(_only, used, subject.incoming)):
            return f"only {used} used: {message}"
    return ""


def _only(used: str, own: Incoming, name: str, output: Tensor) -> Tensor | None:
    return own(name, output) if name == used else None


def calls_at_once(subject: Subject) -> str:
    """Two threads call on contents of their own."""
    tensors: dict[int, Tensors] = {}
    errors: list[Exception] = []

    def work(number: int, arguments: Arguments) -> None:
        try:
            for _ in range(_KEPT_RESULTS):
                tensors[number] = subject.run(arguments)
        except Exception as error:
            errors.append(error)

    both = (subject.arguments, subject.others)
    threads = [threading.Thread(target=work, args=(number, arguments)) for number, arguments in enumerate(both)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        return f"two threads at once: expected results, got {type(errors[0]).__name__}: {errors[0]}"
    return next(filter(None, (subject.judge(tensors[number], arguments) for number, arguments in enumerate(both))), "")


def current_stream(subject: Subject) -> str:
    """The stream is kept busy, the arguments are filled and the results read on it."""
    _needs_gpu(subject)
    with torch.cuda.device(subject.arguments.device):
        side, arguments = torch.cuda.Stream(), subject.arguments.copied()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(_DELAY_CYCLES)
            arguments.fill(subject.others)
            tensors = copy_tensors(subject.run(arguments))
        torch.cuda.synchronize()
    message = subject.judge(tensors, subject.others)
    return message and f"on a stream that fills the arguments first: {message}"


def capture(subject: Subject) -> str:
    """Captured on some contents, replayed on others."""
    _needs_gpu(subject)
    calling = FunctionCall(subject.others.copied(), made_once(subject.incoming))
    capturing = GraphCapture(str(subject.arguments.device))
    with torch.set_grad_enabled(calling.arguments.has_gradients):
        try:
            capturing.warm_up(partial(calling.forward_backward, subject.function))
            graph, result = capturing.capture(partial(calling.forward_backward, subject.function))
        except NotCaptured as reason:
            return str(reason)
    calling.arguments.fill(subject.arguments)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    message = subject.judge(calling.results_by_name(*result), subject.arguments)
    return message and f"replayed as a CUDA graph on contents that came after its capture: {message}"


def _needs_gpu(subject: Subject) -> None:
    if subject.arguments.device.type != "cuda":
        raise NotApplicable("a CPU has no streams and no CUDA graphs")


PROPERTIES: Mapping[str, tuple[str, Callable[[Subject], str]]] = {
    "globals_unchanged": ("settings that the whole process shares are left as they were", globals_unchanged),
    "inputs_unchanged": ("arguments are left as they were", inputs_unchanged),
    "repeats": ("the same call gives the same bits", repeats),
    "stateless": ("no call is affected by those before it", stateless),
    "fresh_results": ("results have memory of their own, which later calls do not touch", fresh_results),
    "written": ("every element of every result is written", written),
    "guard_bands": ("nothing is written outside the call's own memory, nor read", guard_bands),
    "strided": ("arguments may have gaps between their elements", partial(_laid_out, layout=spaced, dimensions=1)),
    "offset": ("arguments may begin anywhere in memory", partial(_laid_out, layout=_offset, dimensions=1)),
    "transposed": ("arguments may be transposed views", partial(_laid_out, layout=_transposed, dimensions=2)),
    "incoming_layouts": ("incoming gradients may have any memory layout", incoming_layouts),
    "unused_outputs": ("an output that is not used sends nothing back", unused_outputs),
    "calls_at_once": ("two threads may call at the same time", calls_at_once),
    "current_stream": ("work is put on the current stream", current_stream),
    "capture": ("a CUDA graph of a call computes on the contents that it finds", capture),
}
