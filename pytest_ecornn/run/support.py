"""Asks implementations which of a run's cases they support: once a run, in one process, for all of its workers.

The answers decide which rows become test items, so every worker of pytest-xdist needs the same ones. An implementation that
raises instead of answering, or whose process dies, counts as supporting the case: its row then fails, with its own reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from pytest_ecornn.cases.strategies import Refusal
from pytest_ecornn.contract import DTYPES, Case, cells
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.system import file_locks
from pytest_ecornn.system.cache import write_cached
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, random_states_restored
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.guards.tampering import MonkeypatchGuard

NO_CUDA = "no CUDA device on this machine"
Answers = dict[str, str]


class Support:
    """Answers of each implementation on the `cases` themselves, and on `bases`, around which cases are drawn.

    folder: shared by all processes of the run. announce: called with an implementation's name before its code runs, and with
    an empty one afterwards.
    """

    def __init__(self, folder: Path, cases: Sequence[Case], bases: Sequence[Case], announce: Callable[[str], None]):
        self._folder, self._announce = folder, announce
        self._cases, self._bases = cases, bases
        self._answers: dict[str, Answers] = {}

    def refusal(self, implementation: ImplementationInfo, case: Case, is_drawn: bool = False) -> str:
        """Why the implementation runs neither the case nor, if it `is_drawn`, one like it; empty where it does."""
        name = implementation.name
        if name not in self._answers:
            self._answers[name] = self._shared_answers(implementation)
        return self._answers[name].get(_key(case, is_drawn), "")

    def accepted(self, implementation: ImplementationInfo) -> str:
        """The first case that it runs: near one of the run, else of any cell and dtype; empty where none is found."""
        devices = dict.fromkeys([*(case.device for case in (*self._cases, *self._bases)), "cpu", "cuda"])
        kinds = product(devices, cells.names(), DTYPES)
        small = [Case(cell=c, dtype=t, device=d, steps=4, batch=2, hidden_size=8) for d, c, t in kinds]
        firsts = {(case.cell, case.dtype): case for case in reversed(self._cases)}
        own = [replace(case, device=device) for device in devices for case in reversed(firsts.values())]

        def nearest(case: Case) -> str:
            return str(implementation.nearest_supported(case, implementation.cls().refusal) or "")

        with GlobalStateGuard(), MonkeypatchGuard(), ExitGuard():
            return next(
                (name for case in (*own, *small) if _is_here(case) and (name := _ask_guarded(nearest, case))),
                "",
            )

    def _shared_answers(self, implementation: ImplementationInfo) -> Answers:
        """The answers that the first process got; empty where it died of asking."""
        path = self._folder / f"support-{implementation.name}.json"
        begun = path.with_suffix(".begun")
        with self._locked():
            if not path.exists():
                if begun.exists():
                    return {}
                begun.touch()
                self._announce(implementation.name)
                write_cached(path, json.dumps(self._ask(implementation)).encode())
                self._announce("")
            answers: Answers = json.loads(path.read_text())
        return answers

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among the run's processes; the kernel frees the lock of one that dies."""
        descriptor = file_locks.open_file(self._folder / "support.lock")
        try:
            file_locks.wait_for_lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _ask(self, implementation: ImplementationInfo) -> Answers:
        """Reasons by case. Empty where asking changed what all share, or would have ended the run: rows are to show it.

        Own implementations' answers replace no tool, and a look at all tools takes longer than the answers.
        """
        guard: AbstractContextManager[MonkeypatchGuard | None] = nullcontext() if implementation.is_own else MonkeypatchGuard()
        with GlobalStateGuard() as settings, random_states_restored(), guard as tools, ExitGuard() as exits:
            answers = {
                _key(case, False): _ask_guarded(lambda case: implementation.cls().refusal(case), case) for case in self._cases
            }
            answers |= {_key(base, True): _refusal_around(implementation, base) for base in self._bases}
        return (
            {}
            if settings.changes or exits.calls or (tools and tools.changes)
            else {key: reason for key, reason in answers.items() if reason}
        )


def _key(case: Case, is_drawn: bool) -> str:
    return f"around {case}" if is_drawn else str(case)


def _refusal_around(implementation: ImplementationInfo, base: Case) -> str:
    def refusal(base: Case) -> str | None:
        ask = implementation.cls().refusal
        return None if implementation.nearest_supported(base, ask) is not None else ask(base)

    return _ask_guarded(refusal, base)


def _is_here(case: Case) -> bool:
    """Whether the machine has the case's device."""
    return not case.device.startswith("cuda") or torch.cuda.is_available()


def _ask_guarded(ask: Refusal, case: Case) -> str:
    """The answer as text; empty where the implementation raised, whatever it was."""
    if not _is_here(case):
        return NO_CUDA
    try:
        with raised_as_error():
            return str(ask(case) or "")
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""
