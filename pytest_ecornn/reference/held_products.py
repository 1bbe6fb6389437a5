"""The process's precision of products, held by calls: threads that need the same hold it at once, others wait for them.

torch keeps it for the whole process. Without a hold two threads may compute in each other's precision, and leave it so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch

from pytest_ecornn.reference.precision import current, set_precision

# Of float32 products the precision; of 16 bits sums in float32, as a part of a long sum may overflow where the whole does not.
Products = Literal["ieee", "tf32", "float16", "bfloat16"]
PRODUCTS: tuple[Products, ...] = get_args(Products)  # numbered as in replay.cpp


class Holds(Protocol):
    """Functions of a number in PRODUCTS. A thread releases what it has held."""

    def hold(self, products: int) -> None: ...
    def release(self, products: int) -> None: ...


class _Setting(NamedTuple):
    """One of torch's settings. value: what products need, of what was set before."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    value: Callable[[int, Any], Any]


def _float32() -> _Setting:
    def value(products: int, before: str) -> str:
        wanted = PRODUCTS[products]
        return before if (wanted == "tf32") == (before == "tf32") else wanted

    def write(precision: str) -> None:
        if current("matmul") != precision:
            set_precision("matmul", precision)

    return _Setting(lambda: current("matmul"), write, value)


def _sums(name: str) -> _Setting:
    read, write = (getattr(torch._C, f"_{verb}_cublas_allow_{name}_reduced_precision_reduction") for verb in ("get", "set"))

    def flags() -> tuple[bool, ...]:  # of newer versions of torch also whether a sum may be split
        before = read()
        return before if isinstance(before, tuple) else (before,)

    return _Setting(flags, lambda values: write(*values), lambda _, before: (False, *before[1:]))


class _PythonHolds:
    """Holds until those of the compiled host path take their place."""

    def __init__(self) -> None:
        float32 = _float32()
        self._settings = [float32, float32, _sums("fp16"), _sums("bf16")]  # by number of products
        self._holders: list[tuple[int, int]] = []  # threads, and the number of the products of each
        self._waiting: list[tuple[int, int]] = []  # in turn
        self._before: dict[_Setting, Any] = {}
        self._during: dict[_Setting, Any] = {}
        self._changed = threading.Condition()
        self.compiled: Holds | None = None

    def hold(self, products: int) -> Callable[[int], None]:
        """Returns what releases it."""
        setting, waiter = self._settings[products], (threading.get_ident(), products)
        with self._changed:
            self._waiting.append(waiter)
            try:
                self._changed.wait_for(lambda: self._is_free(setting, waiter))
            finally:
                self._waiting.remove(waiter)
                self._changed.notify_all()
            if (compiled := self.compiled) is None:
                before = self._before.setdefault(setting, setting.read())
                self._holders.append(waiter)
                self._set(setting, setting.value(products, before))
                return self.release
        compiled.hold(products)
        return compiled.release

    def release(self, products: int) -> None:
        setting = self._settings[products]
        with self._changed:
            self._holders.remove((threading.get_ident(), products))
            if rest := self._of(setting, self._holders):
                self._set(setting, setting.value(rest[-1][1], self._before[setting]))
            else:
                before = self._before.pop(setting)
                if setting.read() == self._during.pop(setting):  # else somebody has set another meanwhile
                    setting.write(before)
            self._changed.notify_all()

    def use(self, compiled: Holds) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._holders)
            self.compiled = compiled

    def _set(self, setting: _Setting, value: Any) -> None:
        setting.write(value)
        self._during[setting] = setting.read()

    def _is_free(self, setting: _Setting, waiter: tuple[int, int]) -> bool:
        """Whether no other thread holds, or has awaited before, other products of the setting."""
        thread, products = waiter
        holders = self._of(setting, self._holders)
        if any(other != products and holder != thread for holder, other in holders):
            return False
        before = self._of(setting, self._waiting[: self._waiting.index(waiter)])
        return any(holder == thread for holder, _ in holders) or all(other == products for _, other in before)

    def _of(self, setting: _Setting, threads: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [thread for thread in threads if self._settings[thread[1]] is setting]


_python = _PythonHolds()
os.register_at_fork(after_in_child=_python.__init__)  # type: ignore[misc]  # where no thread of the parent's releases


def use_compiled_holds(compiled: Holds) -> None:
    """Makes calls hold precisions by the compiled host path's functions, once no call holds one by Python's."""
    _python.use(compiled)


def products_of(dtype: torch.dtype, tf32: bool) -> Products | None:
    """The products of tensors of a dtype, None where their precision is no setting. tf32: of float32."""
    if dtype == torch.float32:
        return "tf32" if tf32 else "ieee"
    return {torch.float16: "float16", torch.bfloat16: "bfloat16"}.get(dtype)  # type: ignore[return-value]


def held_products(dtype: torch.dtype, tf32: bool) -> AbstractContextManager[None]:
    """Context in which products of a dtype have their precision. Waits while other threads compute in another.

    No context for what waits for another thread that needs products, as a backward pass does.
    """
    products = products_of(dtype, tf32)
    return nullcontext() if products is None else _HeldProducts(PRODUCTS.index(products))


class _HeldProducts:
    __slots__ = ("_products", "_release")

    def __init__(self, products: int):
        self._products = products

    def __enter__(self) -> None:
        if (compiled := _python.compiled) is None:
            self._release = _python.hold(self._products)
        else:
            compiled.hold(self._products)
            self._release = compiled.release

    def __exit__(self, *raised: object) -> None:
        self._release(self._products)
