"""The fingerprint of a run: what the machine is, which software ran and from which commit, so that times can be judged.

Reports are published: nothing here names a user, a host or a path of this machine.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info

from pytest_ecornn import __version__
from pytest_ecornn.system.sensors import nvml

PACKAGES = ("torch", "numpy", "numba", "pytest", "pytest-benchmark", "hypothesis", "cupy")
_CUPY_WHEELS = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
_CPU = Path("/sys/devices/system/cpu/cpu0")
_CPUINFO = Path("/proc/cpuinfo")
_GIT_SECONDS = 5.0
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
# What two fingerprints must share for their times to be compared.
_COMPARED = (
    "cpu", "architecture", "cores", "caches", "simd", "virtualised", "governor", "gpu", "python", "threads", "allocator",
    "commit", "dirty", "version",
)  # fmt: skip
_COMPARED_PACKAGES = ("torch", "numpy", "numba", "cupy")
# Of these, what makes another machine even for ratios of times; commits are meant to differ.
_KIND = ("cpu", "architecture", "cores", "threads")
_EXPECTED_TO_DIFFER = ("commit", "dirty")


def fingerprint(rootdir: Path) -> dict[str, Any]:
    """Everything about this run that its times depend on, ready for JSON; None for what cannot be found out."""
    commit = _commit(rootdir)
    return {
        "cpu": _cpu(),
        "architecture": platform.machine(),
        "cores": usable_cores(),
        "caches": _caches(),
        "memory_bytes": memory_bytes() or None,
        "simd": torch.backends.cpu.get_cpu_capability(),
        "virtualised": _is_virtualised(),
        "governor": _read(_CPU / "cpufreq/scaling_governor"),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": {"torch": torch.get_num_threads(), "numba": _numba_threads()},
        "gpu": _gpu(),
        "commit": commit["id"] if commit else None,
        "dirty": commit["dirty"] if commit else None,
        "version": __version__,
        "benchmark_machine_info": _benchmark_machine_info(),
        "benchmark_commit_info": commit or _NO_COMMIT,
    }


def same_machine(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Lists the differences that make the times of two fingerprints incomparable, one line each; empty without any.

    Two runs with uncommitted changes on one commit count as the same: what was changed is not known.
    """
    pairs = [(name, a.get(name), b.get(name)) for name in _COMPARED]
    packages = (a.get("packages") or {}, b.get("packages") or {})
    pairs += [(name, packages[0].get(name), packages[1].get(name)) for name in _COMPARED_PACKAGES]
    return [f"{name}: {_text(first)} and {_text(second)}" for name, first, second in pairs if first != second]


def check_comparable(a: dict[str, Any], b: dict[str, Any], has_gpu: bool) -> tuple[list[str], list[str]]:
    """Lists the differences that forbid comparing ratios of times, and those that deserve a warning, one line each.

    has_gpu: whether any of the times were taken on a GPU, so that its name matters.
    """
    gpus = [list((one.get("gpu") or {}).get("names") or []) for one in (a, b)]
    forbidden = [f"{name}: {_text(a.get(name))} and {_text(b.get(name))}" for name in _KIND if a.get(name) != b.get(name)]
    if has_gpu and gpus[0] != gpus[1]:
        then, now = (", ".join(names) or "none" for names in gpus)
        forbidden.append(f"gpu: {then} and {now}")
    known = (*_KIND, *_EXPECTED_TO_DIFFER, *(() if has_gpu else ("gpu",)))
    return forbidden, [line for line in same_machine(a, b) if line.partition(":")[0] not in known]


