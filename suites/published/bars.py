"""What a measured ratio has to reach, and whether it does: its whole interval, not its middle alone."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ecornn.reporting.formatting import ratio_interval
from pytest_ecornn.statistics import Ratio


@dataclass(frozen=True)
class Bar:
    """A ratio has to be `limit` at least."""

    limit: float

    def __str__(self) -> str:
        return f"at least {self.limit:.3g}"

    def holds(self, ratio: Ratio) -> str:
        """yes, no, or unclear where the bar lies within the interval."""
        if ratio.low >= self.limit:
            return "yes"
        return "no" if ratio.high < self.limit else "unclear"


def shown(ratio: Ratio) -> str:
    """The ratio with its interval."""
    return ratio_interval(ratio.ratio, ratio.low, ratio.high)
