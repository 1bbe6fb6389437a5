"""Finds implementations: by listing folders, and third parties' by option, hook and entry point.

Nothing is dropped in silence: a module that does not hold exactly one complete implementation stops the run, with the
file's name and what to do.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import shlex
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from types import ModuleType

from pytest_ecornn.contract import MOST_ACTIVATION_ERROR, Declared, Implementation
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.verification.guards.ambient import Kept, clocks
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.guards.tampering import Tools

ENTRY_POINT_GROUP = "pytest_ecornn.implementations"
_OWN = "pytest_ecornn.implementations"
_NOT_IMPLEMENTATIONS = (".*", "_*", "conftest.py", "setup.py", "test_*.py", "*_test.py")
_copies = count()


class DiscoveryError(Exception):
    """One line: which file, what is wrong with it, what to do."""


@dataclass(frozen=True)
class Found:
    """An implementation, where it came from, and the option that brings it back (empty for own and installed ones)."""

    name: str
    kind: type[Implementation]
    path: Path
    option: str = ""
    is_own: bool = False


def discover(paths: Iterable[Path]) -> dict[str, Found]:
    """All implementations by name, sorted: own ones, entry points', and those under `paths`. Raises DiscoveryError.

    An own file that is under `paths` too counts once.
    """
    found: dict[str, Found] = {}
    own = _own()
    own_files = {one.path.resolve() for one in own}
    given = [f for path in dict.fromkeys(p.resolve() for p in paths) for f in _given(path, own_files)]
    for one in [*own, *_installed(), *given]:
        if one.name in found:
            raise DiscoveryError(
                f"two implementations are named {one.name!r}: {found[one.name].path} and {one.path}; rename one of the files"
            )
        found[one.name] = one
    return dict(sorted(found.items()))


def hint(name: str, directory: Path) -> str:
    """Names the option that brings in a file of one's own: NAME.py in `directory` or in a folder of it, or any file."""
    files = [directory / f"{name}.py", *sorted(directory.glob(f"[!.]*/{name}.py"))] if name.isidentifier() else []
    for file in files:
        relative = str(file.relative_to(directory))
        if file.is_file() and relative.isprintable():
            return f"for this file of yours add --ecornn-implementations {shlex.quote(relative)}"
    return "a file of your own needs --ecornn-implementations PATH beside it"


def _own() -> list[Found]:
    root = Path(__file__).parents[1] / "implementations"
    modules = [(f"{_OWN}.{file.stem}", file) for file in _files(root)]
    modules += [(f"{_OWN}.peers.{file.stem}", file) for file in _files(root / "peers")]
    with _unchanged(root):
        return [
            _only_implementation(_loaded(partial(importlib.import_module, module), file), file, is_own=True)
            for module, file in modules
        ]


def _installed() -> list[Found]:
    found = []
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        module = _guarded(partial(importlib.import_module, entry.module), Path(f"entry point {entry.name} = {entry.value}"))
        found.append(_only_implementation(module, Path(module.__file__ or entry.value)))
    return found


def _given(path: Path, own_files: Collection[Path]) -> list[Found]:
    if not path.exists():
        raise DiscoveryError(
            f"{path}: no such file or folder; expected a Python file with an implementation, or a folder of them"
        )
    files = _files(path) if path.is_dir() else [path]
    if not files:
        raise DiscoveryError(f"{path}: holds no implementation; expected .py files whose names do not begin with _ or test_")
    package = _package_of(files[0].parent)
    foreign = [file for file in files if file.resolve() not in own_files]
    return [_only_implementation(_guarded(partial(_load, file, package), file), file, option=str(path)) for file in foreign]


def _files(folder: Path) -> list[Path]:
    files = (file for file in folder.glob("*.py") if not file.is_dir())
    return sorted(file for file in files if not any(file.match(pattern) for pattern in _NOT_IMPLEMENTATIONS))


def load_copy(found: Found) -> Found | None:
    """The implementation from modules loaded anew, which no call has changed; None where they cannot be loaded twice."""
    if not found.option:
        return None
    package = _package_of(found.path.parent, f"_copy{next(_copies)}")
    try:
        module = _guarded(partial(_load, found.path, package), found.path)
        return _only_implementation(module, found.path, found.option)
    except DiscoveryError:
        return None


def _package_of(folder: Path, suffix: str = "") -> str:
    """A package that stands for the folder, so that its files import each other by `from . import _shared`."""
    name = f"ecornn_implementations_{zlib.crc32(str(folder).encode()):08x}{suffix}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _load(file: Path, package: str) -> ModuleType:
    name = f"{package}.{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _guarded(load: Callable[[], ModuleType], file: Path) -> ModuleType:
    with _unchanged(file):
        return _loaded(load, file)


@contextmanager
def _unchanged(file: Path) -> Iterator[None]:
    """Raises DiscoveryError where what is imported within it replaced what the harness works with."""
    with Kept(clocks()) as kept, Tools() as tools:
        yield
    if changes := kept.changes + tools.changes:
        raise DiscoveryError(f"{file}: importing it replaced what the harness works with: {changes[0]}")


def _loaded(load: Callable[[], ModuleType], file: Path) -> ModuleType:
    try:
        with raised_as_error(), ExitGuard():
            return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit and pytest.skip raise no Exception
        raise DiscoveryError(
            f"{file}: importing it raised {type(error).__name__}: {' '.join(str(error).split())}; mend the module, "
            "or import what may be missing inside build and say so in unsupported"
        ) from error


def _only_implementation(module: ModuleType, file: Path, option: str = "", is_own: bool = False) -> Found:
    kinds = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Implementation) and value.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        names = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise DiscoveryError(
            f"{file}: expected exactly one subclass of pytest_ecornn.Implementation, found {names}; "
            "one file holds one implementation, and shared code goes into files whose names begin with _"
        )
    if missing := _missing(kinds[0]):
        raise DiscoveryError(f"{file}: class {kinds[0].__name__} lacks {', '.join(missing)}; see implementations/README.md")
    return Found(module.__name__.rpartition(".")[2], kinds[0], file, option, is_own)


def _missing(kind: type[Implementation]) -> list[str]:
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    for name in Declared._fields[:-1]:
        if getattr(kind, name, None) not in ("storage", "float32"):
            missing.append(f'{name} ("storage" or "float32")')
    if not 0 <= getattr(kind, "activation_error", 0.0) <= MOST_ACTIVATION_ERROR:
        missing.append(f"activation_error (from 0 to {MOST_ACTIVATION_ERROR:g})")
    if not isinstance(getattr(kind, "deterministic", None), bool):
        missing.append("deterministic (True or False)")
    if not isinstance(kind.takes_resets, bool):
        missing.append("takes_resets (True or False)")
    return missing
