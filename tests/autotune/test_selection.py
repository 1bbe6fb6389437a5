"""What is chosen, on planted times: the fastest, ties by order, and never what fails, however it is stored or forced."""

from __future__ import annotations

import gc
import multiprocessing
import re
import sys
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_ecornn.autotune import Candidate, Problem, freeze, probed_call, selection, store, timing
from pytest_ecornn.autotune.decision import Decision, Timing, fastest
from pytest_ecornn.autotune.problem import bucket
from pytest_ecornn.autotune.selection import Choices, select
from pytest_ecornn.contract import Case
from tests.helpers.sleep_clock import SleepClock

CPU = torch.device("cpu")
PROBLEM = Problem(case=Case.parse("mingru-T8-B2-H4-float32"))
KEY = PROBLEM.key
FAST_A, FAST_B = {"a": 1.0, "b": 3.0}, {"a": 3.0, "b": 1.0}


@dataclass
class Planted:
    """Candidates that sleep for so many ms. calls: of each so far. heuristic: the first unless given."""

    sleeps_ms: Mapping[str, float]
    heuristic: str = ""
    failing: Collection[str] = ()
    calls: dict[str, int] = field(default_factory=dict)
    error: type[Exception] = torch.OutOfMemoryError

    def choices(self) -> Choices:
        candidates = [Candidate(name, lambda steps, name=name: self._call(name, steps)) for name in self.sleeps_ms]
        heuristic = self.heuristic or next(iter(self.sleeps_ms))
        return Choices(candidates, heuristic, (PROBLEM.case.steps,), runnable=tuple(self.sleeps_ms))

    def _call(self, name: str, steps: int) -> Callable[[], object]:
        def call() -> None:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name in self.failing:
                raise self.error(f"{name} cannot")
            time.sleep(self.sleeps_ms[name] / 1e3)

        return call

    def select(self, problem: Problem = PROBLEM, mode: str = "", obstacle: str = "") -> tuple[Decision, bool]:
        return select(problem, CPU, self.choices, self.sleeps_ms, mode, obstacle)

    def winner(self, **options: str) -> str:
        return self.select(**options)[0].called  # type: ignore[arg-type]

    @property
    def was_timed(self) -> bool:
        return bool(self.calls)


@pytest.fixture(autouse=True)
def _times_by_sleeping_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SleepClock()
    for module in (sys.modules[__name__], probed_call, timing):
        monkeypatch.setattr(module, "time", clock)


# What is timed.


def test_times_as_called_and_on_the_device_have_winners_of_their_own() -> None:
    timings = {"a": Timing(100.0, 80.0), "b": Timing(120.0, 60.0)}
    winners = [fastest(timings, {name: getattr(one, field) for name, one in timings.items()}) for field in vars(timings["a"])]
    assert winners == ["a", "b"]


@pytest.mark.parametrize(("b_us", "winner"), [(97.5, "a"), (96.0, "b")])
def test_ties_go_to_the_first(b_us: float, winner: str) -> None:
    assert fastest(["a", "b"], {"a": 100.0, "b": b_us}) == winner


def test_a_single_candidate_is_not_timed() -> None:
    planted = Planted({"a": 1.0})
    assert planted.winner() == "a"
    assert not planted.was_timed


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, ValueError])
def test_what_fails_costs_that_candidate_alone(error: type[Exception]) -> None:
    decision, _ = Planted({"a": 1.0, "b": 1.0}, failing=["a"], error=error).select()
    assert (decision.called, decision.failures) == ("b", {"a": f"{error.__name__}: a cannot"})


def test_where_all_fail_the_heuristic_chooses() -> None:
    decision, _ = Planted({"a": 1.0, "b": 1.0}, heuristic="b", failing=["a", "b"]).select()
    assert (decision.called, decision.reason) == ("b", "no candidate was timed")


def test_the_cost_of_a_decision_is_bounded() -> None:
    decision, _ = Planted({"a": 1.0, "b": 400.0}).select()
    assert 400 <= decision.probe_ms < 420  # one call of the slow one beside the first
    assert "a 1" in decision.notes()
    assert re.search(r"decided in \d+ ms beside \d+ ms of first calls", decision.notes())


