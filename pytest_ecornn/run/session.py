"""One run: what was asked for, resolved and checked, and what its items share (lock, ceilings, baselines, finished rows)."""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.cases import state_dict
from pytest_ecornn.cases.case_sets import SUFFIX, Origin, case_set
from pytest_ecornn.cases.sources import sources
from pytest_ecornn.cases.sweeps import FILE_SUFFIX, read_cases
from pytest_ecornn.contract import DEVICE, DTYPES, Case, Unsupported, cells
from pytest_ecornn.measurement import clocks
from pytest_ecornn.measurement.remote import RemoteArm, RemoteProcess
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.results import journal, statistics
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run import discovery
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.items.benchmark_items import AATestItem, BenchmarkItem
from pytest_ecornn.run.items.drawn_items import DrawnItem, PropertyItem
from pytest_ecornn.run.items.items import CheckItem, NamedCaseItem, build_and_compare
from pytest_ecornn.run.measured_ceilings import MeasuredCeilings
from pytest_ecornn.run.options import DEFAULT_BASELINES, Options, default_baselines
from pytest_ecornn.run.process import WorkerProcess, worker_input
from pytest_ecornn.run.revisions import NotThere, Revision
from pytest_ecornn.run.suites import kind_of_node, label_of_node
from pytest_ecornn.run.support import Support
from pytest_ecornn.system import faults, memory
from pytest_ecornn.system.gpus import host_share
from pytest_ecornn.system.gpus.lock import GpuTimingLock
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.system.locking import MachineLock, Patience
from pytest_ecornn.system.scratch import Scratch
from pytest_ecornn.verification.calls import WrongResult
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.outcomes import RAISED, CheckFailed, SkipCheck, skips_as_unsupported
from pytest_ecornn.verification.verification import Candidate

# The fixtures that hand rows to the shipped tests, and what of the session lists these rows.
ROW_FIXTURES = {
    "ecornn_row": "benchmark_items",
    "ecornn_control": "aa_test_items",
    "ecornn_fixed": "named_case_items",
    "ecornn_drawn": "drawn_case_items",
    "ecornn_properties": "properties",
}


