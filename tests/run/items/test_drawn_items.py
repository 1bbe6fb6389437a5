"""Rows of drawn cases and of properties: what their reasons say, and how what they found is repeated."""

from __future__ import annotations

import itertools
import re
import secrets
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.run.items.drawn_items import DrawnItem, PropertyItem
from pytest_ecornn.selfcheck.trial_session import TRIAL, TrialSession
from pytest_ecornn.verification.properties.properties import PropertyViolation, by_name, check
from pytest_ecornn.verification.properties.subject import PropertyContext
from tests.helpers.changed_loop import Wrap, of_calls, planted

CASE = Case.parse("gru-T6-B3-H5-float32-state-training")


def property_row(wrap: Wrap, text: str = str(CASE), **options: Any) -> Row:
    """The row of the properties of a changed loop, on one case."""
    mine = replace(discover([])["sequential"], name="mine", cls=planted(wrap), is_own=False)
    return PropertyItem(TrialSession(replace(TRIAL, **options)), mine, Case.parse(text), is_fixed=True).finished()


@of_calls
def raises_on_one_step(layer: Any, x: Any, *rest: Any) -> Any:
    if len(x) == 1:
        raise ValueError("expected two steps or more, got 1")
    return layer(x, *rest)


def raises_once(after: int) -> Wrap:
    seen: list[int] = []

    @of_calls
    def call(layer: Any, *given: Any) -> Any:
        seen.append(1)
        if len(seen) == after:
            raise RuntimeError("no such stream")
        return layer(*given)

    return call


def test_what_a_property_makes_a_layer_raise_is_named_with_the_property_and_does_not_vary() -> None:
    row = property_row(raises_on_one_step)
    first, *_, again = row.reason.splitlines()
    assert row.status == "failed"
    assert "results vary" not in row.reason
    assert first.startswith(f"mine on {CASE}: expected a result of use, got ValueError")
    assert first.endswith(
        "expected two steps or more, got 1; by a layer of gru-T1-B3-H5-float32-state-training when split was checked: "
        "two parts, the second from the first's final state, equal the whole"
    )
    assert f'--ecornn-case "{CASE}"' in again


@pytest.mark.parametrize("after", [1, 30])
def test_what_a_property_makes_a_layer_raise_once_varies(after: int) -> None:
    row = property_row(raises_once(after))
    assert row.reason.startswith(f"mine on {CASE}: results vary: 1 of 4 runs failed\nmine on {CASE}: ")


def keeps_state_from_call(number: int) -> Wrap:
    """From that call on a sequence without an initial state goes on where the last call ended."""

    def wrap(layer: Any, case: Case, weights: Weights) -> Layer:
        finals: list[Any] = []

        def run(x: Any, state: Any, lengths: Any) -> Any:
            output, final = layer(x, finals[-1] if state is None and len(finals) >= number - 1 else state, lengths)
            finals.append(final.detach())
            return output, final

        return run

    return wrap


@of_calls
def leaves_padding(layer: Any, x: Any, state: Any, lengths: Any) -> Any:
    output, final = layer(x, state, lengths)
    padding = (torch.arange(len(x))[:, None] >= lengths)[..., None]
    return torch.where(padding, torch.empty_like(output) * 1.5, output), final


@of_calls
def loses_the_carry(layer: Any, x: Any, state: Any, lengths: Any) -> Any:
    """Between chunks of four steps."""
    if len(x) <= 4:
        return layer(x, state, lengths)
    first, second = layer(x[:4], state, lengths), layer(x[4:], None, lengths)
    return torch.cat([first[0], second[0]]), second[1]


@of_calls
def rounds_at_random(layer: Any, *given: Any) -> Any:
    output, final = layer(*given)
    return output * (1 + 2e-7 * secrets.randbelow(4)), final