def test_two_threads_time_once() -> None:
    planted = Planted(FAST_B)
    with ThreadPoolExecutor(2) as pool:
        winners = [*pool.map(lambda _: planted.winner(), range(2))]
    once = planted.calls["a"]
    assert winners == ["b", "b"]
    selection.forget()
    assert planted.winner() == "b"  # from disk
    assert planted.calls["a"] == once


def test_the_caller_has_nothing_of_what_is_timed() -> None:
    seen = []

    class Looks(Planted):
        def _call(self, name: str, steps: int) -> object:  # type: ignore[override]
            def call() -> None:
                weight = torch.ones(1, requires_grad=True)
                seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
                (weight * weight).sum().backward()

            return call

    packed: list[torch.Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: packed.append(one) or one, lambda one: one)
    with hooks, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        Looks(FAST_B).select()
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert (packed, set(seen)) == ([], {(True, False)})


def test_dropout_leaves_the_random_state() -> None:
    class Draws(Planted):
        def _call(self, name: str, steps: int) -> object:  # type: ignore[override]
            return lambda: torch.rand(3)

    before = torch.random.get_rng_state()
    Draws(FAST_B).select(replace(PROBLEM, dropout=True))
    assert torch.equal(torch.random.get_rng_state(), before)


# What a decision depends on.


def test_steps_and_sequences_share_buckets_and_nothing_else_does() -> None:
    assert [bucket(steps) for steps in (1, 4, 5, 6, 7, 8, 9, 12, 13, 33, 48, 49, 64, 65, 96, 97, 1000)] == [
        *(1, 4, 6, 6, 8, 8, 12, 12, 16, 48, 48, 64, 64, 96, 96, 128, 1024)
    ]
    case = PROBLEM.case
    same = {"steps": 7, "layout": "strided", "contents": "large", "seed": 3}
    assert {Problem(case=replace(case, **{name: value})).key for name, value in same.items()} == {KEY}
    linear = [replace(PROBLEM, case=replace(case, steps=steps), is_linear=True).key for steps in (4, 5, 6, 1000)]
    assert linear[0] != linear[1] == linear[2] == linear[3]
    assert replace(PROBLEM, case=replace(case, batch=9)).key == replace(PROBLEM, case=replace(case, batch=12)).key
    others = [
        *(replace(PROBLEM, case=replace(case, **{name: value})) for name, value in OTHER_CASES.items()),
        *(replace(PROBLEM, **{name: True}) for name in ("x_grad", "weight_grad", "dropout", "evaluation", "deterministic")),
        *(
            replace(PROBLEM, autocast="float16"),
            replace(PROBLEM, threads=2),
            replace(PROBLEM, variant="eights"),
            replace(PROBLEM, caller="module"),
        ),
    ]
    assert len({KEY, *(other.key for other in others)}) == 1 + len(others)


OTHER_CASES = {
    "cell": "minlstm", "steps": 9, "batch": 3, "hidden_size": 5, "layers": 2, "dtype": "float64", "batch_first": True,
    "ragged": True, "has_state": True, "mode": "training", "bidirectional": True, "bias": False,
}  # fmt: skip


def test_another_device_of_the_same_kind_shares_a_decision() -> None:
    keys = {Problem(case=Case.parse(f"lstm-T4-B2-H8-float16-{device}")).key for device in ("cuda", "cuda:0", "cuda:1")}
    assert len(keys) == 1


def linear(batch: int, steps: int = 50) -> Problem:
    return replace(PROBLEM, case=replace(PROBLEM.case, batch=batch, steps=steps), is_linear=True)


def test_one_decision_serves_all_lengths() -> None:
    """Candidate a takes 1 ms and 0.01 ms a step, b 0.05 ms a step: b is faster up to T 25."""
    choices = Choices(
        [Candidate("a", partial(sleep_for, 1.0, 0.01)), Candidate("b", partial(sleep_for, 0.0, 0.05))], "a", (10, 50)
    )
    for steps in (50, 8, 20, 30, 5, 400):
        decision, is_final = select(linear(2, steps), CPU, lambda: choices, ("a", "b"))
        assert (decision.called, is_final) == ("b" if steps < 25 else "a", True)
    assert len(selection.decisions()) == 1


