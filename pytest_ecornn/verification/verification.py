"""The reference's results on a problem, and the judgement on a candidate: output, final states and all gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.cases import contents
from pytest_ecornn.cases.contents import Problem
from pytest_ecornn.contract import Case, Declared, Implementation, Layer, WeightRounding, Weights, cells
from pytest_ecornn.contract.weight_rounding import round_weights
from pytest_ecornn.reference import rounding
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification import comparison, rounding_shares, yardstick
from pytest_ecornn.verification.calls import Tensors, run, timed_run_guarded
from pytest_ecornn.verification.comparison import Array, Error, Mask, TensorCheck
from pytest_ecornn.verification.guards import ambient, tampering
from pytest_ecornn.verification.layer_rules import layer_rule
from pytest_ecornn.verification.yardstick import Permutation, PerturbedActivations, max_ulps


def reference_layer(problem: Problem) -> Layer:
    """The float64 reference in the form of a layer."""
    case = problem.case

    def layer(x: Tensor, state: Any, lengths: Tensor | None, resets: Tensor | None = None) -> Any:
        weights = {name: problem.weights.masked(name) for name in problem.weights}
        return cells.reference(case, weights, x, state, lengths, resets)

    return layer


# Multiply-adds of one step, beyond which a GPU takes less time for it than a CPU.
_MAX_CPU_ELEMENTS = 2**22


def reference_device(case: Case) -> str:
    """Returns the device of a case's reference and yardstick.

    On a GPU loops of small steps are launches and little else.
    """
    elements = len(cells.get(case.cell).gates) * case.hidden_size * (case.input_size + case.hidden_size)
    return "cpu" if case.batch * elements <= _MAX_CPU_ELEMENTS else case.device


class ReferenceResult:
    """The reference's results on a problem, and how far a plain loop is from them. Both have rounded weights where declared."""

    def __init__(self, problem: Problem, rounding: WeightRounding = "none"):
        """rounding: how the problem's weights were rounded."""
        tampering.record_access("the expected result")
        self.problem, self._rounding = problem, rounding
        self._rounded: dict[WeightRounding, ReferenceResult] = {}
        device = reference_device(problem.case)
        self._own = problem if device == problem.case.device else contents.to_device(problem, device)
        self._yardsticks: dict[Declared, list[yardstick.Errors]] = {}

    def rounded(self, rounding: WeightRounding) -> ReferenceResult:
        """The result for weights that are rounded so; itself where they are none or were before."""
        if rounding in ("none", self._rounding):
            return self
        if rounding not in self._rounded:
            problem = replace(self.problem, weights=round_weights(self.problem.weights, rounding))
            self._rounded[rounding] = ReferenceResult(problem, rounding)
        return self._rounded[rounding]

    def rounding_error(self, rounding: WeightRounding) -> float:
        """The root mean square by which rounded weights change the output, over that of the output."""
        exact, rounded = self.tensors["output"], self.rounded(rounding).tensors["output"]
        return float((rounded - exact).norm() / exact.norm())

    @cached_property
    def tensors(self) -> dict[str, Array]:
        return _reference(self._own)

    def valid(self, tensor: str) -> Mask | None:
        """Mask of the tensor's elements that count: not in padding, not at pruned weights. None: all count."""
        mask = self._own.weights.masks.get(tensor.removeprefix("grad "))
        if mask is not None:
            return mask
        if tensor in ("output", "grad x") and self._own.padding is not None:
            return ~self._own.padding[..., None]
        return None

    @cached_property
    def _measured(self) -> tuple[Problem, dict[str, Array], float]:
        """The problem that the loop runs on, its reference, and the scale of its errors."""
        if self._own.case.dtype != "float64":
            return self._own, self.tensors, 1.0
        narrow = replace(yardstick.converted(self._own, torch.float32), case=replace(self._own.case, dtype="float32"))
        # Twice: the float64 reference itself errs as much as a float64 candidate.
        return narrow, _reference(narrow), 2 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps

    def baseline_errors(self, declared: Declared, runs: int) -> yardstick.Errors:
        """Errors of the plain loop by tensor and slice: the worst of so many permutations, see `yardstick.run_counts`."""
        if (rounded := self.rounded(declared.weight_rounding)) is not self:
            return rounded.baseline_errors(declared, runs)
        done = self._yardsticks.setdefault(declared, [])
        for number in range(len(done), runs):
            done.append(self._run_yardstick(declared, number))
        return yardstick.elementwise_max(done[:runs])

    def _run_yardstick(self, declared: Declared, number: int) -> yardstick.Errors:
        is_searching = number >= yardstick.run_counts(self.tensors["output"].numel())[0]
        errors = self._run_loop(declared, number, is_searching, yardstick.run_rounding(self.problem.case, number, is_searching))
        if not is_searching or not rounding_shares.is_judged(self.problem.case.dtype):
            return errors
        return yardstick.with_shares(
            errors, self._run_loop(declared, number, False, yardstick.parted(self.problem.case, number))
        )

    def _run_loop(self, declared: Declared, number: int, is_searching: bool, rounds: rounding.Rounding) -> yardstick.Errors:
        problem, reference, scale = self._measured
        errors = {}
        permutation = Permutation.sample(problem.case, number)
        permuted = permutation.problem(problem, max_ulps(is_searching))
        loop = ReferenceLoop(declared, rounds)
        saves_values = declared.saved_gates == "float32" or problem.case.dtype == "float32"
        error, products = declared.activation_error, declared.products
        with PerturbedActivations(problem.case, number, error, is_searching, saves_values, products):
            tensors = run(loop.build(permuted.case, permuted.weights), permuted)
        for name, tensor in tensors.items():
            assert tensor is not None
            values = comparison.to_float64(permutation.undo(name, tensor), reference[name].device)
            rule, dtype = layer_rule(problem.case, name, values.shape), None if is_searching else tensor.dtype
            by_label = comparison.errors(values, reference[name], rule.slices, self.valid(name), rule.subnormal, dtype)
            errors[name] = {label: Error(e.rms * scale, e.maximum * scale, e.count, e.shares) for label, e in by_label.items()}
        return errors

    def compare(self, tensors: Tensors, declared: Declared, fewest_runs: int = 1) -> list[TensorCheck]:
        """The verdict on each tensor of the reference; what fails is judged again by the worst of more permutations.

        More runs only raise the limits, so this is the verdict of the most runs at the price of the fewest; but what is far
        over its limit by many is not judged by more. With 0 the rule's floors are the first limits: what passes by them needs
        no yardstick, but its share says less.
        """
        if (rounded := self.rounded(declared.weight_rounding)) is not self:
            return rounded.compare(tensors, declared, fewest_runs)
        counts = (fewest_runs, 1, *yardstick.run_counts(self.tensors["output"].numel()))
        return judged(self.tensors, lambda names, runs: self._judge(tensors, declared, names, runs), counts)

    def _judge(self, tensors: Tensors, declared: Declared, names: Sequence[str], runs: int) -> dict[str, TensorCheck]:
        yard = self.baseline_errors(declared, runs) if runs else {name: {"": comparison.NO_ERROR} for name in names}
        rules = {name: layer_rule(self.problem.case, name, self.tensors[name].shape) for name in names}
        return {
            name: comparison.check_tensor(rule, tensors.get(name), self.tensors[name], yard[name], self.valid(name))
            for name, rule in rules.items()
        }


