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

import torch

from pytest_ecornn.autotune import ranks, store
from pytest_ecornn.autotune.decision import Decision, fastest
from pytest_ecornn.autotune.problem import Problem
from pytest_ecornn.autotune.timing import Candidate, measure

MEASURE, HEURISTIC = "measure", "heuristic"
_OUT_OF_MEMORY = torch.OutOfMemoryError.__name__


@dataclass(frozen=True)
class Choices:
    """The candidates of a problem, in the order in which ties are resolved, and the one that a cost model prefers.

    lengths: T at which they are timed. pruned: why others are no candidates. captures: whether calls can be captured.
    runnable: what a name in ECORNN_AUTO may be, pruned or not.
    """

    candidates: Sequence[Candidate]
    heuristic: str
    lengths: Sequence[int]
    pruned: Mapping[str, str] = field(default_factory=dict)
    captures: bool = True
    runnable: Collection[str] = ()

    @property
    def names(self) -> list[str]:
        return [candidate.name for candidate in self.candidates]


class _State:
    """Decisions of this process."""

    def __init__(self) -> None:
        self.decisions: dict[tuple[str, str], Decision] = {}
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
    mode = mode or os.environ.get("ECORNN_AUTO") or MEASURE
    key = problem.key
    place = (store.device_name(device), key if mode == MEASURE else f"{mode} {key}")
    decision = _state.decisions.get(place)
    if decision is not None:
        return decision, True
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


def _timed(
    problem: Problem, device: torch.device, choices: Choices, place: tuple[str, str], obstacle: str
) -> tuple[Decision, bool]:
    if reason := obstacle or _cannot_time(device):
        return Decision.untimed(choices.heuristic, "heuristic", reason), False

    def decide() -> Decision:
        with _state.lock:  # of two threads one decides
            decision = _state.decisions.get(place) or _from_disk(problem.key, device, choices.names)
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
        measured = measure(choices.candidates, problem.case.steps, choices.lengths, device, choices.captures)
    failures = {**choices.pruned, **measured.failures}
    if not measured.timings:
        return replace(Decision.untimed(choices.heuristic, "heuristic", "no candidate was timed"), failures=failures)
    called, on_device = (
        fastest(names, {name: getattr(timing, field) for name, timing in measured.timings.items()})
        for field in ("called_us", "device_us")
    )
    decision = Decision(
        called,
        on_device,
        "measured",
        "",
        measured.timings,
        failures,
        measured.probe_ms,
        measured.compile_ms,
        measured.is_stable,
    )
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
    """Writes this process's timed decisions to a file for ECORNN_DECISIONS, and returns their number.

    Those of other devices that the file has stay. Raises ValueError for a file that is no such one, OSError where none can be
    written.
    """
    decisions = {place: decision for place, decision in _state.decisions.items() if decision.timings}
    store.write_frozen(Path(path), decisions)
    return len(decisions)


def forget() -> None:
    """Forgets this process's decisions, not those on disk."""
    _state.decisions.clear()
    _state.rank_decisions = ranks.RankDecisions()
    _frozen_file.cache_clear()


def decisions() -> dict[str, Decision]:
    """This process's decisions by problem."""
    return {key: decision for (_, key), decision in _state.decisions.items()}
