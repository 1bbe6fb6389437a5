"""One call for a profiler: an implementation is built for a case and warmed up, then called once where the profiler looks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from pytest_ecornn.contract import Unsupported
from pytest_ecornn.results.formatting import duration, printable
from pytest_ecornn.run.items.items import NamedCaseItem
from pytest_ecornn.run.process import UnrecoverableError
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.verification.calls import Call
from pytest_ecornn.verification.outcomes import CheckFailed, SkipCheck
from pytest_ecornn.verification.verification import Candidate, expected

WARMUP_CALLS = 3


class ProfileCallPlugin:
    """Calls in place of pytest's collection. Raises UsageError for any but one implementation and one case that it runs."""

    def __init__(self, config: pytest.Config):
        config.option.dist, config.option.tx = "no", []  # whatever -n in addopts says
        self._config, self._session = config, RunSession(config)
        for what, selected in (("--ecornn-only NAME", self._session.options.only), ("case", self._session.cases)):
            if len(selected) != 1:
                came = ", ".join(map(str, selected[:3])) or "none"
                raise pytest.UsageError(f"--ecornn-profile-call expected one {what}, got {len(selected)}: {came}")
        self._item = NamedCaseItem(self._session, self._session.selected[0], self._session.cases[0])

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        if reason := self._item.refusal:
            raise pytest.UsageError(f"--ecornn-profile-call: {self._item} does not run: {reason}")
        try:
            line = f"{self._item}: one call took {duration(self._seconds() * 1e6)}"
        except (CheckFailed, UnrecoverableError, SkipCheck, Unsupported) as error:
            pytest.exit(printable(error), pytest.ExitCode.TESTS_FAILED)
        self._config.get_terminal_writer().line(line)
        session.testscollected = 1
        return True

    def _seconds(self) -> float:
        case, implementation = self._item.case, self._item.implementation
        with self._session.lock.shared(), self._item.attributed_to(case):
            candidate = Candidate.build(implementation.name, implementation.cls, case)
            call = Call(replace(expected(case).problem, weights=candidate.weights))
            with torch.set_grad_enabled(case.training):
                for _ in range(WARMUP_CALLS):
                    call.forward_backward(candidate.layer)
                with profiled(case.device):
                    start = time.perf_counter()
                    call.forward_backward(candidate.layer)
                    if case.device.startswith("cuda"):
                        torch.cuda.synchronize(case.device)
                    return time.perf_counter() - start


@contextmanager
def profiled(device: str) -> Iterator[None]:
    """Within it a profiler of a GPU sees what runs, and nothing that was begun before; on a CPU it does nothing."""
    if not device.startswith("cuda"):
        yield
        return
    torch.cuda.synchronize(device)
    with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("ecornn"):
        yield
