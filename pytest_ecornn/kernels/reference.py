"""The reference of a function: its results in float64, and how far itself in the candidate's own dtype is from them.

What fails by the plain run is judged again by runs that search: float32 values move by units in the last place, and the result
of every operator is rounded to either neighbour at random.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from pytest_ecornn.cases.contents import generator
from pytest_ecornn.kernels.arguments import Arguments, Function, Incoming, function_name, run
from pytest_ecornn.reference.rounding import TF32_EPS, Dithered
from pytest_ecornn.system.dispatch import DispatchMode
from pytest_ecornn.system.error_line import error_line
from pytest_ecornn.verification import comparison, overlap
from pytest_ecornn.verification.calls import Copies, Tensors, WrongForm, WrongResult
from pytest_ecornn.verification.comparison import Array, Error, Mask, Measures, Slices, TensorCheck, TensorRule
from pytest_ecornn.verification.rounding_shares import Independent, Shares
from pytest_ecornn.verification.verification import judged
from pytest_ecornn.verification.yardstick import Errors, elementwise_max, max_ulps, moved

# Of a tensor too small to be judged by its rounding alone: its rule, the reference's own error and the candidate's.
Rounded = tuple[TensorRule, Error, Error]
RUNS = (1, 4, 24)  # of the reference in its own dtype, while a tensor fails
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
_FILL = 2.0**10  # times the largest of the others, beyond which a number that stands in several places is one of a mask
_LONGEST = 4096  # terms of a sum, unless `terms` says more
_ZERO_FACTOR = 64.0  # units in the last place of the largest number given, by which a 0 may be off
_LEAST_SHARED = 512  # elements of a slice whose rounding is judged: of fewer, chance decides
_FAINT, _LEAST_ROW, _MOST_FAINT = 2.0**-4, 8, 64  # a row's size, as a share of the tensor's; its elements; rows of an axis
_FAINT_ERROR = 2.0**-1  # of float32's eps of the tensor: what rounding within a function may leave of terms that cancel out
_BLOCKS = 8  # of an axis of twice as many elements or more, beside its first and last


class UnusableReference(ValueError):
    """The reference cannot judge: it does not run in float64, or rounds there."""


class _InFloat64(DispatchMode):
    """Within it, a cast or a new tensor of a narrower floating type is of float64: a reference rounds nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in _WIDER:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class _DitheredOperators(DispatchMode):
    """Within it, an operator computes in a wider type, and its results are rounded to either neighbour at random."""

    def __init__(self, rounding: Dithered) -> None:
        super().__init__()
        self._rounding = rounding

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain = func(*args, **kwargs)
        if not isinstance(func, OpOverload) or _has_alias(func) or torch.Tag.nondeterministic_seeded in func.tags:
            return plain
        wide_args, wide_kwargs = tree_map(_widened, (args, kwargs))
        try:
            wide = func(*wide_args, **wide_kwargs)
        except Exception:  # an operator that has no wider form
            return plain
        return tree_map(self._rounded, plain, wide)

    def _rounded(self, plain: Any, wide: Any) -> Any:
        if not isinstance(plain, Tensor) or plain.dtype not in _WIDER or wide.dtype == plain.dtype:
            return plain
        return self._rounding.to(wide, plain.dtype)


def _has_alias(operator: OpOverload) -> bool:
    """Whether an operator writes into an argument, or returns a view of one."""
    return any(argument.alias_info is not None for argument in (*operator._schema.arguments, *operator._schema.returns))


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in _WIDER:
        return value.to(_WIDER[value.dtype])
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


