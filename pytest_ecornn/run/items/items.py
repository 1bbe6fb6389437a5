"""One test item: proves a row, times it, and ends as passed, skipped or failed.

A finished row of a resumed run is replayed: same outcome, nothing measured again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import pytest
import torch

from pytest_ecornn.contract import Case, Declared, Unsupported
from pytest_ecornn.measurement.remote import RemoteArm
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.reference.precision import cudnn_precision, fp32_precision
from pytest_ecornn.results.rows import AGAIN, EXPECTED, Row, TensorError
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.failures import describe_error, describe_variation, is_of_harness, needed_cases
from pytest_ecornn.run.options import Options
from pytest_ecornn.run.process import UnrecoverableError, WorkerProcess
from pytest_ecornn.run.support import NO_CUDA
from pytest_ecornn.system import faults, memory
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.guards import ambient
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.guards.tampering import IntrospectionGuard, MonkeypatchGuard
from pytest_ecornn.verification.outcomes import RAISED, CheckFailed, SkipCheck, WrongCase, skips_as_unsupported
from pytest_ecornn.verification.verification import Candidate, expected, failed_tensors, rerun_command


class ItemLock(Protocol):
    """The part of `locking.MachineLock` that items use."""

    def shared(self) -> AbstractContextManager[None]: ...
    def exclusive(self) -> AbstractContextManager[None]: ...
    def beside(self) -> str: ...


class ItemSession(Protocol):
    """Each member as in `session.RunSession`."""

    current: Row | None

    @property
    def options(self) -> Options: ...
    @property
    def lock(self) -> ItemLock: ...
    @property
    def beside(self) -> str: ...
    @property
    def process(self) -> WorkerProcess: ...
    @property
    def implementations(self) -> Mapping[str, ImplementationInfo]: ...
    @property
    def finished(self) -> Mapping[tuple[str, str, str], Row]: ...
    @property
    def confidence(self) -> float: ...
    def refusal(self, implementation: ImplementationInfo, case: Case, is_drawn: bool = False) -> str: ...
    def locator_options(self, implementation: ImplementationInfo, is_timed: bool) -> str: ...
    def baselines(
        self, implementation: ImplementationInfo, case: Case
    ) -> tuple[Sequence[Candidate | RemoteArm], list[str]]: ...
    def ceilings(self, device: str, is_anew: bool = False) -> Ceilings: ...


class NotRun(CheckFailed):
    """The row could not be run here, for no reason of its own."""


@dataclass(frozen=True)
class CheckItem:
    session: ItemSession
    implementation: ImplementationInfo
    case: Case
    kind = "fixed"

    def __str__(self) -> str:
        return f"{self.implementation.name}-{self.case}"

    @property
    def refusal(self) -> str:
        """Why the implementation runs none of its cases, as it said before the first row; empty where it runs some."""
        return self.session.refusal(self.implementation, self.case)

    def run(self) -> Row:
        """The finished row. Ends the test by pytest.skip, pytest.xfail or pytest.fail where the row is skipped or failed."""
        row = self.session.current = self.finished()
        if row.status == "skipped":
            pytest.skip(row.reason)
        if row.reason.startswith(EXPECTED):
            pytest.xfail(row.reason.partition("\n")[0])
        if row.status == "failed":  # as every failure is with --runxfail
            pytest.fail(row.reason, pytrace=False)
        return row

    def finished(self) -> Row:
        """The row as an earlier run left it, or filled now."""
        empty = self.empty_row()
        return self.session.finished.get(empty.key) or self._run(empty)

    def empty_row(self) -> Row:
        case, kind = self.case, self.implementation.cls
        return Row(
            self.kind, self.implementation.name, str(case), case.cell, case.dtype, case.device, case.mode, status="passed",
            deterministic=kind.deterministic, **{name: getattr(kind, name) for name in Declared._fields},
        )  # fmt: skip

    def skipped_row(self, reason: object) -> Row:
        """The row of what the implementation does not support: skipped, or failed where the implementation is required."""
        row = self.empty_row()
        self._skip(row, reason)
        return row

    def _skip(self, row: Row, reason: object) -> None:
        row.status, row.reason = "skipped", str(reason)
        if self.implementation.name in self.session.options.require:
            self.fail(row, CheckFailed(f"{self.implementation.name} is required, but skipped: {reason}"))

    def _run(self, row: Row) -> Row:
        start, exits, tools, is_judged = time.perf_counter(), ExitGuard(), MonkeypatchGuard(), True
        try:
            self._check_device()
            self._check_kernels()
            # What one implementation changes for all must not harm the next.
            with (
                self.attributed_to(self.case),
                self._settings_put_back(),
                tools,
                IntrospectionGuard(self.implementation.path) as asking,
                exits,
            ):
                self.fill(row)
            for call in exits.calls:
                raise self.failure(f"expected a result or Unsupported, but {call} was called")
            for change in tools.changes:
                raise self.failure(change)
            for asked in asking.accesses:
                raise self.failure(f"expected it to use its arguments alone, but it asked for {asked}")
        except (SkipCheck, Unsupported) as reason:
            is_judged = False
            self._skip(row, reason)
        except CheckFailed as failure:
            is_judged = not isinstance(failure, NotRun)
            self.fail(row, self.examined(failure))
        except UnrecoverableError as fault:
            self.fail(row, CheckFailed(str(fault), self.session.process.words.case))
            self.session.process.is_spoilt = True
        self._check_context(row)
        self._note_kernels(row, tools)
        if is_judged:
            self.expect(row)
        if row.status != "passed":
            row.timing = row.replay = None
        row.seconds = time.perf_counter() - start
        self.session.process.is_fresh &= row.status == "skipped"
        return row

    def fail(self, row: Row, failure: CheckFailed) -> None:
        """Marks the row as failed, with the command that repeats it."""
        row.status, row.reason = "failed", str(failure)
        if not isinstance(failure, NotRun):
            is_timed = failure.is_timed or self.session.process.words.is_timed
            row.reason += f"{AGAIN}{self.rerun(failure.case, is_timed, failure.earlier)}"

    def expect(self, row: Row) -> None:
        """Applies --ecornn-xfail to a row that ran: a failure says that it is expected, and what passed instead has failed."""
        expected = self.session.options.xfail
        if expected is None or (line := expected.of(row)) is None:
            return
        if row.status == "failed":
            row.reason = f"{EXPECTED}{line.reason}\n{row.reason}"
            return
        row.status, said = "failed", f"expected to fail, as {expected.name} says: {line.reason}"
        row.reason = f"{self.implementation.name} on {row.case}: {said}, but passed: take the line out"

    def examined(self, failure: CheckFailed) -> CheckFailed:
        """The failure, with how it repeats: always, now and then, or after other cases."""
        process, case = self.session.process, failure.case
        if not isinstance(failure, WrongCase) or not isinstance(case, Case) or process.words.is_timed:
            return failure
        with self.session.lock.shared():
            if variation := describe_variation(self.implementation, case, self.is_wrong):
                return CheckFailed(f"{self.implementation.name} on {case}: {variation}\n{failure}", case)
            earlier = needed_cases(self.implementation, case, list(process.cases[self.implementation.name]), self.is_wrong)
        return CheckFailed(str(failure), case, earlier=earlier)

    def is_wrong(self, implementation: ImplementationInfo, case: Case) -> bool:
        """Whether the implementation, or a copy of its modules, fails on a case by what the row checks. Raises what it does."""
        _, comparisons = build_and_compare(implementation, case)
        return any(comparison.status == "failed" for comparison in comparisons)

    def rerun(self, case: Case | str = "", is_timed: bool = False, earlier: Sequence[Case] = ()) -> str:
        """The command that repeats the row, or what it did on one case after others."""
        cases, extra = [*earlier, case or self.case], self.session.locator_options(self.implementation, is_timed)
        return rerun_command(self.implementation.name, cases, extra, is_timed=is_timed)

    def _check_device(self) -> None:
        if self.case.device.startswith("cuda") and not torch.cuda.is_available():
            raise SkipCheck(NO_CUDA)
        if lost := faults.sticky_cuda_error(self.case.device):
            raise self._not_run(f"because an earlier row has poisoned the CUDA context: {lost}")

    def _check_kernels(self) -> None:
        """Raises NotRun where an earlier row has left a kernel of its own in place of torch's."""
        changed = self.session.process.overrides
        if changed is None:
            return
        gc.collect()  # with the layer its library may end
        for change in changed.changes():
            raise self._not_run(f"because of an earlier row: {change}")
        self.session.process.overrides = None

    def _not_run(self, reason: str) -> NotRun:
        isolated = "with --ecornn-isolate a new process runs what comes after such a row"
        return NotRun(f"{self.implementation.name} on {self.case}: was not run, {reason}; {isolated}")

    def _note_kernels(self, row: Row, tools: MonkeypatchGuard) -> None:
        """Says what a failed row leaves in place of torch's kernels: no row after it may be blamed."""
        for change in tools.overrides.changes() if row.status == "failed" and not self.session.process.overrides else ():
            self.session.process.is_spoilt, self.session.process.overrides = True, tools.overrides
            row.reason = row.reason if change in row.reason else f"{change}\n{row.reason}"
            return

    def _check_context(self, row: Row) -> None:
        """Checks the CUDA context after a row, because what the row leaves running on a GPU may fail later."""
        if lost := faults.sticky_cuda_error(self.case.device):
            self.session.process.is_spoilt = True
            if row.status == "passed":
                self.fail(row, self.failure(f"CUDA context is poisoned: {lost}"))

    @contextmanager
    def _settings_put_back(self) -> Iterator[None]:
        """Restores the settings after a row. A setting that cannot be restored makes the process unfit for other rows."""
        settings = ambient.GlobalStateGuard(ambient.everything())
        try:
            with settings:
                yield
        finally:
            self.session.process.is_spoilt |= bool(settings.lasting)

    def fill(self, row: Row) -> None:
        raise NotImplementedError

    @contextmanager
    def attributed_to(self, case: Case, *verdicts: type[Exception]) -> Iterator[None]:
        """Within it the implementation runs on `case`. What it raises beside `verdicts` is a Failure, or Spoilt if it lasts.

        cuDNN's precision is the case's: threads that each set it, and a backward pass that raises, would leave another.
        """
        process = self.session.process
        passing: tuple[type[Exception], ...] = (CheckFailed, SkipCheck, Unsupported, *verdicts)
        process.set_current_work(self.implementation.name, case)
        try:
            is_gpu = case.device.startswith("cuda")
            with raised_as_error(), skips_as_unsupported(), fp32_precision("rnn", cudnn_precision(case) if is_gpu else None):
                yield
        except passing:
            raise
        except WrongResult as wrong:
            raise WrongCase(f"{self.implementation.name} on {case}: {wrong}", case) from wrong
        except RAISED as error:
            if not (fault := faults.unrecoverable_reason(error, case.device)):
                kind = CheckFailed if is_of_harness(self.implementation, error, self._beside()) else WrongCase
                raise kind(describe_error(self.implementation, case, error, self._beside()), case) from error
            if faults.is_out_of_memory(error) and process.is_replaceable:
                memory.remove_memory_limit()  # reporting needs a little
                if not process.is_fresh:
                    process.stop(is_again=True)  # earlier rows' memory may be what it lacked
            raise UnrecoverableError(f"{self.implementation.name} on {case}: {fault}") from error

    def _beside(self) -> list[ImplementationInfo]:
        """The baselines that the row takes turns with now."""
        names, known = self.session.process.words.beside.split(" and "), self.session.implementations
        return [known[name] for name in names if name in known]

    def check_not_fatal(self) -> None:
        """Raises Failure where the case has ended a process of this run before."""
        if end := self.session.process.fatal.get(f"{self.implementation.name}-{self.case}"):
            raise self.failure(f"{end}, in another row; it was not run again")

    def failure(self, what: str) -> CheckFailed:
        return CheckFailed(f"{self.implementation.name} on {self.case}: {what}")