@pytest.mark.parametrize(
    ("wrap", "text", "cause"),
    [
        (keeps_state_from_call(4), "gru-T6-B3-H5-float32-training", "stateless is broken: no call is affected"),
        (leaves_padding, "gru-T6-B3-H5-float32-ragged", "written is broken: .* torch.empty: output: .* got (nan|0|1000)"),
        (loses_the_carry, "gru-T6-B3-H5-float32-state", r"mine is wrong on \S+:\n  output.* is over its limit"),
        (rounds_at_random, "gru-T6-B3-H5-float32", "repeats is broken: the same call gives the same result"),
    ],
    ids=["state", "padding", "carry", "random"],
)  # fmt: skip
def test_the_nearest_cause_comes_first(wrap: Wrap, text: str, cause: str) -> None:
    row = property_row(wrap, text)
    assert re.match(rf"(mine on {text}: )?({cause})", row.reason), row.reason
    assert " is broken: " in row.reason
    assert row.reason.count("again: ") == 1


def test_a_result_without_the_contracts_form_breaks_no_property() -> None:
    def wrap(layer: Any, case: Case, weights: Weights) -> Layer:
        calls = itertools.count()
        return lambda *given: (list if next(calls) > 0 else tuple)(layer(*given))

    row = property_row(wrap)
    form = r"expected the tuple \(output, final_state\) of plain tensors, got list of 2 \(Tensor, Tensor\)"
    assert re.match(rf"mine on {CASE}: {form}; by a layer of .* when globals_unchanged was checked: ", row.reason), row.reason
    assert " is broken: " not in row.reason


def test_no_memory_is_said_to_be_unwritten_where_calls_differ_anyway() -> None:
    @of_calls
    def nearly_right(layer: Any, *given: Any) -> Any:
        output, final = layer(*given)
        return output * (1 + 2e-7 * secrets.randbelow(2)), final

    subject = PropertyContext(planted(nearly_right), CASE)
    with pytest.raises(PropertyViolation, match="repeats is broken"):
        check(subject, [by_name("written"), by_name("repeats")])


def test_what_is_wrong_by_itself_is_not_said_to_depend_on_other_layers() -> None:
    def imprecise(layer: Any, case: Case, weights: Weights) -> Layer:
        error = 1e-4 * bool(weights["weight_hh_l0"][0, 0] > 0.2)  # of the second weights, and not of the first

        def run(*given: Any) -> Any:
            output, final = layer(*given)
            return output * (1 + error), final

        return run

    text = "lstm-T6-B3-H5-float32-state-saturated-seed3"
    row = property_row(imprecise, text)
    assert row.reason.startswith(f"mine on {text}: wrong with other weights of the same kind:\n  output")
    assert "layers" not in row.reason
    assert "results vary" not in row.reason


def two_faults(layer: Any, case: Case, weights: Weights) -> Layer:
    """Off by a little with the batch first; raises on sequences with lengths."""

    def run(x: Any, state: Any, lengths: Any) -> Any:
        if lengths is not None:
            raise ValueError("no lengths, please")
        output, final = layer(x, state, lengths)
        return output * (1.01 if case.batch_first else 1), final

    return run


def draws_and_keeps(layer: Any, case: Case, weights: Weights) -> Layer:
    """Draws random numbers in calls, and returns its output in one buffer."""
    kept: list[Any] = []

    def run(*given: Any) -> Any:
        torch.rand(1)
        output, final = layer(*given)
        kept.append(output.detach())
        return kept[0].copy_(output.detach()), final

    return run


def drawn_row(wrap: Wrap, **options: Any) -> Row:
    mine = replace(discover([])["sequential"], name="mine", cls=planted(wrap), is_own=False)
    base = Case(cell="mingru", steps=4, batch=2, hidden_size=8)
    return DrawnItem(TrialSession(replace(TRIAL, **options)), mine, base, number=1).finished()


