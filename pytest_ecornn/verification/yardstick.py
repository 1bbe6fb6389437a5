"""How far a plain loop in the case's own precision is from the reference: what every candidate's error is measured by.

The loop runs on the same problem with its input and hidden indices permuted: the function is the same, the order of every
sum is not, so the spread of correct answers shows. Where few orders exist (one hidden unit has one), float32 values are
also moved by one unit in the last place, which no sum in float32 can tell from its own rounding; so is every gate, as by
another library's exponential (1 - z loses most of z where the gate is near one). A float64 loop would share the reference's
rounding; there the float32 loop's error is scaled by the ratio of the two precisions.

What a candidate fails by these runs is judged again by more, which also search: values and gates move by two units, as far as
CUDA's own functions may be off, each rounding goes to either neighbour, and what bends at 0 (relu, minGRU's positive candidate)
is on either side at random where the pre-activation is as near to 0 as rounding may take it.

In every other run, of either kind, a step has its other algebra, where the cell names one. There the final state is the last
output, and a state carried in storage the output: autograd then rounds the sum of their gradients.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_ecornn.cases.contents import Problem, generator
from pytest_ecornn.contract import Case
from pytest_ecornn.reference import rounding as _rounding
from pytest_ecornn.reference.rounding import Dithered, Parted
from pytest_ecornn.verification.comparison import Error
from pytest_ecornn.verification.rounding_shares import Shares

Errors = dict[str, dict[str, Error]]  # by tensor, by slice

TINY, SMALL, LARGE = 2**6, 2**14, 2**20  # elements of the output
# What is over its limit as many times after MANY_RUNS stays so after the more of a tiny tensor.
MANY_RUNS, DECIDED = 32, 4.0


def to_float32(problem: Problem) -> Problem:
    """A float64 problem rounded to float32."""
    narrow = problem.map(lambda _, tensor: tensor.detach().float() if tensor.is_floating_point() else tensor)
    return replace(narrow, case=replace(problem.case, dtype="float32"))


def run_counts(size: int) -> tuple[int, ...]:
    """How many permutations to run for an output of `size` elements, then how many in turn where a candidate fails by them.

    In a small tensor one element may carry the whole error, and a few runs may all be lucky in it; in relu's gradients one
    may in a larger tensor too. Of one hidden unit's gradients in 16 bits one run in a hundred errs six times the median. Of
    the largest tensors many runs would take minutes. Half the runs are of the other form.
    """
    if size <= TINY:
        return 3, MANY_RUNS, 128
    fewest, most = (3, MANY_RUNS) if size <= SMALL else (1, 16)
    return fewest, most if size <= LARGE else 4


def rounding(case: Case, number: int, is_searching: bool) -> _rounding.Rounding:
    """Returns a run's rounding: to nearest, or to either neighbour where it `is_searching`.

    Every other run is of the other form.
    """
    is_other_form = bool(number % 2)
    if is_searching:
        return Dithered(generator(case.seed, f"rounding {number}"), is_other_form)
    return _rounding.Rounding(is_other_form)


def parted(case: Case, number: int) -> _rounding.Rounding:
    """Returns a run's rounding to nearest, of sums in parts.

    Values rounded to either neighbour have no shares to speak of. Every other run is of the other form.
    """
    return Parted(generator(case.seed, f"parts {number}"), bool(number % 2))


def with_shares(errors: Errors, shares: Errors) -> Errors:
    """`errors`, with the shares of another run of the same number."""
    return {
        tensor: {label: replace(error, shares=shares[tensor][label].shares) for label, error in slices.items()}
        for tensor, slices in errors.items()
    }


def elementwise_max(runs: list[Errors]) -> Errors:
    """Slice by slice the larger of several runs' errors."""
    return {
        tensor: {
            label: Error(
                max(run[tensor][label].rms for run in runs),
                max(run[tensor][label].maximum for run in runs),
                error.count,
                _worst_shares([run[tensor][label].shares for run in runs]),
            )
            for label, error in slices.items()
            if all(label in run[tensor] for run in runs)
        }
        for tensor, slices in runs[0].items()
    }


def _worst_shares(runs: list[Shares]) -> Shares:
    return Shares(max(run.differing for run in runs), max(run.bias for run in runs), runs[0].counted)