def sleep_for(ms: float, step_ms: float, steps: int) -> Callable[[], object]:
    return lambda: time.sleep((ms + steps * step_ms) / 1e3)


@pytest.mark.parametrize(
    ("below", "above", "batch", "is_spared"),
    [(8, 32, 16, True), (8, 32, 24, True), (4, 32, 16, False), (16, 32, 8, False), (8, None, 16, False)],
)
def test_what_neighbours_agree_on_is_not_timed(
    below: int, above: int | None, batch: int, is_spared: bool, undecided: Path
) -> None:
    for size in filter(None, (below, above)):
        Planted(FAST_B).select(linear(size))
    planted = Planted(FAST_B)
    decision, is_final = planted.select(linear(batch))
    assert (decision.called, decision.device, is_final, planted.was_timed) == ("b", "b", True, not is_spared)
    assert (decision.source == "neighbours") == is_spared
    assert freeze(undecided.parent / "frozen.json") == 2 + (above is not None)
    selection.forget()
    assert planted.select(linear(batch))[0].source == "disk"
    assert len([*undecided.rglob("*.json")]) == 2 + (above is not None)


@pytest.mark.parametrize("above", [FAST_A, {"a": 1.2, "b": 1.0}], ids=["another", "by little"])
def test_what_neighbours_do_not_agree_on_is_timed(above: dict[str, float]) -> None:
    Planted(FAST_B).select(linear(8))
    Planted(above).select(linear(24))
    planted = Planted(FAST_A)
    assert planted.select(linear(16))[0].called == "a"
    assert planted.was_timed


# Compiling.


@dataclass
class PlantedCompilation:
    """As many calls as it still takes. waited: how often it was waited for."""

    calls: int = 2
    waited: int = 0

    def is_running(self) -> bool:
        self.calls -= 1
        return self.calls >= 0

    def wait(self) -> None:
        self.waited += 1


@pytest.mark.parametrize("may_run_meanwhile", [True, False])
def test_another_candidate_runs_until_the_kernels_are_compiled(may_run_meanwhile: bool) -> None:
    planted, compilation = Planted(FAST_B), PlantedCompilation()
    made: list[Choices] = []

    def make() -> Choices:
        choices = replace(
            planted.choices(), compilation=compilation, compiled="a", may_run_meanwhile=lambda: may_run_meanwhile
        )  # fmt: skip
        made.append(choices)
        return choices

    winners = []
    for _ in range(4):
        decision, is_final = select(PROBLEM, CPU, make, FAST_B)
        winners.append((decision.called, decision.source, is_final))
        assert planted.was_timed == is_final
    meanwhile = [("a", "compiling", False)] * (2 * may_run_meanwhile)
    assert winners == [*meanwhile, *[("b", "measured", True)] * (4 - len(meanwhile))]
    assert len(made) == 1 + may_run_meanwhile  # while it waits no candidate is made
    assert compilation.waited >= 1


def test_what_is_compiled_holds_no_tensor_of_the_caller() -> None:
    planted, held = Planted(FAST_B), [torch.ones(3)]
    reference = weakref.ref(held[0])

    def make() -> Choices:
        x = held.pop()
        candidates = [Candidate(name, lambda steps: lambda: x) for name in planted.sleeps_ms]
        return replace(
            planted.choices(), candidates=candidates, compilation=PlantedCompilation(9), compiled="a",
            may_run_meanwhile=lambda: True,
        )  # fmt: skip

    assert select(PROBLEM, CPU, make, FAST_B)[0].source == "compiling"
    gc.collect()
    assert reference() is None


def test_a_candidate_alone_waits_for_its_kernels() -> None:
    compilation = PlantedCompilation()
    choices = replace(Planted({"b": 1.0}).choices(), compilation=compilation, compiled="a", may_run_meanwhile=lambda: True)
    decision, is_final = select(PROBLEM, CPU, lambda: choices, ("b",))
    assert (decision.called, is_final, compilation.waited) == ("b", True, 1)


# What is stored.


