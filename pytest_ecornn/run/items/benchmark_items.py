"""The test items that time: a row against its baselines, and the control, which shows a run's own noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pytest_ecornn.cases.contents import valid_steps
from pytest_ecornn.contract import Cost, Declared, Unsupported
from pytest_ecornn.measurement import capture, clocks, cost_bounds, roofline
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import Arm, freeze_living
from pytest_ecornn.measurement.noise.baselines import PLACES, BaselineProbe
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.remote import RemoteArm, RemoteError
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.results.rows import Row, Timing
from pytest_ecornn.run.items.items import NamedCaseItem, build_and_compare, check_not_refused, notes_of
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.system.locking import turn
from pytest_ecornn.verification import spot_check
from pytest_ecornn.verification.comparison import TensorCheck
from pytest_ecornn.verification.guards import ambient
from pytest_ecornn.verification.guards.background import ThreadGuard
from pytest_ecornn.verification.guards.tampering import MonkeypatchGuard
from pytest_ecornn.verification.outcomes import RAISED, CheckFailed, SkipCheck, skips_as_unsupported
from pytest_ecornn.verification.verification import Candidate, ReferenceResult, failed_tensors

MIN_AA_PAIRS = 20
LayerArm = Arm | RemoteArm
LayerColumn = TimingColumn[LayerArm] | TimingColumn[GraphArm | RemoteArm]


class BenchmarkItem(NamedCaseItem):
    """Verifies one case, times it against its baselines, and verifies the timed calls."""

    kind = "benchmark"

    def fill(self, row: Row) -> None:
        with suppress(RemoteError):
            self._fill(row)
            return
        vars(row).update(vars(self.empty_row()))  # once more, without what has ended
        self._fill(row)

    def _fill(self, row: Row) -> None:
        check_not_refused(self.implementation, self.case)
        freeze_living()
        threads, clock = ThreadGuard(), clocks.for_device(self.case.device)
        with self.session.lock.shared():
            baselines, notes = self.baselines()
            pool, names = InputPool(self.case), [baseline.name for baseline in baselines]
        self.session.process.set_current_work(self.implementation.name, self.case, names, is_timed=True)
        with self.session.lock.exclusive():
            alone = _arms(baselines, pool, threads)
            probe, replay_probe = BaselineProbe(alone, clock, self.session.options.budget), self._replay_probe(alone)
            del alone
        self.session.process.set_current_work(self.implementation.name, self.case)
        with self._global_state_unchanged():
            candidate = self.verified(row)
            self._verify_first(candidate)
            cost_bounds.checked(candidate)
        self.session.process.set_current_work(self.implementation.name, self.case, names, is_timed=True)
        first = Arm(candidate, pool, threads=threads)
        arms = [first, *_arms(baselines, pool, threads)]
        called, replayed = TimingColumn(arms, clock, self.session.confidence, probe), None
        with self.session.lock.exclusive():
            with turn():
                self.session.ceilings(self.case.device)
            with self._global_state_unchanged():
                called.measure(self.session.options.budget, self.pairs)
            if ambient.has_busy_threads():
                threads.check()
                raise self.failure("threads: expected them to rest after a call, but a core is busy")
            with turn():
                peak_bytes, host_us = first.peak_bytes(), first.host_us(clock)
            if self.case.device.startswith("cuda"):
                replayed, missing = self._replayed(arms, replay_probe)
                notes = [*notes, *missing]
            columns: list[LayerColumn] = [called, replayed] if replayed else [called]
            cost = cost_bounds.checked(candidate)
            with turn():
                ceilings = self._ceilings(columns, cost)
        row.beside = "; ".join(filter(None, [self.session.beside, self.session.lock.beside()]))
        self._verify_kept(columns, candidate.declared)
        floor_us = self._floor_us(ceilings)
        row.timing = self._check_roofline(called.timing(cost, floor_us, peak_bytes, host_us), ceilings)
        row.replay = self._check_roofline(replayed.timing(cost, floor_us), ceilings) if replayed else None
        row.notes = "; ".join(filter(None, [notes_of(candidate), *notes]))

    def _built_and_compared(self) -> tuple[Candidate, list[TensorCheck]]:
        """What times something when it is built has the machine alone for that."""
        if not self.implementation.cls.times_in_build:
            return super()._built_and_compared()
        check_not_refused(self.implementation, self.case)
        with self.session.lock.exclusive():
            with turn():
                candidate = Candidate.build(self.implementation.name, self.implementation.cls, self.case)
            with self.session.lock.shared():
                return candidate, candidate.verify()

    def baselines(self) -> tuple[Sequence[Candidate | RemoteArm], list[str]]:
        """The baselines of the candidate; and the reasons why others are absent."""
        return self.session.baselines(self.implementation, self.case)

    @property
    def pairs(self) -> int:
        """The fewest to measure."""
        return self.session.options.pairs

    @contextmanager
    def _global_state_unchanged(self) -> Iterator[None]:
        """Raises Failure where what all share has changed: other implementations' calls, which alternate, were not the same."""
        with ambient.GlobalStateGuard(ambient.everything()) as settings, MonkeypatchGuard() as tools:
            yield
        for change in (*settings.changes, *tools.changes):
            raise self.failure(change)

    def _replay_probe(self, arms: Sequence[LayerArm]) -> BaselineProbe | None:
        """The device-only times of calibrated arms alone, by graphs that are gone before the candidate's are captured."""
        if not self.case.device.startswith("cuda"):
            return None
        with turn():
            graphs = [graph for arm in arms for graph in _graphs([arm])[0]]
        clock, budget = clocks.CudaGraphTimer(self.case.device), self.session.options.budget
        return BaselineProbe(graphs, clock, budget, PLACES)

    def _replayed(self, arms: Sequence[LayerArm], probe: BaselineProbe | None) -> tuple[LayerColumn | None, list[str]]:
        """The device-only column, measured, or None; and what it lacks."""
        with turn():
            graphs, missing = _graphs(arms)
        if not graphs:
            return None, missing
        column = TimingColumn(graphs, clocks.CudaGraphTimer(self.case.device), self.session.confidence, probe)
        column.measure(self.session.options.budget, self.pairs)
        return column, missing

    def _ceilings(self, columns: Sequence[LayerColumn], cost: Cost) -> Ceilings:
        """The device's, measured again where a column has beaten them."""
        ceilings = self.session.ceilings(self.case.device)
        is_beaten = any(column.timing(cost, self._floor_us(ceilings)).is_below_floor for column in columns)
        return self.session.ceilings(self.case.device, is_anew=True) if is_beaten else ceilings

    def _floor_us(self, ceilings: Ceilings) -> float:
        return roofline.floor_us(self.case, valid_steps(self.case), ceilings)

    def _check_roofline(self, timing: Timing, ceilings: Ceilings) -> Timing:
        """Raises Failure for a time that no algorithm can reach, and for rates that this machine cannot."""
        if timing.is_below_floor:
            raise self.failure(
                f"{timing.time_us:.4g} us by {timing.clock}, but this machine needs at least "
                f"{timing.floor_us:.4g} us: a row below its floor is invalid"
            )
        if problem := cost_bounds.rate_problem(timing, ceilings):
            raise self.failure(f"cost: {problem}")
        return timing

    def _verify_first(self, candidate: Candidate) -> None:
        """In training the first call is another than the one that was verified."""
        if candidate.first is None:
            return
        tensors, candidate.first = candidate.first, None
        with self.session.lock.shared():
            if spot_check.shares([(candidate.first_problem, tensors)], candidate.declared)[0] > 1:
                verdicts = ReferenceResult(candidate.first_problem()).compare(tensors, candidate.declared, fewest_runs=0)
                self._check_right("the first call, whose time is published,", verdicts)

    def _verify_kept(self, columns: Sequence[LayerColumn], declared: Declared) -> None:
        with self.session.lock.shared():
            arms = [column.arms[0] for column in columns]
            checks = [check for arm in arms if not isinstance(arm, RemoteArm) for check in arm.kept.verify(declared)]
            self._check_right("a timed call", checks)

    def _check_right(self, calls: str, comparisons: list[TensorCheck]) -> None:
        worst = {check.tensor: check for check in reversed(comparisons) if check.status == "failed"}  # of several calls
        if message := failed_tensors(self.implementation.name, self.case, [*worst.values()][::-1]):
            raise CheckFailed(f"{calls} returned a wrong result\n{message}")


