"""Selects the backend of a problem: from memory, a frozen file, the ranks' store or disk, else by timing the candidates.

`ECORNN_AUTO` is "measure" (the default), "heuristic" (nothing is timed), or a backend's name, which runs wherever it can.
`ECORNN_DECISIONS` names a file that `freeze` wrote: with it nothing is timed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch

from pytest_ecornn.autotune import ranks, store
from pytest_ecornn.autotune.decision import Decision
from pytest_ecornn.autotune.problem import NEIGHBOURHOOD, Problem
from pytest_ecornn.autotune.timing import Candidate, measure

MEASURE, HEURISTIC = "measure", "heuristic"
_DECIDED_BY_TIMES = ("measured", "neighbours", "disk", "frozen", "ranks")
_OUT_OF_MEMORY = torch.OutOfMemoryError.__name__


class Compilation(Protocol):
    """The compilation of what candidates launch, by threads of its own."""

    def is_running(self) -> bool:
        """Whether something is not compiled yet; the first call starts it."""

    def wait(self) -> None:
        """Returns when all is compiled."""


@dataclass(frozen=True)
class Choices:
    """The candidates of a problem, in the order in which ties are resolved, and the one that a cost model prefers.

    lengths: T at which they are timed. pruned: why others are no candidates. captures: whether calls can be captured.
    runnable: what a name in ECORNN_AUTO may be, pruned or not. compilation: of all candidates but `compiled`, which runs the
    calls meanwhile where `may_run_meanwhile` says so.
    """

    candidates: Sequence[Candidate]
    heuristic: str
    lengths: Sequence[int]
    pruned: Mapping[str, str] = field(default_factory=dict)
    captures: bool = True
    runnable: Collection[str] = ()
    compilation: Compilation | None = None
    compiled: str = ""
    may_run_meanwhile: Callable[[], bool] = bool

    @property
    def names(self) -> list[str]:
        return [candidate.name for candidate in self.candidates]


class _State:
    """Decisions of this process."""

    def __init__(self) -> None:
        self.decisions: dict[tuple[str, str], Decision] = {}
        self.compiling: dict[tuple[str, str], Choices] = {}
        self.rank_decisions = ranks.RankDecisions()
        self.lock = Lock()


_state = _State()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_state, "lock", Lock()))  # another thread may hold it


def select(
    problem: Problem,
    device: torch.device,
    make: Callable[[], Choices],
    names: Collection[str],
    mode: str = "",
    obstacle: str = "",
) -> tuple[Decision, bool]:
    """The decision of a problem, and whether it is final: one that is not must be asked for again in the next call.

    make: called where no decision is stored. names: of all candidates that a problem may have. mode: as ECORNN_AUTO, "" for
    what that says. obstacle: why the caller cannot time, or "". Raises ValueError for a frozen file that is none, OSError for
    one that cannot be read.
    """
    decision, is_final = _select(problem, device, make, names, mode, obstacle)
    return decision.at(problem.case.steps), is_final


def _select(
    problem: Problem,
    device: torch.device,
    make: Callable[[], Choices],
    names: Collection[str],
    mode: str,
    obstacle: str,
) -> tuple[Decision, bool]:
    mode = mode or os.environ.get("ECORNN_AUTO") or MEASURE
    key = problem.key
    place = (store.device_name(device), key if mode == MEASURE else f"{mode} {key}")
    decision = _state.decisions.get(place)
    if decision is not None:
        return decision, True
    if (choices := _state.compiling.get(place)) is not None and _is_compiling(choices, place):
        return _meanwhile(choices), False
    if mode == MEASURE and (decision := _stored(key, device, names)) is not None:
        _state.decisions[place] = decision
        return decision, True
    choices = make()
    if mode in choices.runnable:
        decision = Decision.untimed(mode, "forced", f"ECORNN_AUTO={mode}")
    elif len(choices.candidates) == 1:
        decision = replace(Decision.untimed(choices.names[0], "only"), failures=choices.pruned)
    elif mode != MEASURE:
        reason = "nothing is timed" if mode == HEURISTIC else f"ECORNN_AUTO={mode} does not run this"
        decision = Decision.untimed(choices.heuristic, "heuristic", reason)
    elif frozen := os.environ.get("ECORNN_DECISIONS"):
        decision = _lacking(frozen, key, device, choices)
    else:
        return _timed(problem, device, choices, place, obstacle)
    if choices.compilation is not None and {decision.called, decision.device} != {choices.compiled}:
        choices.compilation.wait()
    _state.decisions[place] = decision
    return decision, True


def _stored(key: str, device: torch.device, names: Collection[str]) -> Decision | None:
    """The decision of the frozen file if there is one, else of the disk, which ranks read one for all."""
    if frozen := os.environ.get("ECORNN_DECISIONS"):
        decision = _frozen_file(frozen).get(key, device)
        return decision if decision is not None and decision.is_among(names) else None
    return _from_disk(key, device, names) if ranks.store() is None else None


def _from_disk(key: str, device: torch.device, names: Collection[str]) -> Decision | None:
    decision = store.read(key, device)
    return decision if decision is not None and decision.is_among(names) else None


def _is_compiling(choices: Choices, place: tuple[str, str]) -> bool:
    """Whether the kernels are compiled and a call need not wait for them, as another candidate runs it."""
    if choices.compilation is None:
        return False
    if choices.may_run_meanwhile() and choices.compilation.is_running():
        _state.compiling[place] = replace(choices, candidates=())  # which may hold the caller's tensors
        return True
    choices.compilation.wait()
    _state.compiling.pop(place, None)
    return False


def _meanwhile(choices: Choices) -> Decision:
    return Decision.untimed(choices.compiled, "compiling", "until the kernels are compiled")


def _by_neighbours(problem: Problem, place: tuple[str, str]) -> Decision | None:
    """The winner by far of fewer and of more sequences, where that is the same."""
    if not problem.is_linear:
        return None
    nearest = []
    for neighbours in problem.neighbours():
        decided = ((size, _state.decisions.get((place[0], key))) for size, key in neighbours)
        nearest.append(next(((size, decision) for size, decision in decided if decision and decision.samples), None))
    below, above = nearest
    if below is None or above is None or above[0] > NEIGHBOURHOOD * below[0]:
        return None
    winner = below[1].clear_winner
    if winner is None or above[1].clear_winner != winner:
        return None
    return Decision.untimed(winner, "neighbours", f"far faster with B {below[0]} and B {above[0]}")


def _timed(
    problem: Problem, device: torch.device, choices: Choices, place: tuple[str, str], obstacle: str
) -> tuple[Decision, bool]:
    if reason := obstacle or _cannot_time(device):
        return Decision.untimed(choices.heuristic, "heuristic", reason), False
    if _is_compiling(choices, place):
        return _meanwhile(choices), False

    def decide() -> Decision:
        with _state.lock:  # of two threads one decides
            decision = _state.decisions.get(place) or _from_disk(problem.key, device, choices.names)
            if decision is None and (decision := _by_neighbours(problem, place)) is not None:
                store.write(problem.key, device, decision)
            _state.decisions[place] = decision or _measured(problem, device, choices)
            return _state.decisions[place]

    shared = ranks.store()
    if shared is None:
        decision = decide()
    else:
        agreed = _state.rank_decisions.decide(shared, f"{place[0]}/{place[1]}", decide)
        if agreed is None:
            return Decision.untimed(choices.heuristic, "heuristic", "another rank decides"), False
        reason = f"another rank chose {agreed.called}, which is no candidate here"
        decision = agreed if agreed.is_among(choices.names) else Decision.untimed(choices.heuristic, "heuristic", reason)
    _state.decisions[place] = decision
    return decision, True


def _measured(problem: Problem, device: torch.device, choices: Choices) -> Decision:
    names = choices.names
    with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=problem.dropout):
        measured = measure(choices.candidates, choices.lengths, device, choices.captures)
    failures = {**choices.pruned, **measured.failures}
    if not measured.samples:
        return replace(Decision.untimed(choices.heuristic, "heuristic", "no candidate was timed"), failures=failures)
    costs = measured.probe_ms, measured.compile_ms
    in_order = {name: measured.samples[name] for name in names if name in measured.samples}
    decision = Decision(
        "", "", "measured", "", {}, failures, *costs, measured.is_stable, tuple(choices.lengths), in_order
    ).at(problem.case.steps)  # fmt: skip
    if not measured.is_stable:
        return replace(decision, reason="not stored, as other work disturbed it")
    if not any(reason.startswith(_OUT_OF_MEMORY) for reason in measured.failures.values()):
        store.write(problem.key, device, decision)
    return decision


def _cannot_time(device: torch.device) -> str:
    """Why nothing can be timed now, or ""."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a graph is being captured"
    return "autograd recomputes the call" if is_recomputed() else ""


