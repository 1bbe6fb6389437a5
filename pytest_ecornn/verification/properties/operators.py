"""A mode that does something at one operator of a call, and the operators of a call at which that is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ecornn.system.dispatch import DispatchMode
from pytest_ecornn.verification.properties.subject import PropertyContext

_PLACES = 4


class AtOperator(DispatchMode):
    """Within it, `action` comes before operator number `at`, of this thread. count: of the operators that came."""

    sees_inside_ops = True

    def __init__(self, at: int = -1, action: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._at, self._action, self.count = at, action, 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: what torch.compile made runs as it was compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count - 1 == self._at:
            self._action()
        return func(*args, **(kwargs or {}))


def spread_places(subject: PropertyContext, call: Callable[[], object]) -> tuple[range, int]:
    """Numbers of some operators of a call, four or a few more, others by each seed; and how many operators it has."""
    with (counted := AtOperator()):
        call()
    step = max(1, counted.count // _PLACES)
    return range(subject.case.seed % step, max(1, counted.count), step), counted.count