def judged(
    names: Iterable[str], judge: Callable[[Sequence[str], int], dict[str, TensorCheck]], counts: Iterable[int]
) -> list[TensorCheck]:
    """The verdict on each tensor. What fails is judged again by more runs: these only raise the limits.

    judge: the verdicts on the tensors of such names, by so many runs.
    """
    verdicts, doubtful = dict[str, TensorCheck](), list(names)
    for runs in dict.fromkeys(counts):
        verdicts |= judge(doubtful, runs)
        failed = {name: check for name, check in verdicts.items() if check.status == "failed"}
        largest = math.inf if runs < yardstick.MANY_RUNS else yardstick.DECIDED
        doubtful = [name for name, check in failed.items() if not runs or check.share < largest]
        if not doubtful:
            break
    return list(verdicts.values())


def _reference(problem: Problem) -> dict[str, Array]:
    problem64 = yardstick.converted(problem, torch.float64)
    tensors = run(reference_layer(problem64), problem64)
    return {name: comparison.to_float64(t, t.device) for name, t in tensors.items() if t is not None}


@lru_cache(maxsize=4)
def _expected(case: Case) -> ReferenceResult:
    return ReferenceResult(contents.problem(case))


def keep_expected(count: int) -> None:
    """Keeps the expectations of so many cases, where many implementations are judged by the same ones."""
    global _expected
    _expected = lru_cache(maxsize=count)(_expected.__wrapped__)