class NamedCaseItem(CheckItem):
    """Verifies one case."""

    def fill(self, row: Row) -> None:
        candidate = self.verified(row)
        row.notes = notes_of(candidate)

    def verified(self, row: Row) -> Candidate:
        """The implementation built and proven right; its errors go into the row. The machine is not locked yet."""
        self.check_not_fatal()
        candidate, comparisons = self._built_and_compared()
        for check in comparisons:
            row.tensors.append(TensorError(check.tensor, check.status, check.rms, check.maximum, check.share, check.slice))
            row.count(check.tensor, check.status != "uninformative")
        implementation = candidate.implementation  # what it declares once it is built
        vars(row).update(implementation.declared._asdict())
        row.deterministic, row.delegate = implementation.deterministic, implementation.delegate
        if message := failed_tensors(self.implementation.name, self.case, comparisons):
            raise WrongCase(message, self.case)
        if comparisons[0].status != "passed":
            raise CheckFailed(f"nothing is proven of {self.implementation.name} on {self.case}: {comparisons[0].message}")
        return candidate

    def _built_and_compared(self) -> tuple[Candidate, list[TensorCheck]]:
        with self.session.lock.shared():
            return build_and_compare(self.implementation, self.case, fewest_runs=1)


def check_not_refused(implementation: ImplementationInfo, case: Case) -> None:
    """Raises Skip where the implementation says that it will not run the case."""
    with ambient.random_states_restored():
        reason = implementation.cls().refusal(case)
    if reason:
        raise SkipCheck(reason)


def build_and_compare(
    implementation: ImplementationInfo, case: Case, fewest_runs: int = 0
) -> tuple[Candidate, list[TensorCheck]]:
    """Builds a candidate and compares its results, as `ReferenceResult.compare`. Raises Skip as `check_not_refused`."""
    check_not_refused(implementation, case)
    candidate = Candidate.build(implementation.name, implementation.cls, case)
    return candidate, candidate.verify(fewest_runs)


def notes_of(candidate: Candidate) -> str:
    """What the implementation says of what ran, and how far its rounded weights take the output from that of exact ones."""
    notes, rounding = [candidate.implementation.notes()], candidate.declared.weight_rounding
    if rounding != "none":
        error = expected(candidate.case).rounding_error(rounding)
        notes.append(f"weights in {rounding}: output {100 * error:.2g} % off exact weights'")
    return "; ".join(filter(None, notes))
