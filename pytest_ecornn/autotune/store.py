"""Decisions on disk, one file a problem, in a folder of this machine and these versions; and a frozen file of a project's.

Any number of processes read and write: a file is replaced whole. What cannot be read, is damaged or was made by other
versions is ignored, and so is a folder that cannot be written.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pytest_ecornn import __version__
from pytest_ecornn.autotune.decision import Decision
from pytest_ecornn.system.cache import cache_dir
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE

SCHEMA_VERSION = 2
_PACKAGES = ("numpy", "numba", "cupy-cuda12x", "cupy-cuda13x", "triton")


@lru_cache(maxsize=16)
def device_name(device: torch.device) -> str:
    """The GPU's model, or the processor's instruction set and number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


@lru_cache(maxsize=1)
def versions() -> str:
    """The software that times depend on but for the driver, this package's own sources by their sizes and times of change."""
    packages = {"pytest-ecornn": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    packages |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version()), "sources": _sources_digest()}
    return json.dumps(packages, sort_keys=True)


def _sources_digest() -> str:
    folders = (PACKAGE / "autotune", PACKAGE / "contract", IMPLEMENTATIONS, PACKAGE / "nn", PACKAGE / "reference")
    stats = sorted(
        (file.path[len(str(folder.parent)) :], file.stat().st_size, file.stat().st_mtime_ns)
        for folder in folders
        for file in _files_in(str(folder))
        if file.name.endswith((".py", ".cu", ".cuh"))
    )
    return sha256(repr(stats).encode()).hexdigest()[:16]


def _files_in(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yields all files of a folder and its own folders, in half of the time that `Path.rglob` takes."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files_in(entry.path)
            else:
                yield entry


def read(key: str, device: torch.device) -> Decision | None:
    """The stored decision, or None."""
    try:
        fields = json.loads(_path(key, device).read_text())
        if _header(key, device).items() <= fields.items():
            return Decision.from_json(fields, "disk")
    except (OSError, ValueError, AttributeError, RuntimeError):  # RuntimeError: there is no home folder
        pass
    return None


def write(key: str, device: torch.device, decision: Decision) -> None:
    """Stores a decision if that is possible."""
    with suppress(OSError, RuntimeError):
        write_json(_path(key, device), {**_header(key, device), **decision.to_json()})


def write_json(path: Path, fields: dict[str, Any]) -> None:
    """Replaces a file whole, so that a reader sees the old one or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(fields, indent=1) + "\n")
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _header(key: str, device: torch.device) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "problem": key, "device_name": device_name(device), "versions": versions()}


def _path(key: str, device: torch.device) -> Path:
    machine = sha256(f"{device_name(device)}\n{versions()}".encode()).hexdigest()[:16]
    return cache_dir() / "autotune" / machine / f"{sha256(key.encode()).hexdigest()[:32]}.json"


class FrozenFile:
    """The decisions that `freeze` wrote to a file, by the device's name and the problem.

    Raises ValueError for a file that is no such one, and OSError for one that cannot be read.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            content = json.loads(path.read_text())
            if content["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema version {content['schema_version']}, not {SCHEMA_VERSION}")
            self._decisions = {
                (name, key): Decision.from_json(fields, "frozen")
                for name, problems in content["decisions"].items()
                for key, fields in problems.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: expected decisions that freeze wrote, got {error}") from error

    def get(self, key: str, device: torch.device) -> Decision | None:
        return self._decisions.get((device_name(device), key))


def write_frozen(path: Path, decisions: dict[tuple[str, str], Decision]) -> None:
    """Writes decisions by the device's name and the problem; those of other devices that the file has already stay."""
    content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "decisions": {}}
    if path.exists():
        FrozenFile(path)  # which raises for any other file
        content = json.loads(path.read_text())
    for (name, key), decision in sorted(decisions.items(), key=lambda item: item[0]):
        content["decisions"].setdefault(name, {})[key] = decision.to_json()
    write_json(path, content)
