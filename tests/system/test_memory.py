"""The allocator is told once and for all, and the peak of a call is what it touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ecornn.system import memory

MB = 2**20
glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc and /proc")

# Fresh arrays of 64 MB, each written: minor page faults of ten of them once the first has been made.
FAULTS = """
import resource, sys
import numpy as np
from pytest_ecornn.system import memory
if sys.argv[1] == "fixed":
    print(memory.configure_malloc())
    assert memory.configure_malloc() == memory.configure_malloc()
else:
    print()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(2**26, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(sum(faults() for _ in range(10)))
"""


def run(script: str, argument: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script, argument], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


@glibc
def test_fresh_arrays_cost_no_page_faults_once_the_allocator_is_fixed() -> None:
    description, faults, _ = run(FAULTS, "fixed")
    assert description == "glibc malloc: mmap_max 0, trim_threshold never"
    assert int(faults) < 50
    assert int(run(FAULTS, "default")[1]) > 50, "the default shows no faults either: this test proves nothing"


def test_without_glibc_the_system_default_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "libc", lambda: None)
    assert memory.configure_malloc() == "system default: mallopt is not available"
    memory.trim_malloc()


FRESH = """
hold = np.ones(2**25, np.uint8)
def call():
    np.ones(2**26, np.uint8)
call()
print(memory.peak_bytes(call), memory.peak_bytes(call), memory.peak_bytes(lambda: None))
"""
# Of garbage that is freed during a call.
GARBAGE = """
import gc
gc.disable()
garbage = [np.ones(2**26, np.uint8)]
garbage.append(garbage)
del garbage
def call():
    gc.collect()
    np.ones(2**26, np.uint8)
print(memory.peak_bytes(call))
"""
TEMPORARIES = """
import torch
a = torch.ones(2**22)
print(memory.peak_bytes(lambda: (a + 1) * 2))
"""


@glibc
@pytest.mark.parametrize(
    ("script", "megabytes"),
    [(FRESH, [64, 64, 0]), ("memory.configure_malloc()" + FRESH, [64, 64, 0]), (GARBAGE, [64]), (TEMPORARIES, [32])],
    ids=["fresh arrays", "fresh arrays by the fixed allocator", "beside garbage", "torch's temporaries"],
)
def test_peak_is_what_a_call_allocates_and_touches(script: str, megabytes: list[int]) -> None:
    said = run("import numpy as np\nfrom pytest_ecornn.system import memory\n" + script, "")[0]
    assert [int(text) / MB for text in said.split()] == pytest.approx(megabytes, rel=0.1, abs=1)


@glibc
def test_the_limit_of_memory_holds_and_can_be_lifted() -> None:
    script = """
import numpy as np
from pytest_ecornn.system import memory
memory.set_memory_limit(2**31)
try:
    np.empty(2**31, np.uint8)
except MemoryError as error:
    print(error)
memory.remove_memory_limit()
print(np.empty(2**31, np.uint8).size)
"""
    assert run(script, "")[:2] == [
        "Unable to allocate 2.00 GiB for an array with shape (2147483648,) and data type uint8",
        str(2**31),
    ]


def test_peak_is_unknown_where_the_kernel_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[int] = []
    monkeypatch.setattr(memory, "_PROCESS", tmp_path)
    assert memory.peak_bytes(lambda: calls.append(1)) is None
    (tmp_path / "status").write_text("Name:\tpython\n")
    assert memory.peak_bytes(lambda: calls.append(1)) is None


@pytest.mark.skipif(memory.allocator_behaviour() is None, reason="another allocator than glibc's")
@pytest.mark.parametrize("usual", [False, True])
def test_a_thread_that_takes_or_gives_memory_meanwhile_does_not_count(usual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(False, not usual), (False, usual), (False, usual)])
    monkeypatch.setattr(memory, "_of_large_blocks", lambda own: next(answers))
    behaviour = memory.allocator_behaviour()
    assert behaviour
    assert (behaviour["maps large blocks"], behaviour["gives freed memory back"]) == (False, usual)


def test_of_blocks_that_are_mapped_another_thread_s_memory_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena that shrinks meanwhile is another thread's."""

    class Libc:
        states = iter([(100, 0), (100, 1), (60, 0)])

        def mallinfo2(self) -> SimpleNamespace:
            arena, hblks = next(self.states)
            return SimpleNamespace(arena=arena, hblks=hblks)

        def malloc(self, size: int) -> int:
            return size

        def free(self, block: int) -> None:
            pass

    assert memory._of_large_blocks(Libc()) == (True, False)  # type: ignore[arg-type]