@contextmanager
def _exact() -> Iterator[None]:
    """Within it, new tensors and casts are of float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _InFloat64():
            yield
    finally:
        torch.set_default_dtype(before)


def rounding_problem(draws: Sequence[Rounded]) -> str:
    """What the elements of several draws of a tensor show together; empty if nothing, or if all are too few."""
    rules, yardsticks, errors = zip(*draws, strict=True)
    yard, error = _pooled(yardsticks), _pooled(errors)
    rule = max(rules, key=lambda rule: rule.terms)._replace(independent=Independent(error.count, error.count))
    is_over = error.shares.differing > comparison.limits(rule, yard, error).differing
    position = Measures._fields.index("differing")
    return comparison.failure_text(rule, f"over {len(draws)} draws", error, yard, position) if is_over else ""


def _pooled(errors: Sequence[Error]) -> Error:
    """The share of the elements of all that differ, as if they were of one tensor."""
    total = sum(one.shares.counted for one in errors)
    differing = sum(one.shares.counted * one.shares.differing for one in errors)
    return Error(0.0, 0.0, max(1, total), Shares(differing / max(1, total), 0.0, total))


class FunctionReference:
    """The expected results of one call. Raises UnusableReference where the reference does not compute in float64.

    terms: of the longest sum in the function; None: the longest dimension of an argument, or what a smaller result sums up.
    """

    def __init__(
        self, function: Function, arguments: Arguments, incoming: Incoming, precision: str = "ieee", terms: int | None = None
    ):
        self.arguments, self.incoming = arguments, incoming
        self._function, self._precision, self._terms = function, precision, terms
        self._has_float64 = any(tensor.dtype == torch.float64 for tensor in arguments.tensors.values())
        self._errors: list[Errors] = []
        self._fills, self._rules = dict[str, Mask | None](), dict[str, TensorRule]()
        self.own, gradients = self._own_results(arguments)
        self.tensors = self._exact_results(arguments, gradients)
        has_equal_elements = any(gradient is not None and overlap.is_folded(gradient) for gradient in gradients.values())
        self._least_shared = sys.maxsize if has_equal_elements else _LEAST_SHARED
        values = [*arguments.tensors.values(), *(one for one in gradients.values() if one is not None)]
        sizes = [float(one.detach().abs().amax()) for one in values if one.is_floating_point() and one.numel()]
        self._largest = max(sizes, default=0.0)

    def _own_results(self, arguments: Arguments) -> tuple[Tensors, Tensors]:
        """The results in the arguments' own dtype, and the incoming gradients that they had."""
        gradients: Tensors = {}

        def recorded(name: str, output: Tensor) -> Tensor | None:
            gradients[name] = self.incoming(name, output)
            return gradients[name]

        own = arguments.copied()
        guard = Copies(own.tensors)
        try:
            results = run(self._function, own, recorded)
            guard.check()
            return results, gradients
        except WrongForm:
            raise
        except WrongResult as wrong:
            raise UnusableReference(f"the reference {function_name(self._function)}: {wrong}") from wrong
        except Exception as error:
            raise UnusableReference(f"expected a reference that runs on these arguments, got {error_line(error)}") from error

    def _exact_results(self, arguments: Arguments, gradients: Tensors) -> dict[str, Array]:
        """gradients: incoming, of the run in the own dtype."""
        wide = arguments.map(lambda _, t: t.detach().double() if t.is_floating_point() else t.detach().clone())
        given = {name: None if one is None else one.double() for name, one in gradients.items()}
        try:
            with _exact():
                tensors = run(self._function, wide, lambda name, output: given.get(name))
        except Exception as error:
            raise UnusableReference(f"expected a reference that runs in float64, got {error_line(error)}") from error
        results = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        for name, tensor in results.items():
            made = f"{name} of {tensor.dtype}"
            if tensor.is_complex():
                raise UnusableReference(f"expected real results, got {made}: torch.view_as_real makes one of it")
            if tensor.is_floating_point() and tensor.dtype != torch.float64:
                raise UnusableReference(f"expected a reference that computes in the dtype of its arguments, but made {made}")
        return results

    @property
    def own_error(self) -> float:
        """The largest error of the reference in its own dtype, of any tensor."""
        return max((error.rms for errors in self._baseline_errors(1).values() for error in errors.values()), default=0.0)

    def compare(self, tensors: Tensors) -> list[TensorCheck]:
        """The verdict on each tensor. Raises WrongForm where there are other outputs than the reference's."""
        wanted, got = ([name for name in names if not name.startswith("grad ")] for names in (self.own, tensors))
        if not wanted:
            raise UnusableReference("expected a reference that returns a tensor, got none")
        if sorted(wanted) != sorted(got):
            raise WrongForm(f"expected {', '.join(wanted)}, as the reference returns; got {', '.join(got) or 'none'}")
        names = [name for name, tensor in self.own.items() if tensor is not None]
        spare = [self._check_zero(name, tensors.get(name)) for name in self.own if name not in names]
        failed = [one for one in spare if one.status == "failed"]
        return failed + judged(names, lambda doubtful, runs: self._judge(tensors, doubtful, runs), RUNS)

    def small(self, tensors: Tensors) -> Iterator[Rounded]:
        """The rounding of each tensor that is too small to be judged by it alone."""
        for name, by_slice in self._baseline_errors(1).items() if self._least_shared == _LEAST_SHARED else ():
            tensor, yard, rule = tensors.get(name), by_slice.get("", comparison.NO_ERROR), self._rule(name)
            is_small = tensor is not None and tensor.itemsize == 2 and yard.shares.counted < _LEAST_SHARED
            if tensor is not None and is_small and yard.rms <= comparison.UNSTABLE * rule.eps:
                yield rule, yard, self._errors_of(name, tensor, self.tensors[name], 1.0, 0)[""]

    def _judge(self, tensors: Tensors, names: Sequence[str], runs: int) -> dict[str, TensorCheck]:
        yard = self._baseline_errors(runs)
        return {name: self._check(name, tensors.get(name), yard.get(name, {})) for name in names}

    def _check(self, name: str, actual: Tensor | None, yard: dict[str, Error]) -> TensorCheck:
        own, reference = self.own[name], self.tensors[name]
        assert own is not None
        problem = comparison.form_problem(actual, tuple(own.shape), own.dtype, str(own.device))
        is_zero = own.is_floating_point() and not reference.any() and not own.any()
        if (problem or actual is None) and not (is_zero and actual is None and name.startswith("grad")):
            return comparison.failed(name, problem)
        if not own.numel():
            return TensorCheck(name, "passed")
        if is_zero:
            return self._check_zero(name, actual)
        assert actual is not None
        if not own.is_floating_point():
            return _check_integers(name, actual, own, reference)
        if (fill := self._fill(name)) is not None:
            if not torch.allclose(actual[fill].double(), own[fill].double(), rtol=4 * torch.finfo(own.dtype).eps, atol=0.0):
                return comparison.failed(name, f"expected {own[fill][0].item():.6g} wherever it is filled")
            actual, reference = actual.masked_fill(fill, 0.0), reference.masked_fill(fill, 0.0)
        shape = tuple(reference.shape) or (1,)
        return comparison.check_tensor(self._rule(name), actual.reshape(shape), reference.reshape(shape), yard)

    def _fill(self, name: str) -> Mask | None:
        """Where one number stands that is far larger than all others, as the -1e9 of a mask: it would hide their errors."""
        if name not in self._fills:
            exact = self.tensors[name]
            sizes = exact.abs().flatten()
            fill = exact == exact.flatten()[sizes.argmax()]
            rest = sizes[~fill.flatten()]
            is_fill = int(fill.sum()) > 1 and rest.numel() and sizes.max() > _FILL * rest.max()
            self._fills[name] = fill if is_fill else None
        return self._fills[name]

    def _check_zero(self, name: str, actual: Tensor | None) -> TensorCheck:
        """The verdict on what is exactly 0 in the reference: rounding of what the call was given may remain."""
        if actual is None or not actual.numel():
            return TensorCheck(name, "passed")
        largest = float(actual.detach().abs().amax())
        if largest <= _ZERO_FACTOR * torch.finfo(actual.dtype).eps * self._largest:
            return TensorCheck(name, "passed")
        return comparison.failed(name, f"expected 0 throughout, got {largest:.4g}")

    def _rule(self, name: str) -> TensorRule:
        if name not in self._rules:
            self._rules[name] = self._made_rule(name)
        return self._rules[name]

    def _made_rule(self, name: str) -> TensorRule:
        own, reference = self.own[name], self.tensors[name]
        assert own is not None
        shape, count = tuple(reference.shape) or (1,), max(1, reference.numel())
        is_coarser = self._precision == "tf32" and own.dtype == torch.float32
        rows, eps = max(1, count // max(shape)), TF32_EPS if is_coarser else torch.finfo(own.dtype).eps
        slices, fill = list(_slices(shape)), self._fill(name)
        if not name.startswith("grad "):  # where what cancels out may be far larger
            values = reference if fill is None else reference.masked_fill(fill, 0.0)
            slices += _faint_rows(values.reshape(shape), _FAINT_ERROR * min(1.0, torch.finfo(torch.float32).eps / eps))
        return TensorRule(
            name, own.dtype, str(own.device), eps, tuple(slices), self._terms or self._longest(count), 1,
            Independent(count, rows), least_shared=self._least_shared, vanished=4 * torch.finfo(own.dtype).smallest_normal,
        )  # fmt: skip

    def _longest(self, count: int) -> int:
        """The longest sum before a tensor of so many elements, up to a limit: along an axis, or over all that it lacks."""
        inputs = list(self.arguments.tensors.values())
        longest = max((size for tensor in inputs for size in tensor.shape), default=1)
        return min(_LONGEST, max(longest, max(tensor.numel() for tensor in inputs) // count))

    def _baseline_errors(self, runs: int) -> Errors:
        """The worst of so many runs of the reference in its own dtype; of float64 in float32, scaled."""
        self._errors += [self._run_in_own_dtype(number) for number in range(len(self._errors), runs)]
        return elementwise_max(self._errors[:runs])

    @cached_property
    def _measured(self) -> tuple[Arguments, Tensors, dict[str, Array], float]:
        """Arguments of the runs, results of the plain one and in float64, and the scale of the errors."""
        if not self._has_float64:
            return self.arguments, self.own, self.tensors, 1.0
        narrow = self.arguments.map(lambda _, t: t.detach().float() if t.dtype == torch.float64 else t.detach())
        # Twice: the float64 reference itself errs as much as a float64 candidate.
        scale = 2 * torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        own, gradients = self._own_results(narrow)
        return narrow, own, self._exact_results(narrow, gradients), scale

    def _run_in_own_dtype(self, number: int) -> Errors:
        arguments, tensors, exact, scale = self._measured
        if number:
            random = generator(number, "dithered operators")
            values = arguments.map(lambda _, tensor: moved(tensor.detach(), random, max_ulps(True)))
            with _DitheredOperators(Dithered(random)):
                tensors = run(self._function, values, self.incoming)
        floats = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor is not None and tensor.is_floating_point() and tensor.numel() and name in exact
        }
        return {name: self._errors_of(name, tensor, exact[name], scale, number) for name, tensor in floats.items()}

    def _errors_of(self, name: str, tensor: Tensor, exact: Array, scale: float, number: int) -> dict[str, Error]:
        rule, shape, own = self._rule(name), tuple(exact.shape) or (1,), self.own[name]
        scale = scale if own is not None and own.dtype == torch.float64 else 1.0
        values = comparison.to_float64(tensor, exact.device)
        if (fill := self._fill(name)) is not None:
            values, exact = values.masked_fill(fill, 0.0), exact.masked_fill(fill, 0.0)
        values = values.reshape(shape)
        dtype = None if number else tensor.dtype  # what is rounded to either neighbour has no shares to speak of
        found = comparison.errors(values, exact.reshape(shape), rule.slices, None, rule.subnormal, dtype)
        whole = found.get("", comparison.NO_ERROR)  # by luck a slice may be exact, as where p = x / x
        return {
            label: Error(max(e.rms, whole.rms) * scale, max(e.maximum, whole.maximum) * scale, e.count, e.shares)
            for label, e in found.items()
        }


def failure(checks: Iterable[TensorCheck]) -> str:
    """The messages of the tensors that are wrong; empty where none is."""
    return "; ".join(one.message for one in checks if one.status == "failed")


def _label(axis: int, start: int, stop: int) -> str:
    return f"[{':, ' * axis}{start if stop - start == 1 else f'{start}:{stop}'}]"


def _slices(shape: Sequence[int]) -> Iterator[Slices]:
    """Each axis: its first element, its last, and eight blocks where it is long. Tails and edges are where kernels err.

    A slice has its tensor's scale at least: of an unknown function, terms that cancel out may have been larger.
    """
    for axis, length in enumerate(shape):
        spans = [(0, 1), (length - 1, length)] if length > 1 else []
        if length >= 2 * _BLOCKS:
            spans += pairwise([length * k // _BLOCKS for k in range(_BLOCKS + 1)])
        yield Slices(axis, {"": (0, length), **{_label(axis, *span): span for span in spans}}, least_scale=1.0)


def _faint_rows(values: Array, least_scale: float) -> Iterator[Slices]:
    """Along each axis rows that are far smaller than their tensor, whose errors no other slice shows; of many some."""
    for axis, length in enumerate(values.shape):
        rows = values.nan_to_num(0.0, 0.0, 0.0).movedim(axis, 0).reshape(length, -1)
        squares = rows.square().mean(1)
        faint = (squares < _FAINT**2 * squares.mean()).nonzero().flatten().tolist() if rows.shape[1] >= _LEAST_ROW else []
        spans = [(k, k + 1) for k in faint[:: 1 + len(faint) // _MOST_FAINT]]
        if spans:
            yield Slices(axis, {"": (0, length), **{_label(axis, *span): span for span in spans}}, least_scale)


def _check_integers(name: str, actual: Tensor, own: Tensor, reference: Tensor) -> TensorCheck:
    """Integers must be the reference's, where rounding does not change these."""
    firm = own.to(reference.dtype) == reference
    wrong = (firm & (actual != own)).nonzero()
    if len(wrong):
        place = wrong[0].tolist()
        return comparison.failed(name, f"at {place} expected {own[tuple(place)].item()}, got {actual[tuple(place)].item()}")
    return TensorCheck(name, "passed" if bool(firm.any()) else "uninformative")
