"""One thing that the whole process shares: how it is read, put back and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, tensors and arrays by their elements."""
    if isinstance(one, Tensor):
        return one.equal(other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one is other or one == other)


def short(value: Any) -> str:
    """The value in a message."""
    is_long = isinstance(value, (Tensor, np.ndarray)) or (isinstance(value, (tuple, list)) and len(value) > 2)
    return "another" if is_long else str(value)[:80]


def differing_keys(before: Any, after: Any) -> str:
    """Two mappings in a message: the first entries that differ."""
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    by_name = [f"{key} {_entry(before, key)} as before, got {_entry(after, key)}" for key in keys[:2]]
    return " and ".join(by_name) + (f" and {len(keys) - 2} more" if len(keys) > 2 else "")


def _entry(values: Any, key: Any) -> str:
    """A function by its name, whose text has an address and no end."""
    return (getattr(values[key], "__qualname__", "") or str(values[key])[:60]) if key in values else "absent"


def cannot_be_put_back(old: Any) -> None:
    """The `write` of what nobody can set as it was."""
    raise OSError("cannot be put back")


def never(before: Any, after: Any) -> bool:
    """No such change."""
    return False


def always(before: Any, after: Any) -> bool:
    """Any such change."""
    return True


@dataclass(frozen=True)
class GlobalSetting:
    """One thing that is global. `read` gives None where there is nothing to tell.

    is_same: of two values. is_of_import: whether a change may be the work of a module that was imported meanwhile.
    tell: two values in a message.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    is_same: Callable[[Any, Any], bool] = same
    is_of_import: Callable[[Any, Any], bool] = never
    tell: Callable[[Any, Any], str] = lambda before, after: f"{short(before)} as before, got {short(after)}"

    def change(self, before: Any, after: Any) -> str:
        """Describes the change: the expected value and the actual one."""
        return f"{self.name}: expected {self.tell(before, after)}"


def attribute(owner: Any, name: str, label: str = "") -> GlobalSetting:
    """The setting that is an attribute of a module or an object."""
    whole = f"{label or getattr(owner, '__name__', type(owner).__name__)}.{name}"
    return GlobalSetting(whole, partial(getattr, owner, name), partial(setattr, owner, name))
