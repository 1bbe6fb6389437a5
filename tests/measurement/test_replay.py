"""Graph replay without a GPU: graphs that a CPU replays by calling the layer again show that what is measured is proven."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case, Declared
from pytest_ecornn.measurement import capture
from pytest_ecornn.measurement.capture import graph_arms, graph_count
from pytest_ecornn.measurement.kept import tensors
from pytest_ecornn.measurement.measurement import MIN_ROUNDS, Arm, measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import Graph, GraphArm
from pytest_ecornn.system.graphs import NotCaptured
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.fake_graphs import CountingClock, built, fake_graph

CASES = ("lstm-T5-B2-H4-float32", "lstm-T5-B2-H4-float32-state-training", "mingru-T6-B2-H4-float32-batchfirst-projected-offset")


def measured(candidate: Candidate, pool: InputPool, graphs: list[Graph]) -> GraphArm:
    arm = GraphArm(candidate, pool, graphs)
    measure([arm], CountingClock(), 0.0, lambda: True)
    return arm


def test_a_pool_makes_nothing_that_no_call_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(case: Case, role: str = "") -> None:
        raise AssertionError("weights are the candidate's")

    monkeypatch.setattr(contents, "make_weights", refuse)
    pool = InputPool(Case.parse("lstm-T4-B2-H3-float32"))
    assert pool.next_problem().problem({}).output_gradients == ()
    assert not hasattr(pool, "_loss")


@pytest.mark.parametrize("text", CASES)
def test_kept_replays_are_right_on_the_contents_that_they_had(text: str) -> None:
    candidate, pool = built(text)
    arm = measured(candidate, pool, [fake_graph(candidate, pool) for _ in range(3)])
    verdicts = arm.kept.verify(Declared("float32"))
    assert len(arm.samples_us) == MIN_ROUNDS
    assert arm.samples_us == pytest.approx([2000.0] * MIN_ROUNDS)
    assert [one.message for one in verdicts if one.status == "failed"] == []
    names = [one.tensor for one in verdicts]
    assert names.count("output") == 2
    assert ("grad x" in names) == candidate.case.training


def test_graphs_that_a_block_does_not_replay_are_not_judged() -> None:
    candidate, pool = built(CASES[0])
    arm = measured(candidate, pool, [fake_graph(candidate, pool) for _ in range(10)])
    assert arm.calls + arm.settling < len(arm.graphs)
    assert [one.message for one in arm.kept.verify(Declared("float32")) if one.status == "failed"] == []


@pytest.mark.parametrize("text", CASES[:2])
def test_a_replay_that_reads_stale_input_fails(text: str) -> None:
    candidate, pool = built(text)
    first = contents.problem(candidate.case).x
    stale = [fake_graph(candidate, pool, lambda x, *rest: candidate.layer(first + 0 * x, *rest)) for _ in range(2)]
    arm = measured(candidate, pool, stale)
    assert "output" in {one.tensor for one in arm.kept.verify(Declared("float32")) if one.status == "failed"}


def test_a_replay_that_does_nothing_fails() -> None:
    candidate, pool = built(CASES[0])
    idle = [Graph(graph.call, graph.result, lambda: None) for graph in [fake_graph(candidate, pool) for _ in range(2)]]
    assert any(one.status == "failed" for one in measured(candidate, pool, idle).kept.verify(Declared("float32")))


def test_a_replay_that_writes_into_its_input_is_told() -> None:
    candidate, pool = built(CASES[0])

    def spoiling(x: torch.Tensor, state: Any, lengths: Any) -> Any:
        x[0, 0, 0] += 1
        return candidate.layer(x, state, lengths)

    with pytest.raises(WrongResult, match="expected x unchanged by the call"):
        measured(candidate, pool, [fake_graph(candidate, pool, spoiling)])


def test_graphs_take_turns_and_a_block_lasts_long_enough() -> None:
    candidate, pool = built(CASES[0])
    turns: list[int] = []
    graphs = [fake_graph(candidate, pool) for _ in range(4)]
    for number, graph in enumerate(graphs):
        graph.replay = partial(turns.append, number)
    arm, clock = GraphArm(candidate, pool, graphs), CountingClock()
    arm.calibrate(clock)
    arm.block(clock, is_settled=False)
    assert (arm.calls, arm.settling) == (3, 4)
    assert clock.blocks[-2:] == [4, 3]
    assert turns == [n % 4 for n in range(len(turns))]


@pytest.mark.parametrize(
    ("call_bytes", "cache_bytes", "seconds", "expected"),
    [
        (10, 60, 0, 9),
        (1, 60, 0, 16),
        (59, 60, 0, 2),
        (1000, 60, 0, 2),
        (10**6, 5 * 10**7, 3e-3, 16),
        (10**6, 5 * 10**7, 5e-3, 2),
    ],
)
def test_graphs_together_exceed_the_cache_as_far_as_their_number_allows_and_where_it_matters(
    call_bytes: int, cache_bytes: int, seconds: float, expected: int
) -> None:
    assert graph_count(call_bytes, cache_bytes, seconds) == expected


def test_a_call_too_long_for_a_graph_leaves_the_column_empty_with_a_reason() -> None:
    candidate, pool = built(CASES[0])
    slow = Arm(candidate, pool, seconds=0.31)
    assert graph_arms([slow, slow]) == ([], ["no device-only time of sequential: a call takes 0.31 s, over 0.2 s"])


def test_captured_results_have_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = SimpleNamespace(warm_up=lambda call: call(), capture=lambda call: (SimpleNamespace(replay=call), call()))
    monkeypatch.setattr(capture, "GraphCapture", lambda device: eager)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=2**20))
    candidate, pool = built(CASES[1])
    arms, _ = graph_arms([Arm(candidate, pool)])
    results = [one for graph in arms[0].graphs for one in tensors(graph.result)]
    assert len(results) > len(arms[0].graphs)
    assert not any(one.requires_grad for one in results)


class FakeCapture:
    """An arm of `wanted` graphs, of which the `lost`-th cannot be captured; 0 stands for warming up."""

    turns: ClassVar[list[str]] = []
    of_arms: ClassVar[dict[str, tuple[int, int]]] = {}

    def __init__(self, arm: Arm):
        self.arm, self.wanted, self.lost = arm, *self.of_arms[arm.candidate.name]
        self.count = 0
        self._fail()

    def _fail(self) -> None:
        if self.count == self.lost:
            raise NotCaptured("it waits")

    @property
    def is_complete(self) -> bool:
        return self.count >= self.wanted

    def add(self) -> None:
        self.count += 1
        self._fail()
        self.turns.append(self.arm.candidate.name)

    def captured(self) -> str:
        return f"{self.arm.candidate.name} {self.count}"


@pytest.mark.parametrize(
    ("wanted", "found", "turns"),
    [
        ([(3, -1), (3, -1)], ["a 3", "b 3"], "abbaab"),
        ([(2, -1), (4, -1), (3, -1)], ["a 2", "b 4", "c 3"], "abccbabcb"),
        ([(2, -1), (2, 0)], ["a 2"], "aa"),
        ([(2, -1), (3, 2)], ["a 2"], "aba"),
        ([(2, 0), (2, -1)], [], ""),
        ([(2, 2), (2, -1)], [], "abb"),
    ],
)
def test_arms_are_captured_in_turn_and_one_that_cannot_be_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, wanted: list[tuple[int, int]], found: list[str], turns: str
) -> None:
    candidate, pool = built(CASES[0])
    names = "abc"[: len(wanted)]
    monkeypatch.setattr(capture, "ArmCapture", FakeCapture)
    monkeypatch.setattr(FakeCapture, "turns", [])
    monkeypatch.setattr(FakeCapture, "of_arms", dict(zip(names, wanted, strict=True)))
    graphs, missing = graph_arms([Arm(replace(candidate, name=name), pool) for name in names])
    assert graphs == found
    assert "".join(FakeCapture.turns) == turns
    lost = [name for name, (_, at) in zip(names, wanted, strict=True) if at >= 0]
    assert missing == [f"no device-only time of {name}: it waits" for name in lost]


@pytest.mark.parametrize("layout", ["", "-strided", "-offset"])
def test_a_placed_problem_is_the_same_elsewhere(layout: str) -> None:
    case = Case.parse(f"gru-T3-B2-H5-float32-state-training{layout}")
    problem = contents.problem(case)
    placed = problem.copied()
    pairs = [(problem.x, placed.x), *zip(problem.state, placed.state, strict=True)]
    for before, after in [*pairs, *zip(problem.output_gradients, placed.output_gradients, strict=True)]:
        assert torch.equal(before, after)
        assert (before.stride(), before.storage_offset()) == (after.stride(), after.storage_offset())
        assert before.untyped_storage().data_ptr() != after.untyped_storage().data_ptr()
    assert placed.weights is problem.weights
