"""Agreement of the ranks of torch.distributed on a decision, by the process group's store: no collective, no wait.

The first rank that asks for a problem decides it and publishes the decision. Others take the heuristic's until they see it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from pytest_ecornn.autotune.decision import Decision

_PREFIX = "pytest_ecornn/autotune"
_SECONDS = 0.2  # between two looks at the store


def store() -> Any:
    """The store of the default process group of several ranks, or None."""
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return None
    return torch._C._distributed_c10d.PrefixStore(_PREFIX, distributed.distributed_c10d._get_default_store())


class RankDecisions:
    """Problems that this process has asked for in a process group, and not yet seen a decision of."""

    def __init__(self) -> None:
        self._asked: dict[tuple[object, str], float] = {}

    def decide(self, shared: Any, name: str, decide: Callable[[], Decision]) -> Decision | None:
        """The decision of all ranks for a problem by `name`, or None where it is another rank's and not published yet.

        None too where the store does not answer, since the rank that has it may be gone.
        """
        try:
            return self._decide(shared, name, decide)
        except torch.distributed.DistError:
            return None

    def _decide(self, shared: Any, name: str, decide: Callable[[], Decision]) -> Decision | None:
        now, place = time.monotonic(), (distributed.group.WORLD, name)
        if place not in self._asked:
            if shared.add(f"{name}/ranks", 1) == 1:
                decision = decide()
                shared.set(name, json.dumps(decision.to_json()))
                return decision
        elif now - self._asked[place] < _SECONDS:
            return None
        self._asked[place] = now
        if not shared.check([name]):
            return None
        self._asked.pop(place, None)
        return Decision.from_json(json.loads(shared.get(name)), "ranks")