def gpu_summary(found: dict[str, Any]) -> str:
    """Summarises in one line the parts of a fingerprint that times on a GPU depend on most."""
    gpu, packages = found["gpu"], found["packages"]
    device = f"{', '.join(gpu['names'])}; driver {gpu.get('driver')}, CUDA {gpu.get('cuda')}" if gpu else "no GPU"
    return f"{device}, torch {packages['torch']}, CuPy {packages['cupy']}; {found['cpu']}; commit {found['commit']}"


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads_per_worker(config: Any, shares: int = 1) -> None:
    """Gives torch its share of the cores in a worker of pytest-xdist; verified cases are small, threads of too many wait.

    shares: parts that the cores are divided into, of which this process may run on one.
    """
    if worker := getattr(config, "workerinput", None):
        torch.set_num_threads(max(1, usable_cores() * shares // worker["workercount"]))


@contextmanager
def one_thread() -> Iterator[int]:
    """torch on one thread; gives the number that it had.

    Another program on one core delays every parallel call by a turn of the scheduler, thousandfold for a short one, and
    one thread not at all.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def memory_bytes() -> int:
    """Bytes of the machine's physical memory; 0 where unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def last_level_cache_bytes() -> int:
    """Bytes of the largest data cache; 0 where unknown."""
    return max((size for name, size in _caches().items() if not name.endswith("i")), default=0)


def _caches() -> dict[str, int]:
    """Bytes of each cache that the first core sees: L1d, L1i, L2, L3."""
    found = {}
    for index in sorted((_CPU / "cache").glob("index*")):
        level, kind, size = (_read(index / name) or "" for name in ("level", "type", "size"))
        if match := re.fullmatch(r"(\d+)([KMG]?)", size):
            found[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = int(match[1]) * _UNITS[match[2]]
    return found


def _cpuinfo(name: str) -> str | None:
    found = re.search(rf"^{name}\s*:\s*(.*)$", _read(_CPUINFO) or "", re.MULTILINE)
    return found[1].strip() if found else None


def _cpu() -> str:
    """The processor's name; of ARM's, which Linux gives no name, with designer and part numbers of every kind of core."""
    brand = (_benchmark_machine_info().get("cpu") or {}).get("brand_raw")  # on macOS from sysctl
    name = _cpuinfo("model name") or brand or platform.processor() or platform.machine()
    text = _read(_CPUINFO) or ""
    numbers = (re.findall(rf"^CPU {field}\s*:\s*(\S+)", text, re.MULTILINE) for field in ("implementer", "part"))
    cores = dict.fromkeys(f"implementer {implementer} part {part}" for implementer, part in zip(*numbers, strict=False))
    return f"{name} ({', '.join(sorted(cores))})" if cores else name


def _is_virtualised() -> bool | None:
    flags = _cpuinfo("flags")
    return None if flags is None else "hypervisor" in flags.split()


def _version(name: str) -> str | None:
    for distribution in _CUPY_WHEELS if name == "cupy" else (name,):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _numba_threads() -> int:
    """Predicts Numba's number of threads without importing it, which takes a second."""
    given = os.environ.get("NUMBA_NUM_THREADS", "")
    return int(given) if given.isdigit() else usable_cores()


def _gpu() -> dict[str, Any] | None:
    if not torch.cuda.is_available():
        return None
    driver = re.search(r"\d{3,}\.\d[\d.]*", _read(Path("/proc/driver/nvidia/version")) or "")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    sensors = "NVML" if nvml() else "NVML not available"
    return {"names": names, "driver": driver[0] if driver else None, "cuda": torch.version.cuda, "sensors": sensors}


@lru_cache(maxsize=1)
def _benchmark_machine_info() -> dict[str, Any]:
    """Returns the machine in pytest-benchmark's format, without the host's name. Tuples become lists, as in JSON."""
    generate: Any = pytest_benchmark_generate_machine_info
    info: dict[str, Any] = json.loads(json.dumps(generate()))
    return {**info, "node": ""}


_NO_COMMIT = {
    "id": "unversioned", "time": None, "author_time": None, "dirty": False, "project": "", "branch": "(unknown)",
}  # fmt: skip


def _commit(rootdir: Path) -> dict[str, Any] | None:
    """Returns the commit in pytest-benchmark's format; None outside a repository.

    Dirty: a tracked file differs, but for `reports`, into which runs write. The branch is left out: it may name a user.
    """
    shown = git(rootdir, "show", "--no-patch", "--format=%H %cI %aI", "HEAD")
    if not shown:
        return None
    commit, time, author_time = shown.split()
    changes = git(rootdir, "status", "--porcelain", "--untracked-files=no", "--", ":(top,exclude)reports")
    origin = git(rootdir, "config", "--get", "remote.origin.url") or ""
    project = re.split(r"[/:\\]", origin.removesuffix(".git"))[-1]
    return {**_NO_COMMIT, "id": commit, "time": time, "author_time": author_time, "dirty": changes != "", "project": project}


def own_root() -> Path | None:
    """The clone that this package is run from; None where it is installed."""
    root = Path(__file__).parents[2]
    return root if (root / ".git").exists() and (root / "pytest_ecornn").is_dir() else None


def own_commit() -> str:
    """Commit of this package's own repository, marked where a tracked file differs; empty for an installation without one."""
    root = own_root()
    commit = _commit(root) if root else None
    return commit["id"] + ("-dirty" if commit["dirty"] else "") if commit else ""


def git(rootdir: Path, *arguments: str) -> str | None:
    """Returns git's output; None where git is absent, slow or refuses."""
    command = ["git", "-C", str(rootdir), *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _text(value: Any) -> str:
    return "unknown" if value is None else str(value)
