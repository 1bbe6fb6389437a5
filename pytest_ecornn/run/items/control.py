"""The control: one implementation timed against itself as any row is against its baseline, which shows a run's own noise."""

from __future__ import annotations

from pytest_ecornn.contract import Unsupported
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.items.benchmark_items import BenchmarkItem
from pytest_ecornn.run.items.items import build_and_compare
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.verification.outcomes import RAISED, SkipCheck, skips_as_unsupported
from pytest_ecornn.verification.verification import Candidate

MIN_AA_PAIRS = 20


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
            raise SkipCheck(f"{self.found.name} cannot be timed: {type(error).__name__}") from error

    def baselines(self) -> tuple[list[Candidate], list[str]]:
        return [build_and_compare(self.found, self.case)[0]], []

    @property
    def pairs(self) -> int:
        return max(MIN_AA_PAIRS, self.session.options.pairs)
