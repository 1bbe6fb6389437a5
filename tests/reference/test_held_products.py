"""Threads that need products of different precisions: each computes in its own, and the process's is put back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations._cuda.host.library import HostLibrary, host_library
from pytest_ecornn.reference import held_products as module
from pytest_ecornn.reference.held_products import PRODUCTS, held_products, products_of, use_compiled_holds
from pytest_ecornn.reference.precision import current, set_precision
from tests.helpers.requirements import needs_compiler

SUMS = [getattr(torch._C, f"_get_cublas_allow_{name}_reduced_precision_reduction") for name in ("fp16", "bf16")]
KINDS = [(torch.float32, False), (torch.float32, True), (torch.float16, False), (torch.bfloat16, False)]


def settings() -> tuple[Any, ...]:
    return current("matmul"), *(read() for read in SUMS)


def is_set(dtype: torch.dtype, tf32: bool) -> bool:
    """Whether products of a dtype have the precision that was asked for now."""
    if dtype == torch.float32:
        return (current("matmul") == "tf32") == tf32
    flags = SUMS[dtype == torch.bfloat16]()
    return not (flags[0] if isinstance(flags, tuple) else flags)


@pytest.fixture(params=["python", pytest.param("compiled", marks=needs_compiler)])
def before(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ...]]:
    """The process's settings before a test, which finds them again."""
    monkeypatch.setattr(module, "_python", module._PythonHolds())
    if request.param == "compiled":
        library = host_library()
        assert isinstance(library, HostLibrary)
        if not library.is_compiled:
            library.compile()
        use_compiled_holds(library.load())
    seen = settings()
    yield seen
    assert settings() == seen


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("dtype", "tf32"), KINDS)
def test_a_hold_sets_its_own_setting_alone_and_nests(before: tuple[Any, ...], dtype: torch.dtype, tf32: bool) -> None:
    for _ in range(2):
        with held_products(dtype, tf32), held_products(dtype, tf32):
            assert is_set(dtype, tf32)
            changed = [now != old for now, old in zip(settings(), before, strict=True)]
            assert sum(changed) <= 1
        assert settings() == before
    with pytest.raises(LookupError), held_products(dtype, tf32):
        raise LookupError
    assert products_of(dtype, tf32) in PRODUCTS


def test_other_dtypes_hold_nothing(before: tuple[Any, ...]) -> None:
    assert products_of(torch.float64, False) is None
    with held_products(torch.float64, False):
        assert settings() == before


@pytest.mark.usefixtures("before")
def test_a_precision_of_the_process_is_put_back() -> None:
    old = current("matmul")
    set_precision("matmul", "tf32")
    try:
        with held_products(torch.float32, False):
            assert current("matmul") != "tf32"
            with held_products(torch.float32, True):  # of the same thread
                assert current("matmul") == "tf32"
            assert current("matmul") != "tf32"
        assert current("matmul") == "tf32"
    finally:
        set_precision("matmul", old)


@pytest.mark.usefixtures("before")
def test_threads_that_need_the_same_hold_it_at_once() -> None:
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with held_products(torch.float16, False):
            is_held.set()
            may_end.wait(30)

    thread = in_thread(hold)
    assert is_held.wait(30)
    with held_products(torch.float16, False):
        pass
    assert is_set(torch.float16, False)
    may_end.set()
    thread.join(30)


@pytest.mark.usefixtures("before")
def test_a_thread_that_needs_another_waits() -> None:
    seen, has_begun = list[str](), threading.Event()

    def hold() -> None:
        has_begun.set()
        with held_products(torch.float32, True):
            seen.append(current("matmul"))

    with held_products(torch.float32, False):
        thread = in_thread(hold)
        assert has_begun.wait(30)
        thread.join(0.1)
        assert seen == []
        assert is_set(torch.float32, False)
    thread.join(30)
    assert seen == ["tf32"]


@pytest.mark.usefixtures("before")
def test_many_threads_each_compute_in_their_own_precision() -> None:
    failures = list[tuple[torch.dtype, bool]]()

    def work(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(500):
            dtype, tf32 = generator.choice(KINDS)
            with held_products(dtype, tf32):
                for _ in range(generator.randrange(5)):
                    if not is_set(dtype, tf32):
                        failures.append((dtype, tf32))

    threads = [in_thread(lambda seed=seed: work(seed)) for seed in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_compiled_holds_take_the_place_of_pythons_when_none_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiled:
        def __init__(self) -> None:
            self.calls = list[tuple[str, int]]()

        def hold(self, products: int) -> None:
            self.calls.append(("hold", products))

        def release(self, products: int) -> None:
            self.calls.append(("release", products))

    monkeypatch.setattr(module, "_python", module._PythonHolds())
    compiled, before = Compiled(), settings()
    with held_products(torch.float16, False):
        thread = in_thread(lambda: use_compiled_holds(compiled))
        thread.join(0.1)
        assert thread.is_alive()
    thread.join(30)
    assert settings() == before
    with held_products(torch.float16, False):
        assert settings() == before
    assert compiled.calls == [("hold", 2), ("release", 2)]


@pytest.mark.usefixtures("before")
def test_who_needs_another_gets_its_turn() -> None:
    ends, seen = threading.Event(), threading.Event()

    def hold() -> None:
        while not ends.is_set():
            with held_products(torch.float32, True):
                time.sleep(1e-3)

    def hold_another() -> None:
        with held_products(torch.float32, False):
            seen.set()

    threads = [in_thread(hold) for _ in range(3)]
    threads.append(in_thread(hold_another))
    assert seen.wait(20)
    ends.set()
    for thread in threads:
        thread.join(30)


def test_a_setting_that_somebody_changes_meanwhile_stays(before: tuple[Any, ...]) -> None:
    with held_products(torch.float32, True):
        set_precision("matmul", "ieee")
    try:
        assert current("matmul") == "ieee"
    finally:
        set_precision("matmul", before[0])