def no_data(x: torch.Tensor) -> str:
    """Why a call of x cannot be timed, or "": torch's FakeTensor and other subclasses may have no data."""
    return "" if type(x) in (torch.Tensor, torch.nn.Parameter) else "tensors have no data"


def is_recomputed() -> bool:
    """Whether the caller runs within a backward pass, as torch.utils.checkpoint recomputes a forward pass."""
    return torch._C._current_graph_task_id() != -1


@lru_cache(maxsize=8)
def _frozen_file(path: str) -> store.FrozenFile:
    return store.FrozenFile(Path(path))


def _lacking(frozen: str, key: str, device: torch.device, choices: Choices) -> Decision:
    reason = f"{frozen} has no decision for {store.device_name(device)}, {key}"
    warnings.warn(f"{reason}: {choices.heuristic} runs it, by the cost models", stacklevel=2)
    return Decision.untimed(choices.heuristic, "heuristic", reason)


def freeze(path: str | Path) -> int:
    """Writes this process's decisions by times to a file for ECORNN_DECISIONS, and returns their number.

    Those of other devices that the file has stay. Raises ValueError for a file that is no such one, OSError where none can be
    written.
    """
    decisions = {place: decision for place, decision in _state.decisions.items() if decision.source in _DECIDED_BY_TIMES}
    store.write_frozen(Path(path), decisions)
    return len(decisions)


def forget() -> None:
    """Forgets this process's decisions, not those on disk."""
    _state.decisions.clear()
    _state.compiling.clear()
    _state.rank_decisions = ranks.RankDecisions()
    _frozen_file.cache_clear()


def decisions() -> dict[str, Decision]:
    """This process's decisions by problem."""
    return {key: decision for (_, key), decision in _state.decisions.items()}