def expected(case: Case) -> ReferenceResult:
    """The expectation for the case's own problem, kept for the next implementation that is judged by it.

    Of no use to a layer that gets hold of it: what is timed has other contents, for which nothing is computed until afterwards.
    """
    tampering.record_access("the expected result")
    return _expected(case)


@dataclass
class Candidate:
    """An implementation built for a case, ready to be run on any problem that shares `weights`.

    first_call_ms: of its first call, on poisoned memory. first: what that returned in training, on other weights, until it is
    judged.
    """

    name: str
    implementation: Implementation
    case: Case
    layer: Layer
    weights: Weights
    build_ms: float
    declared: Declared  # as it was before the layer was built
    first_call_ms: float = 0.0
    first: Tensors | None = None

    @classmethod
    def build(cls, name: str, make: Callable[[], Implementation], case: Case) -> Candidate:
        """Builds the implementation's layer for the case.

        In training mode it is built and run on other weights, which then change in place to the case's own. The case and the
        mapping of the weights are the layer's own, who could change their classes.
        """
        implementation, own = make(), expected(case).problem
        declared = implementation.declared
        weights = contents.make_weights(case, "decoy") if case.training else own.weights
        with ambient.random_states_restored():
            start = time.perf_counter()
            layer = implementation.build(replace(case), Weights(weights, weights.masks))
            build_ms = (time.perf_counter() - start) * 1e3
        candidate = cls(name, implementation, case, layer, weights, build_ms, declared)
        if case.training:
            first = candidate._run(replace(own, weights=weights))
            candidate.first = {name: None if tensor is None else Tensor.detach(tensor) for name, tensor in first.items()}
            for parameter, value in zip(weights.values(), own.weights.values(), strict=True):
                parameter.data.copy_(value)  # which torch does not count as a change
        return candidate

    @property
    def device(self) -> str:
        return self.case.device

    @property
    def is_training(self) -> bool:
        return self.case.training

    @property
    def result_bytes(self) -> int:
        """Size of one timed call's results, in bytes."""
        case = self.case
        states = case.layers * len(cells.get(case.cell).states)
        elements = case.directions * case.hidden_size * case.batch * (case.steps + states)
        if case.training:
            elements += case.steps * case.batch * cells.x_width(case) + sum(weight.numel() for weight in self.weights.values())
        return elements * contents.torch_dtype(case).itemsize

    def verify(self, fewest_runs: int = 1) -> list[TensorCheck]:
        """Runs on poisoned memory and compares every tensor with the reference, as `ReferenceResult.compare`."""
        wanted = expected(self.case)
        return wanted.compare(self._run(replace(wanted.problem, weights=self.weights)), self.declared, fewest_runs)

    def first_problem(self) -> Problem:
        """Builds what the first call was given where `first` is left to be judged."""
        return replace(expected(self.case).problem, weights=contents.make_weights(self.case, "decoy"))

    def _run(self, problem: Problem) -> Tensors:
        tensors, seconds = timed_run_guarded(self.layer, problem)
        self.first_call_ms = self.first_call_ms or seconds * 1e3
        return tensors


def failed_tensors(name: str, case: Case, comparisons: list[TensorCheck]) -> str:
    """Every failed tensor, a line each; empty when none failed."""
    failed = [f"  {comparison.message}" for comparison in comparisons if comparison.status == "failed"]
    return "\n".join([f"{name} is wrong on {case}:", *failed]) if failed else ""


def failure_message(name: str, case: Case, comparisons: list[TensorCheck]) -> str:
    """The failed tensors, and how to see them again; empty when none failed."""
    failed = failed_tensors(name, case, comparisons)
    return f"{failed}\nagain: {rerun_command(name, [case])}" if failed else ""


def rerun_command(name: str, cases: Iterable[Case | str], extra: str = "", *, is_timed: bool = False) -> str:
    """The command that runs an implementation on cases in their order: `is_timed` with their timing, else the checks alone."""
    each = "".join(f' --ecornn-case "{case}"' for case in cases)
    return f"pytest --ecornn-{'bench' if is_timed else 'verify'} --ecornn-only {name}{each}{extra}"