class RunSession:
    """Ends with pytest. Raises pytest.UsageError, in one line, for whatever was asked for that does not exist."""

    def __init__(self, config: pytest.Config):
        self.options = Options.from_config(config)
        worker = worker_input(config)
        share = self.share = host_share.taken() if worker else None
        self.process = WorkerProcess()
        self.current: Row | None = None
        self.allocator = memory.configure_malloc() if self.options.bench else "system default"
        hook = config.hook
        try:
            for registered in hook.pytest_ecornn_cells(config=config):
                for cell in registered or ():
                    cells.register(cell)
            self.implementations = discovery.discover(
                [*self.options.implementations, *_hooked(hook.pytest_ecornn_implementations(config=config))]
            )
            self._origins = self._selected_cases(config, _hooked(hook.pytest_ecornn_case_sets(config=config)))
            self.cases = list(self._origins)
        except (discovery.DiscoveryError, ValueError) as error:
            raise pytest.UsageError(str(error)) from error
        self._check_names(config)
        self._scratch = None if worker else Scratch()
        self.shared_folder = self._scratch.path if self._scratch else Path(worker["ecornn_shared"])
        self._remote: RemoteProcess | None = None
        config.add_cleanup(self._close)
        self.revision: Revision | None = None
        self._former: dict[str, ImplementationInfo | str] = {}
        if self.options.against is not None:
            revision = Revision(self.options.against, config.invocation_params.dir, self.shared_folder / "against")
            self._remote = revision.process(self.options.timeout / 2)  # which a row outlasts
            self._former = {known.name: self._of_revision(known, revision) for known in self.selected}
            self.revision = revision
        self.beside = share.beside if share else ""
        self.lock = (GpuTimingLock if share else MachineLock)(rows=self.shared_folder)
        self.lock.run, self.lock.patience = worker.get("ecornn_run", os.getpid()), Patience(self.shared_folder / "waited")
        self.host_machine: dict[str, Any] = {}  # fingerprint of other hosts that run the rows

    def _selected_cases(self, config: pytest.Config, files: Sequence[Path]) -> dict[Case, Origin]:
        parse = state_dict.load(self.options.state_dict).case if self.options.state_dict else Case.parse
        origins: dict[Case, Origin] = {case: Origin() for text in self.options.cases for case in read_cases(text, parse)}
        for name in self.options.case_sets if not origins else ():
            try:
                chosen = case_set(name, files)
            except ValueError as error:
                source = Options.declared()["case_sets"].source(config)
                raise ValueError(f"{source}: {error}" if source.startswith("ecornn") else str(error)) from error
            for case, origin in chosen.items():
                origins[case] = origins.get(case, Origin()) + origin
        for device in self.options.devices:
            if not DEVICE.fullmatch(device):
                raise ValueError(f"unknown device {device!r}: expected cpu, cuda or cuda:N")
        on_devices = {
            replace(case, device=device) if device != "cpu" else case: origin
            for case, origin in origins.items()
            for device in self.options.devices
        }
        for case in on_devices:
            cells.check(case)
            if case.weights:
                state_dict.of_case(case)
        return on_devices

    def add_origin(self, row: Row) -> None:
        """Fills in what the set of the row's case says of that."""
        origin = self._origin_by_name.get(row.case, Origin())
        row.label, row.source, row.published = origin.label, origin.source, [*origin.published]

    @cached_property
    def _origin_by_name(self) -> dict[str, Origin]:
        return {str(case): origin for case, origin in self._origins.items()}

    def _check_names(self, config: pytest.Config) -> None:
        for setting in ("only", "require", "baselines"):
            for name in getattr(self.options, setting):
                if name not in self.implementations:
                    source, known = Options.declared()[setting].source(config), ", ".join(self.implementations)
                    hint = discovery.hint(name, config.invocation_params.dir)
                    raise pytest.UsageError(f"{source}: unknown implementation {name!r}: expected one of {known}; {hint}")
        try:
            self.options.limits.check([*self.implementations, *cells.names()])
        except ValueError as error:
            raise pytest.UsageError(f"--ecornn-fail-slower: {error}") from error

    def _of_revision(self, implementation: ImplementationInfo, revision: Revision) -> ImplementationInfo | str:
        """The implementation as the revision has it, or why it is not timed."""
        suffix, name = f"_at_{revision.folder.name}", f"{implementation.name}@{revision.label}"
        try:
            if implementation.is_own:
                revision.check_own(implementation.cls.__module__)
                return replace(implementation, name=name)
            loaded = revision.load(implementation.path, lambda file: discovery.load_from(file, implementation, suffix))
        except (NotThere, discovery.DiscoveryError) as reason:
            return f"not compared with {revision.label}: {reason}"
        former: ImplementationInfo = replace(loaded, name=name, is_former=True)
        self.implementations[name] = former
        return former

    @property
    def devices(self) -> list[str]:
        """The devices of the cases."""
        return list(dict.fromkeys(case.device for case in self.cases))

    @property
    def selected(self) -> list[ImplementationInfo]:
        only, require = self.options.only, self.options.require
        every = self.implementations.values()
        named = [implementation for implementation in every if implementation.name in only]
        return named or [known for known in every if known.is_run_unnamed or known.name in require]

    def locator_options(self, implementation: ImplementationInfo, is_timed: bool) -> str:
        """The options, beside name and case, that a command needs to run the implementation once more, and to time it."""
        options = self.options
        values = [("--ecornn-implementations", implementation.cli_option), ("--ecornn-state-dict", options.state_dict)]
        values += [("--ecornn-require", implementation.name if implementation.name in options.require else "")]
        if is_timed:
            values += [("--ecornn-baseline", name) for name in options.baselines]
            values += [("--ecornn-budget", f"{options.budget:g}")]
            sources = {self.implementations[name].cli_option for name in options.baselines} - {implementation.cli_option}
            values += [("--ecornn-implementations", source) for source in sorted(sources)]
        return "".join(f" {setting} {shlex.quote(value)}" for setting, value in values if value)

    # What is collected.

    def benchmark_items(self) -> list[BenchmarkItem]:
        if not self.options.bench:
            return []
        return [BenchmarkItem(self, implementation, case) for case in self.cases for implementation in self.selected]

    def aa_test_items(self) -> list[AATestItem]:
        """One a device: its first case that a baseline runs, timed by the first such baseline."""
        if not self.options.bench:
            return []
        firsts = (self._control(device) for device in self.devices)
        return [item for item in firsts if item is not None]

    def _control(self, device: str) -> AATestItem | None:
        names = self.options.baselines or DEFAULT_BASELINES[device.partition(":")[0]]
        known = [self.implementations[name] for name in names if name in self.implementations]
        cases = (case for case in self.cases if case.device == device)
        items = (AATestItem(self, implementation, case) for case in cases for implementation in known)
        return next((item for item in items if not item.refusal), None)

    def named_case_items(self) -> list[NamedCaseItem]:
        """The selected cases; those that are timed are verified there."""
        if self.options.bench:
            return []
        return [NamedCaseItem(self, implementation, case) for case in self.cases for implementation in self.selected]

    def drawn_case_items(self) -> list[DrawnItem]:
        """One a cell, dtype and device: all of them, or with --ecornn-bench those of the selected cases."""
        return (
            []
            if self.options.cases
            else [DrawnItem(self, implementation, base) for base in self._drawn_bases() for implementation in self.selected]
        )

    def properties(self) -> list[PropertyItem]:
        """One a cell, dtype and device, as `drawn_case_items`; with cases given by name, one for each of them."""
        bases = self.cases if self.options.cases else self._drawn_bases()
        return [
            PropertyItem(self, implementation, base, bool(self.options.cases))
            for base in bases
            for implementation in self.selected
        ]

    def _drawn_bases(self) -> list[Case]:
        """The cases around which others are drawn."""
        kinds: Iterable[tuple[str, str, str]]
        if self.options.bench:
            kinds = dict.fromkeys((case.cell, case.dtype, case.device) for case in self.cases)
        else:
            kinds = [(cell, dtype, device) for cell in cells.names() for dtype in DTYPES for device in self.options.devices]
        return [Case(cell=c, dtype=t, device=d, steps=4, batch=2, hidden_size=8) for c, t, d in kinds]

    def items(self) -> Iterator[CheckItem]:
        for name in ROW_FIXTURES.values():
            yield from getattr(self, name)()

    def item(self, nodeid: str) -> CheckItem | None:
        """The item of one of our tests."""
        label = label_of_node(nodeid)
        if not label:
            return None
        kind = kind_of_node(nodeid)
        return next((item for item in self.items() if item.kind == kind and str(item) == label), None)

    # What items share.

    @cached_property
    def support(self) -> Support:
        bases = [] if self.options.cases else self._drawn_bases()
        return Support(self.shared_folder, self.cases, bases, lambda name: self.process.set_current_work(name, ""))

    def refusal(self, implementation: ImplementationInfo, case: Case, is_drawn: bool = False) -> str:
        return self.support.refusal(implementation, case, is_drawn)

    @cached_property
    def confidence(self) -> float:
        """Confidence of a ratio's interval, corrected for the rows that this run may time, of two columns each on a GPU."""
        items = [item for item in self.benchmark_items() if not item.refusal]
        return statistics.per_comparison_confidence(sum(2 if item.case.device.startswith("cuda") else 1 for item in items))

    @cached_property
    def finished(self) -> dict[tuple[str, str, str], Row]:
        """The rows of the run that this one resumes."""
        path = self.shared_folder / journal.NAME  # on another host
        path = path if path.exists() else self.options.report / journal.NAME
        if not self.options.resume or not path.exists():
            return {}
        try:
            return {row.key: row for row in journal.read(path)[1]}
        except journal.JournalError as error:
            raise pytest.UsageError(str(error)) from error

    def baselines(self, implementation: ImplementationInfo, case: Case) -> tuple[Sequence[Candidate | RemoteArm], list[str]]:
        """The implementations to compare with, its own former revision last; and why others are absent."""
        candidates, missing = self._asked_baselines(implementation, case)
        former: ImplementationInfo | RemoteArm | Candidate | str | None = self._former.get(implementation.name)
        if isinstance(former, ImplementationInfo):
            former = (
                self._remote_arm(implementation.name, former.name, case) if former.is_own else self.verified(former.name, case)
            )
        if isinstance(former, str):
            return candidates, [*missing, former]
        return [*candidates, former] if former else candidates, missing

    def _remote_arm(self, implementation: str, name: str, case: Case) -> RemoteArm | str:
        """The revision's layer in its process, built and verified there, or why there is none."""
        assert self._remote is not None
        if missing := self._remote.build(name, implementation, str(case)):
            return f"not compared with {name}: {missing}"
        return RemoteArm(self._remote, name, case.device, case.training)

    def _asked_baselines(self, implementation: ImplementationInfo, case: Case) -> tuple[list[Candidate], list[str]]:
        """The implementations to compare with, built and verified, never the candidate itself; and why others are absent."""
        if self.options.baselines:
            verified = [self.verified(name, case) for name in self.options.baselines if name != implementation.name]
            candidates = [baseline for baseline in verified if isinstance(baseline, Candidate)]
            return candidates, [reason for reason in verified if isinstance(reason, str)]
        missing: list[str] = []
        for name in DEFAULT_BASELINES[case.device.partition(":")[0]]:
            if name == implementation.name:
                break
            if name not in self.implementations:
                continue
            baseline = self.verified(name, case)
            if isinstance(baseline, Candidate):
                return [baseline], missing
            missing += [baseline] if self.implementations[name].cls().refusal(case) is None else []
        return [], missing

    @lru_cache(maxsize=4)  # noqa: B019 - one session a process
    def verified(self, name: str, case: Case) -> Candidate | str:
        """The candidate, or why it cannot serve as a baseline. What is wrong with it is its own row's affair."""
        if end := self.process.fatal.get(f"{name}-{case}"):
            return f"not compared with {name}: {end}"
        if name not in self.implementations:
            return f"not compared with {name}: another process times it"
        self.process.set_current_work(name, case)
        try:
            with raised_as_error(), skips_as_unsupported(), ExitGuard() as guard:
                candidate, comparisons = build_and_compare(self.implementations[name], case)
        except (SkipCheck, Unsupported) as reason:
            return f"not compared with {name}: {reason}"
        except WrongResult as wrong:
            return f"not compared with {name}: {wrong}"
        except RAISED as error:
            self._check_baseline(name, case, error)
            return f"not compared with {name}: it raised {type(error).__name__}"
        candidate.first = None  # of a baseline nobody publishes the first call
        if guard.calls:
            return f"not compared with {name}: it called {guard.calls[0]}"
        is_wrong = any(check.status == "failed" for check in comparisons)
        return f"not compared with {name}: it is wrong" if is_wrong else candidate

    def _check_baseline(self, name: str, case: Case, error: BaseException) -> None:
        """A row must not suffer for what its baseline has done to the process: another runs it, without that baseline."""
        unrecoverable = faults.unrecoverable_reason(error, case.device)
        if unrecoverable and self.process.is_replaceable:
            self.process.stop(unrecoverable)
        if lost := faults.sticky_cuda_error(case.device):
            message = f"the CUDA context is poisoned by the baseline {name} on {case}: {lost}; see --ecornn-isolate"
            raise CheckFailed(message, is_timed=True)

    @property
    def comparability_key(self) -> dict[str, Any]:
        """Set-up that rows of two runs must share to stand side by side: what shaped them, and the implementations' sources."""
        options = self.options
        cases = sorted(map(str, self.cases)) if options.cases else sorted(map(_shown, options.case_sets))
        checksums = {name: sources.checksum(implementation.path) for name, implementation in self.implementations.items()}
        return {"mode": "bench" if options.bench else "verify", "cases": cases, **options.setup, "sources": checksums}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that shaped the rows, as the report and the terminal state them."""
        options, devices = self.options, self.devices
        sources = dict.fromkeys(origin.source for origin in self._origins.values() if origin.source)
        return {
            "cases": ", ".join(map(_shown, options.cases or options.case_sets)),
            **({"sources of the cases": "; ".join(sources)} if sources else {}),
            **({"shard": str(options.shard)} if options.shard else {}),
            "baselines": ", ".join(options.baselines) or default_baselines(devices),
            "budget": f"{options.budget:g} s a row",
            "fewest pairs": options.pairs,
            **({"processes a row": options.replicates} if options.replicates > 1 else {}),
            "profile": options.profile,
            "seed": options.seed,
            "intervals": f"{statistics.CONFIDENCE:.0%} of a time, {self.confidence:.4g} of a ratio",
            "smallest difference that counts": clocks.equivalence_margins(devices),
        }

    @cached_property
    def measured_ceilings(self) -> MeasuredCeilings:
        return MeasuredCeilings(self.shared_folder, self.cases, str(self.share.number) if self.share else "")

    def ceilings(self, device: str, is_anew: bool = False) -> Ceilings:
        return self.measured_ceilings.remeasured(device) if is_anew else self.measured_ceilings.of_device(device)

    def free_layers(self) -> None:
        """Frees what baselines hold, and ends the revision's process: other processes are to have the memory."""
        RunSession.verified.cache_clear()
        if self._remote is not None:
            self._remote.close()
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _close(self) -> None:
        """Removes what the processes of the run shared."""
        if self._remote is not None:
            self._remote.close()
        if self._scratch is not None:
            self._scratch.remove()


def _shown(text: str) -> str:
    """A case or a case set as a report names it: of a file the name alone."""
    return Path(text).name if text.endswith((SUFFIX, FILE_SUFFIX)) else text


def _hooked(answers: Iterable[Iterable[Path] | None]) -> list[Path]:
    """The paths that a hook's implementations returned."""
    return [Path(path) for paths in answers for path in paths or ()]
