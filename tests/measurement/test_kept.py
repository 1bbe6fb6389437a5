"""What timed calls are given and return: fresh contents, every call as likely as any other to be verified, right doubts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.measurement import clocks, kept
from pytest_ecornn.measurement import pool as pool_module
from pytest_ecornn.measurement.kept import MOST_KEPT, SpotChecks
from pytest_ecornn.measurement.measurement import Arm, block_growth
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.verification import spot_check
from pytest_ecornn.verification.calls import WrongResult, run
from pytest_ecornn.verification.guards.overrides import Overrides
from pytest_ecornn.verification.guards.tampering import MonkeypatchGuard
from pytest_ecornn.verification.verification import Candidate

OWN = Declared("float32")
CASES = (
    "lstm-T5-B3-H4-float32-ragged-state-training",
    "gru-T4-B2-H3-L2-float32-bidirectional-batchfirst-training",
    "rnn_tanh-T4-B2-H6-bfloat16-state-training",
    "mingru-T6-B2-H4-float64-projected-resets-training",
    "lstm-T3-B2-H4-float16-ragged",
)


@pytest.mark.parametrize("text", CASES)
def test_no_two_calls_have_the_same_contents_and_all_have_the_same_work(text: str) -> None:
    case = Case.parse(text)
    pool, own = InputPool(case), contents.problem(case)
    one, other = (pool.next_problem().problem(own.weights) for _ in range(2))
    pairs = [
        (one.x, other.x),
        *zip(one.state, other.state, strict=True),
        *zip(one.output_gradients, other.output_gradients, strict=True),
    ]
    assert len(pairs) == 1 + len(own.state) + len(own.output_gradients)
    assert not any(torch.equal(a, b) for a, b in pairs)
    if own.lengths is not None:
        assert torch.equal(one.lengths.sort().values, own.lengths.sort().values)  # type: ignore[union-attr]
    if own.resets is not None:
        assert one.resets.sum() == own.resets.sum()  # type: ignore[union-attr]
        assert one.resets.is_contiguous()  # type: ignore[union-attr]


@pytest.mark.parametrize("layout", ["", "-strided", "-offset", "-transposed", "-feature_major"])
def test_calls_stand_apart_and_can_be_made_again(layout: str) -> None:
    case = Case.parse(CASES[0] + layout)
    own, pool, weights = contents.problem(case), InputPool(case), contents.make_weights(case)
    first, second = (pool.prepare_calls(weights, 3) for _ in range(2))
    for one in (*first, *second):
        one.write()
    calls = [one.call for one in (*first, *second)]
    assert len({call.x.untyped_storage().data_ptr() for call in calls}) == 6
    assert {(call.x.stride(), call.x.storage_offset()) for call in calls} == {(own.x.stride(), own.x.storage_offset())}
    assert torch.equal(calls[0].x, first[0].problem().x)
    assert [one.stride() for one in calls[0].problem.state] == [one.stride() for one in own.state]
    second[0].check_unchanged()
    second[0].call.problem.lengths[0] += 1  # type: ignore[index]
    with pytest.raises(WrongResult, match=r"expected lengths unchanged by the call, but at \[0\]"):
        second[0].check_unchanged()


@pytest.mark.parametrize("projected", [False, True])
def test_no_row_comes_again_where_it_is_multiplied(projected: bool) -> None:
    pool = InputPool(Case(cell="mingru", steps=40, batch=8, hidden_size=4, projected=projected))
    rows = [row.numpy().tobytes() for _ in range(60) for row in pool.next_problem().problem({}).x.flatten(0, 1)]
    assert (len(set(rows)) == len(rows)) is not projected
    assert 0.9 < torch.stack([pool.next_problem().problem({}).x for _ in range(60)]).std() < 1.1


def test_all_calls_are_kept_where_there_are_few_and_each_as_often_where_there_are_many() -> None:
    case = Case(cell="rnn_tanh", steps=1, batch=1, hidden_size=1)
    prepared, few = InputPool(case).prepare_calls(contents.make_weights(case), 30), SpotChecks()
    for one in prepared:
        one.write()
    result = (torch.zeros(1, 1, 1), torch.zeros(1, 1, 1)), ()
    few.take(prepared, [result] * 30)
    assert len(few.calls) == 30
    found: Counter[int] = Counter()
    for _ in range(60):
        many = SpotChecks()
        for _ in range(4):
            many.take(prepared * 2, [result] * 60)
        assert len(many.calls) == MOST_KEPT
        found.update(id(call.prepared) for call in many.calls)
    assert len(found) == 30
    assert max(found.values()) < 2 * min(found.values())


def test_a_result_that_changes_after_its_call_is_told() -> None:
    case = Case.parse("gru-T4-B2-H3-float32")
    late = torch.zeros(4, 2, 3), torch.zeros(1, 2, 3)
    found = timed(case, lambda x, state, lengths: late, calls=8, draw=lambda: 0.1)
    assert len(found.returned) == 8
    found.parts[0].check()
    late[0].add_(1)
    with pytest.raises(WrongResult, match="expected results finished when the call returns, but output changed afterwards"):
        found.parts[0].check()


def timed(case: Case, layer: Any, calls: int, draw: Callable[[], float] = lambda: 0.99, stretch: int = 1) -> kept.Results:
    """Results of calls that a clock has timed one stretch after the other. draw: in place of random numbers."""
    found, prepared = kept.Results(calls, draw, calls), InputPool(case).prepare_calls(contents.make_weights(case), calls)
    clocks.WallTimer().time(found.stretches(prepared, layer, stretch))
    return found


@pytest.mark.parametrize(("calls", "stretch"), [(1, 1), (6, 1), (6, 4)])
def test_the_last_call_of_a_block_is_always_read_in_part_before_the_clock_returns(calls: int, stretch: int) -> None:
    case = Case.parse("gru-T4-B2-H3-float32")
    found = timed(case, ReferenceLoop().build(case, contents.make_weights(case)), calls, stretch=stretch)
    assert {part.name for part in found.parts} == {"output", "final h"}
    assert all(part.tensor.data_ptr() in {one.data_ptr() for one in found.returned[-1][0]} for part in found.parts)


@pytest.mark.parametrize("stretch", [1, 3])
def test_contents_of_a_call_are_written_when_its_stretch_begins(stretch: int) -> None:
    case, seen = Case.parse("gru-T4-B2-H3-float32-ragged-state"), list[Tensor]()
    prepared = InputPool(case).prepare_calls(contents.make_weights(case), 6)
    for one in prepared:
        one.call.problem.x.fill_(7.0)

    def layer(x: Tensor, state: Any, lengths: Any) -> Any:
        number = len(seen)
        seen.append(x)
        written = [bool((one.call.problem.x != 7.0).all()) for one in prepared]
        assert written == [position < (number // stretch + 1) * stretch for position in range(6)]
        assert torch.equal(x, prepared[number].problem().x)
        assert torch.equal(state, prepared[number].problem().state[0])
        assert torch.equal(lengths, prepared[number].problem().lengths)  # type: ignore[arg-type]
        return torch.zeros(4, 2, 3), torch.zeros(1, 2, 3)

    clocks.WallTimer().time(kept.Results(6, lambda: 0.99, 6).stretches(prepared, layer, stretch))
    assert len(seen) == 6


def test_what_happens_between_the_calls_of_an_iterator_is_not_timed() -> None:
    def calls() -> Iterator[Callable[[], None]]:
        for _ in range(3):
            time.sleep(0.05)
            yield lambda: time.sleep(0.002)

    assert 0.006 <= clocks.WallTimer().time(calls()) < 0.1


def test_an_early_result_that_a_later_call_writes_over_is_told_when_the_row_ends() -> None:
    case = Case.parse("gru-T4-B2-H3-float32")
    prepared, checks = InputPool(case).prepare_calls(contents.make_weights(case), 4), SpotChecks()
    results = [((torch.zeros(4, 2, 3), torch.zeros(1, 2, 3)), ()) for _ in range(4)]
    checks.hold(prepared, results)
    assert checks.verify(OWN) == []
    for output, _ in (one for one, _ in results):
        output[-1, 0, 0] = 1.0
    with pytest.raises(WrongResult, match="expected results that later calls leave alone, but output of an early one"):
        checks.verify(OWN)


class Odd(tuple[Any, ...]):
    pass


@pytest.mark.parametrize(
    "result", [Odd((torch.zeros(4, 2, 3), torch.zeros(1, 2, 3))), (nn.Parameter(torch.zeros(4, 2, 3)),) * 2]
)
def test_a_timed_result_of_a_subclass_is_told_before_it_is_read(result: Any) -> None:
    case = Case.parse("gru-T4-B2-H3-float32")
    with pytest.raises(WrongResult, match=r"expected the tuple .* of plain tensors, got"):
        timed(case, lambda x, state, lengths: result, calls=2)


def test_weights_change_between_blocks_as_kept_calls_have_them() -> None:
    case = Case.parse("lstm-T4-B2-H3-float32-training")
    pool, weights, other = InputPool(case), contents.make_weights(case), contents.make_weights(case)
    changes: Any = pool.weight_changes
    drawn = [changes.begin_block(weights, number) for number in range(40)]
    assert len(set(drawn[:3])) == 3
    assert 3 < len(set(drawn)) < 30
    assert all(2**-4 <= abs(change) <= 2**-3 for change in drawn)
    assert changes.begin_block(other, 1) == drawn[1]
    rebuilt = pool.prepare_calls(other, 1, drawn[1])[0].problem().weights
    assert all(torch.equal(rebuilt[name], other[name]) for name in other)
    assert not any(torch.equal(weights[name], other[name]) for name in other)
    changes.put(other, 0.0)
    assert all(torch.equal(one, own) for one, own in zip(other.values(), contents.make_weights(case).values(), strict=True))


def test_a_block_far_shorter_than_it_was_calibrated_for_has_more_calls_next_time() -> None:
    case = Case.parse("gru-T1-B1-H2-float32")
    arm = Arm(Candidate.build("loop", ReferenceLoop, case), InputPool(case), seconds=10.0, calls=1, warmup_calls=1)
    arm.block(clocks.WallTimer(), is_settled=True)
    assert arm.calls >= 4
    assert arm.seconds == pytest.approx(arm.samples_us[0] * 1e-6)
    assert block_growth(1e-3, 0.6e-3) == 1


def made(case: Case, count: int) -> list[spot_check.Made]:
    weights = contents.make_weights(case)
    layer = ReferenceLoop().build(case, weights)
    prepared = InputPool(case).prepare_calls(weights, count)
    return [(one.problem, run(layer, replace(one.problem(), weights=weights))) for one in prepared]


@pytest.mark.parametrize("text", CASES)
def test_right_calls_raise_no_doubt(text: str) -> None:
    assert max(spot_check.shares(made(Case.parse(text), 20), OWN)) <= 1


@pytest.mark.parametrize("text", CASES)
def test_one_wrong_tensor_of_one_call_raises_a_doubt_about_that_call(text: str) -> None:
    case = Case.parse(text)
    right = made(case, 6)
    for name in list(right[0][1])[::3]:
        calls = [(problem, dict(tensors)) for problem, tensors in right]
        calls[3][1][name] = right[2][1][name].clone()  # type: ignore[union-attr]
        shares = spot_check.shares(calls, OWN)
        assert shares[3] > 1, name
        assert max(shares[:3] + shares[4:]) <= 1, name


@pytest.mark.parametrize("text", CASES)
def test_one_sequence_left_out_raises_a_doubt(text: str) -> None:
    case = Case.parse(text)
    calls = made(case, 10)
    output: Any = calls[4][1]["output"]
    output.select(int(not case.batch_first), 0).detach().zero_()
    shares = spot_check.shares(calls, OWN)
    assert [place for place, share in enumerate(shares) if share > 1] == [4]


def test_a_missing_or_odd_result_raises_a_doubt() -> None:
    calls = made(Case.parse(CASES[0]), 4)
    calls[1][1]["grad x"] = None
    calls[2][1]["output"] = torch.zeros(1)
    assert [share > 1 for share in spot_check.shares(calls, OWN)] == [False, True, True, False]


def test_what_takes_the_place_of_a_clock_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (clocks, time):
        monkeypatch.setattr(place, "perf_counter", lambda: 0.0)
    assert clocks.WallTimer().time([lambda: time.sleep(0.01)]) >= 0.01


def test_calls_too_large_for_memory_of_their_own_are_part_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MAX_COPIED_BYTES", 0)
    case = Case.parse("lstm-T4-B2-H3-float32")
    prepared = InputPool(case).prepare_calls(contents.make_weights(case), 4)
    prepared[0].write()
    assert len({one.call.x.untyped_storage().data_ptr() for one in prepared}) == 1
    assert all(torch.equal(one.problem().x, one.call.x) for one in prepared)


def test_a_kernel_over_torchs_own_is_told_while_its_library_lives() -> None:
    before, library = Overrides(), torch.library.Library("aten", "IMPL")
    with pytest.warns(UserWarning, match="Overriding"):
        library.impl("linalg_vector_norm", lambda *given: None, "CPU")
    assert [change.partition(":")[0] for change in before.changes()] == ["torch.ops.aten.linalg_vector_norm"]
    library._destroy()
    assert list(before.changes()) == []


def test_constants_code_and_cells_are_put_back() -> None:
    from pytest_ecornn.contract import cells
    from pytest_ecornn.verification import comparison

    factor, step, code = comparison.MAX_FACTOR, cells.get("gru").step, comparison.check_tensor.__code__
    with MonkeypatchGuard() as tools:
        comparison.MAX_FACTOR = 1e9
        object.__setattr__(cells.get("gru"), "step", None)
        comparison.check_tensor.__code__ = comparison.check_tensor.__code__.replace(co_name="another")
    assert sorted(change.partition(":")[0] for change in tools.changes) == [
        "pytest_ecornn.contract.cells.gru.step",
        "pytest_ecornn.verification.comparison.MAX_FACTOR",
        "pytest_ecornn.verification.comparison.check_tensor",
    ]
    assert (comparison.MAX_FACTOR, cells.get("gru").step, comparison.check_tensor.__code__) == (factor, step, code)