def test_a_drawn_row_lists_all_of_its_failures_where_it_is_asked_to() -> None:
    first, every = drawn_row(two_faults), drawn_row(two_faults, all_failures=True)
    assert ("no lengths" in first.reason) != ("is over its limit" in first.reason)
    head, *_, again = every.reason.splitlines()
    assert re.fullmatch(r"mine: \d+ kinds of failures, on \d+ of \d+ cases", head)
    assert int(head.split()[-2]) == every.examples > first.examples
    assert "got ValueError" in every.reason
    assert re.search(r"^mine is wrong on mingru-\S+-batchfirst\S*:\n  output.* is over its limit", every.reason, re.M)
    assert re.search(r"^  and on \d+ more, as mingru-\S+-ragged\S*$", every.reason, re.M)
    assert re.match(r"again: pytest --ecornn-verify .*-k .*--ecornn-all-failures", again)
    assert "results vary" not in every.reason


def test_a_row_of_properties_lists_all_that_are_broken_where_it_is_asked_to() -> None:
    text = "mingru-T6-B3-H5-float32-state"
    first, every = property_row(draws_and_keeps, text), property_row(draws_and_keeps, text, all_failures=True)
    assert re.findall(r"(\w+) is broken: ", first.reason) == ["globals_unchanged"]
    broken = re.findall(r"(\w+) is broken: ", every.reason)
    assert {"globals_unchanged", "fresh_results"} <= set(broken)
    assert len(set(broken)) == len(broken)
    assert drawn_row(lambda layer, case, weights: layer, all_failures=True).status == "passed"


def _shape(case: Case) -> Case:
    """What a compiler looks at."""
    return replace(case, seed=0, contents="normal", layout="contiguous")


@pytest.mark.parametrize("kind", [DrawnItem, PropertyItem])
def test_an_implementation_whose_shapes_are_costly_meets_few(kind: Any) -> None:
    shapes, made = {True: set[Case](), False: set[Case]()}, {True: 0, False: 0}
    for is_costly in (True, False):

        class Recorded(ReferenceLoop):
            costly_shapes = is_costly

            def build(self, case: Case, weights: Weights) -> Layer:
                shapes[self.costly_shapes].add(_shape(case))
                made[self.costly_shapes] += 1
                return super().build(case, weights)

        mine = replace(discover([])["sequential"], name="mine", cls=Recorded, is_own=False)
        base = Case(cell="gru", steps=4, batch=2, hidden_size=8)
        row = kind(TrialSession(), mine, base, number=1).finished()
        assert (row.status, row.reason) == ("passed", "")
        assert row.examples >= 4
    most = 8 if kind is DrawnItem else 16  # with parts of a split
    assert len(shapes[True]) <= most < len(shapes[False]) or kind is PropertyItem
    assert {case.mode for case in shapes[True]} == {"inference", "training"}
    for field in ("ragged", "bidirectional", "batch_first", "has_state", "projected", "bias"):
        assert {getattr(case, field) for case in shapes[True]} == {True, False} or kind is PropertyItem, field


@pytest.mark.parametrize(
    "fault",
    [
        lambda case: case.ragged,
        lambda case: case.batch_first,
        lambda case: case.layers > 1,
        lambda case: case.contents == "nan",
        lambda case: case.contents == "infinite_x",
        lambda case: not case.bias,
        lambda case: case.layout == "strided",
        lambda case: case.steps == 1 or case.batch == 1,
    ],
    ids=["ragged", "batch first", "layers", "nan", "infinite x", "no bias", "strided", "one"],
)
def test_few_shapes_have_every_option_and_contents(fault: Any) -> None:
    class Wrong(ReferenceLoop):
        costly_shapes = True

        def build(self, case: Case, weights: Weights) -> Layer:
            layer = super().build(case, weights)
            return (lambda *given: layer(given[0] * 2, *given[1:])) if fault(case) else layer

    mine = replace(discover([])["sequential"], name="mine", cls=Wrong, is_own=False)
    row = DrawnItem(TrialSession(), mine, Case(cell="gru", steps=4, batch=2, hidden_size=8), number=1).finished()
    assert row.status == "failed"