def decide_and_forget() -> None:
    """For b, as is stored then."""
    Planted(FAST_B).select()
    selection.forget()


def test_a_decision_is_read_from_disk(undecided: Path) -> None:
    first, _ = Planted(FAST_B).select()
    selection.forget()
    planted = Planted(FAST_A)
    decision, is_final = planted.select()
    assert (decision.called, decision.source, is_final) == ("b", "disk", True)
    assert decision.timings == first.timings
    assert not planted.was_timed
    assert decision.notes().startswith("b; disk; a ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("", text) for text in ("", "{", "[]", "{}", '{"called": 3}')),
        ('"torch\\": \\"', '"torch\\": \\"1.'),
        ('"schema_version": 2', '"schema_version": 1'),
        ('"called": "b"', '"called": "b", "failures": null'),
    ],
)
def test_a_damaged_or_stale_file_is_ignored(undecided: Path, old: str, new: str) -> None:
    """Its whole text is replaced, or a part."""
    decide_and_forget()
    (file,) = undecided.rglob("*.json")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old or text, new))
    assert Planted(FAST_A).winner() == "a"


def test_other_versions_have_a_folder_of_their_own(undecided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decide_and_forget()
    monkeypatch.setattr(store, "versions", lambda: "others")
    assert Planted(FAST_A).winner() == "a"
    assert len(list(undecided.iterdir())) == 2


def test_a_name_that_is_no_candidate_any_more_is_ignored(undecided: Path) -> None:
    decide_and_forget()
    assert Planted({"a": 1.0, "c": 3.0}).winner() == "a"


@pytest.mark.parametrize("variable", ["ECORNN_CACHE_DIR", "HOME"])
def test_a_folder_that_cannot_be_written(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ECORNN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/dev/null/absent")
    assert Planted(FAST_B).winner() == "b"


def test_what_other_work_disturbed_is_not_stored(undecided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ecornn.autotune.timing.GpuOthers.share", lambda self: 0.5)
    decision, is_final = Planted(FAST_B).select()
    assert (decision.called, decision.reason, is_final) == ("b", "not stored, as other work disturbed it", True)
    assert not undecided.exists()


# Frozen decisions.


def test_frozen_decisions_are_taken_and_nothing_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Planted(FAST_B).select()
    assert freeze(tmp_path / "frozen.json") == 1
    selection.forget()
    monkeypatch.setenv("ECORNN_DECISIONS", str(tmp_path / "frozen.json"))
    planted = Planted(FAST_A)
    decision, _ = planted.select()
    assert (decision.called, decision.source, planted.was_timed) == ("b", "frozen", False)


def test_a_frozen_file_that_lacks_an_entry_says_so_and_the_heuristic_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(tmp_path / "frozen.json")
    monkeypatch.setenv("ECORNN_DECISIONS", str(tmp_path / "frozen.json"))
    planted = Planted(FAST_B, heuristic="a")
    with pytest.warns(
        UserWarning, match=r"frozen\.json has no decision for .*, layer mingru-T8.*: a runs it, by the cost models"
    ):
        decision, is_final = planted.select()
    assert (decision.called, decision.source, is_final, planted.was_timed) == ("a", "heuristic", True, False)
    assert "has no decision" in decision.notes()


def test_freezing_again_adds_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "frozen.json"
    Planted(FAST_B).select()
    freeze(path)
    selection.forget()
    Planted(FAST_B).select(replace(PROBLEM, dropout=True))
    freeze(path)
    file = store.FrozenFile(path)
    assert all(file.get(problem.key, CPU) for problem in (PROBLEM, replace(PROBLEM, dropout=True)))


def test_a_file_that_is_no_frozen_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"schema_version": 7}')
    monkeypatch.setenv("ECORNN_DECISIONS", str(path))
    for act in (Planted(FAST_B).select, lambda: freeze(path)):
        with pytest.raises(ValueError, match=r"other\.json: expected decisions that freeze wrote, got schema version 7, not 2"):
            act()
    assert path.read_text() == '{"schema_version": 7}'


# Without timing.


@pytest.mark.parametrize(
    ("mode", "winner", "source"), [("heuristic", "b", "heuristic"), ("a", "a", "forced"), ("other", "b", "heuristic")]
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_timing_is_switched_off(
    mode: str, winner: str, source: str, by_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(FAST_A, heuristic="b")
    if by_environment:
        monkeypatch.setenv("ECORNN_AUTO", mode)
    decision, is_final = planted.select(mode="" if by_environment else mode)
    assert (decision.called, decision.source, is_final, planted.was_timed) == (winner, source, True, False)
    monkeypatch.delenv("ECORNN_AUTO", raising=False)
    assert planted.winner() == "a"  # a forced decision is none for later


def test_while_nothing_can_be_timed_the_heuristic_chooses_for_now() -> None:
    planted = Planted(FAST_B, heuristic="a")
    decision, is_final = planted.select(obstacle="tensors have no data")
    assert (decision.called, decision.reason, is_final) == ("a", "tensors have no data", False)
    assert planted.winner() == "b"


def test_what_has_no_data_is_not_timed() -> None:
    with FakeTensorMode():
        assert selection.no_data(torch.ones(2)) == "tensors have no data"
    assert selection.no_data(torch.ones(2)) == selection.no_data(torch.nn.Parameter(torch.ones(2))) == ""


def test_while_a_graph_is_captured_the_heuristic_chooses_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert selection._cannot_time(torch.device("cuda")) == "a graph is being captured"
    assert selection._cannot_time(CPU) == ""


def test_a_backward_pass_times_nothing() -> None:
    planted, found = Planted(FAST_B, heuristic="a"), list[tuple[Decision, bool]]()
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: found.append(planted.select()))
    x.sum().backward()
    ((decision, is_final),) = found
    assert (decision.called, decision.reason, is_final) == ("a", "autograd recomputes the call", False)


# Several processes.


def _winner_of_a_process(sleeps_ms: dict[str, float], queue: multiprocessing.Queue[str]) -> None:
    queue.put(Planted(sleeps_ms).winner())


@pytest.mark.parametrize(("method", "is_stored"), [("fork", True), ("spawn", True), ("fork", False)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_read_what_another_stored_and_decide_though_their_parent_was_deciding(method: str, is_stored: bool) -> None:
    if is_stored:
        assert Planted(FAST_B).winner() == "b"
    context = multiprocessing.get_context(method)
    queue: multiprocessing.Queue[str] = context.Queue()
    with selection._state.lock:  # as another thread of the parent may, when it forks
        process = context.Process(target=_winner_of_a_process, args=(FAST_A if is_stored else FAST_B, queue))
        process.start()
        assert queue.get(timeout=120) == "b"
    process.join()


# What fails late.


class FailsLater(Planted):
    """Its first candidate fails once it was called as often as `last` says."""

    last = 6

    def _call(self, name: str, steps: int) -> Callable[[], object]:
        call = super()._call(name, steps)

        def counted() -> None:
            call()
            if name == next(iter(self.sleeps_ms)) and self.calls[name] > self.last:
                raise torch.OutOfMemoryError("later")

        return counted


def test_what_fails_in_a_timed_block_costs_that_candidate_alone(undecided: Path) -> None:
    decision, is_final = FailsLater({"a": 0.2, "b": 0.5}).select()
    assert (decision.called, decision.failures, is_final) == ("b", {"a": "OutOfMemoryError: later"}, True)
    assert not undecided.exists()  # another time it may not fail


def test_a_name_that_is_pruned_is_forced_all_the_same() -> None:
    planted = Planted(FAST_A)

    def pruned() -> Choices:
        choices = planted.choices()
        return replace(choices, candidates=choices.candidates[:1], pruned={"b": "slow"})

    decision, _ = select(PROBLEM, CPU, pruned, planted.sleeps_ms, "b")
    assert (decision.called, decision.source) == ("b", "forced")


def test_a_store_that_does_not_answer_leaves_the_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def add(self, name: str, amount: int) -> int:
            raise torch.distributed.DistNetworkError("gone")

    monkeypatch.setattr(selection.ranks, "store", Gone)
    decision, is_final = Planted(FAST_B, heuristic="a").select()
    assert (decision.called, decision.reason, is_final) == ("a", "another rank decides", False)