def _arms(baselines: Iterable[Candidate | RemoteArm], pool: InputPool, threads: ThreadGuard) -> list[LayerArm]:
    return [arm.fresh() if isinstance(arm, RemoteArm) else Arm(arm, pool, threads=threads) for arm in baselines]


def _graphs(arms: Sequence[LayerArm]) -> tuple[list[GraphArm | RemoteArm], list[str]]:
    """As `capture.graph_arms`; another process captures its own."""
    here = [arm for arm in arms if isinstance(arm, Arm)]
    captured, missing = capture.graph_arms(here)
    graphs: list[GraphArm | RemoteArm] = [*captured]
    for arm in arms:
        if isinstance(arm, RemoteArm) and (captured or not here):
            remote, reasons = arm.captured()
            graphs, missing = [*graphs, *remote], [*missing, *reasons]
    return graphs, missing


class AATestItem(BenchmarkItem):
    """Two builds of the same implementation: what differs between their times is the measurement's doing."""

    kind = "control"

    def fill(self, row: Row) -> None:
        """Times the control; skips it where that fails, because the implementation's own row reports the error."""
        try:
            with raised_as_error(), skips_as_unsupported():
                super().fill(row)
        except (SkipCheck, Unsupported):
            raise
        except RAISED as error:
            raise SkipCheck(f"{self.implementation.name} cannot be timed: {type(error).__name__}") from error

    def baselines(self) -> tuple[Sequence[Candidate | RemoteArm], list[str]]:
        return [build_and_compare(self.implementation, self.case)[0]], []

    @property
    def pairs(self) -> int:
        return max(MIN_AA_PAIRS, self.session.options.pairs)
