"""Finds implementations: by listing folders, and third parties' by option, hook and entry point.

An implementation is a module, or a package whose `__init__.py` defines it. Nothing is dropped in silence: what does not hold
exactly one complete implementation stops the run, with the file's name and what to do.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import shlex
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from types import ModuleType

from pytest_ecornn.cases.sources.size_hints import size_hints
from pytest_ecornn.cases.sources.sources import INIT, home
from pytest_ecornn.cases.strategies import Refusal, nearest_supported
from pytest_ecornn.contract import (
    EVERY_CASE,
    MAX_ACTIVATION_ERROR,
    WEIGHT_ROUNDINGS,
    Case,
    Declared,
    Implementation,
    SupportedCases,
)
from pytest_ecornn.system.interruption import raised_as_error
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS
from pytest_ecornn.verification.guards.ambient import GlobalStateGuard, lasting
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.guards.tampering import HOOKING, IntrospectionGuard, MonkeypatchGuard

ENTRY_POINT_GROUP = "pytest_ecornn.implementations"
_OWN = "pytest_ecornn.implementations"
_IGNORED = (".*", "_*", "conftest.py", "setup.py", "test_*.py", "*_test.py")
_copies = count()


class DiscoveryError(Exception):
    """One line: which file, what is wrong with it, what to do."""


@dataclass(frozen=True)
class ImplementationInfo:
    """An implementation, where it came from, and the option that brings it back (empty for own and installed ones)."""

    name: str
    cls: type[Implementation]
    path: Path
    cli_option: str = ""
    is_own: bool = False
    is_former: bool = False  # of another revision

    @property
    def is_run_unnamed(self) -> bool:
        """Whether a run has it without its name: an own one that rounds weights computes another function than its rivals."""
        if self.is_former:
            return False
        return not self.is_own or self.cls.runs_unnamed

    def nearest_supported(self, case: Case, refusal: Refusal) -> Case | None:
        """As `strategies.nearest_supported`. Another's sources are read for sizes, too; own ones run any."""
        return nearest_supported(case, refusal, self.cls.supported, lambda: self._size_hints)

    @property
    def line(self) -> int:
        """The line of the file at which the class begins; 1 where none is found."""
        try:
            return inspect.findsource(self.cls)[1] + 1
        except (OSError, TypeError, SyntaxError):
            return 1

    @cached_property
    def _size_hints(self) -> dict[int, str]:
        return {} if self.is_own else size_hints(self.path)


def discover(paths: Iterable[Path]) -> dict[str, ImplementationInfo]:
    """All implementations by name, sorted: own ones, entry points', and those under `paths`. Raises DiscoveryError.

    An own module or package that is under `paths` too counts once.
    """
    by_name: dict[str, ImplementationInfo] = {}
    own = _builtin()
    own_files = {implementation.path.resolve() for implementation in own}
    users = [info for path in dict.fromkeys(p.resolve() for p in paths) for info in _from_path(path, own_files)]
    for info in [*own, *_from_entry_points(), *users]:
        if info.name in by_name:
            both = f"{by_name[info.name].path} and {info.path}"
            raise DiscoveryError(f"two implementations are named {info.name!r}: {both}; rename one of the files")
        by_name[info.name] = info
    return dict(sorted(by_name.items()))


def hint(name: str, directory: Path) -> str:
    """Names the option that brings in a file of one's own: NAME.py in `directory` or in a folder of it, or any file."""
    files = [directory / f"{name}.py", *sorted(directory.glob(f"[!.]*/{name}.py"))] if name.isidentifier() else []
    for file in files:
        relative = str(file.relative_to(directory))
        if file.is_file() and relative.isprintable():
            return f"for this file of yours add --ecornn-implementations {shlex.quote(relative)}"
    return "a file of your own needs --ecornn-implementations PATH beside it"


@cache
def _builtin() -> tuple[ImplementationInfo, ...]:
    with _unchanged(IMPLEMENTATIONS):
        return tuple(_listed(IMPLEMENTATIONS, _OWN))


def _listed(folder: Path, package: str) -> Iterator[ImplementationInfo]:
    """Implementations of an own folder. A package without a class is a family, whose modules are implementations."""
    for file in _entries(folder):
        name = f"{package}.{_name(file)}"
        module = _loaded(partial(importlib.import_module, name), file)
        if file.name == INIT and not _classes(module) and _entries(file.parent):
            yield from _listed(file.parent, name)
        else:
            yield _extract_implementation(module, file, is_own=True)


def _from_entry_points() -> list[ImplementationInfo]:
    registered = []
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        load, place = partial(importlib.import_module, entry.module), Path(f"entry point {entry.name} = {entry.value}")
        module = _import_guarded(load, place)
        registered.append(_extract_implementation(module, Path(module.__file__ or entry.value)))
    return registered


def _from_path(path: Path, own_files: Collection[Path]) -> list[ImplementationInfo]:
    if not path.exists():
        raise DiscoveryError(
            f"{path}: no such file or folder; expected a Python file with an implementation, or a folder of them"
        )
    if path.is_file() or _defines_a_class(path / INIT):
        files = [path if path.is_file() else path / INIT]
    else:  # packages that define no class are code that others share
        files = [file for file in _entries(path) if file.name != INIT or _defines_a_class(file)]
    if not files:
        raise DiscoveryError(
            f"{path}: holds no implementation; expected .py files whose names do not begin with _ or test_, "
            f"or packages whose {INIT} defines one"
        )
    package = _package_of(home(files[0]))
    foreign = [file for file in files if file.resolve() not in own_files]
    return [
        _extract_implementation(_import_guarded(partial(_load, file, package), file), file, option=str(path))
        for file in foreign
    ]


def _entries(folder: Path) -> list[Path]:
    """The public modules of a folder, and `__init__.py` of its public packages, by name."""
    files = [file for file in folder.glob("*.py") if not file.is_dir()]
    candidates = [*files, *(package.parent for package in folder.glob(f"*/{INIT}"))]
    public = sorted(path for path in candidates if not any(path.match(pattern) for pattern in _IGNORED))
    return [path if path.suffix == ".py" and path.is_file() else path / INIT for path in public]


def _name(file: Path) -> str:
    return file.parent.name if file.name == INIT else file.stem


def _defines_a_class(file: Path) -> bool:
    """Whether a class stands in the file's outermost block, without importing it. Who cannot read it will, on loading it."""
    try:
        return any(isinstance(node, ast.ClassDef) for node in ast.parse(file.read_bytes()).body)
    except OSError:
        return False
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def load_copy(implementation: ImplementationInfo) -> ImplementationInfo | None:
    """The implementation from modules loaded anew, which no call has changed; None where they cannot be loaded twice."""
    if not implementation.cli_option:
        return None
    try:
        return load_from(implementation.path, implementation, f"_copy{next(_copies)}")
    except DiscoveryError:
        return None


def load_from(file: Path, implementation: ImplementationInfo, suffix: str) -> ImplementationInfo:
    """An implementation as a file has it, in modules of its own. Raises DiscoveryError."""
    package = _package_of(home(file), suffix)
    module = _import_guarded(partial(_load, file, package), file)
    return _extract_implementation(module, file, implementation.cli_option)


def _package_of(folder: Path, suffix: str = "") -> str:
    """A package that stands for the folder, so that its files import each other by `from . import _shared`."""
    name = f"ecornn_implementations_{zlib.crc32(str(folder).encode()):08x}{suffix}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _load(file: Path, package: str) -> ModuleType:
    name = f"{package}.{_name(file)}"
    if name in sys.modules:
        return sys.modules[name]
    folders = [str(file.parent)] if file.name == INIT else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
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


def _import_guarded(load: Callable[[], ModuleType], file: Path) -> ModuleType:
    with _unchanged(file):
        return _loaded(load, file)


@contextmanager
def _unchanged(file: Path) -> Iterator[None]:
    """Raises DiscoveryError where what is imported within it changed what the harness works with, or what all share."""
    with GlobalStateGuard(lasting()) as settings, MonkeypatchGuard() as tools, IntrospectionGuard(file) as asking:
        yield
    hooks = [f"{HOOKING}: expected no audit hook, which nothing removes" for asked in asking.accesses if asked == HOOKING]
    if changes := settings.changes + tools.changes + hooks:
        raise DiscoveryError(f"{file}: importing it changed what all implementations share: {changes[0]}")


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


def _extract_implementation(module: ModuleType, file: Path, option: str = "", is_own: bool = False) -> ImplementationInfo:
    kinds = _classes(module)
    if len(kinds) != 1:
        names = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise DiscoveryError(
            f"{file}: expected exactly one subclass of pytest_ecornn.Implementation, found {names}; "
            "one file or package holds one implementation, and shared code goes into files whose names begin with _"
        )
    if missing := _missing_attributes(kinds[0]):
        raise DiscoveryError(f"{file}: class {kinds[0].__name__} lacks {', '.join(missing)}; see implementations/README.md")
    return ImplementationInfo(module.__name__.rpartition(".")[2], kinds[0], file, option, is_own)


def _classes(module: ModuleType) -> list[type[Implementation]]:
    """The implementations that a module defines itself."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Implementation) and value.__module__ == module.__name__
    ]


def _missing_attributes(kind: type[Implementation]) -> list[str]:
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if not isinstance(kind.supported, SupportedCases):
        missing.append("supported (a pytest_ecornn.SupportedCases)")
    elif kind.supported == EVERY_CASE and kind.unsupported is Implementation.unsupported:
        missing.append("supported, or unsupported")
    for name in Declared._fields[:-2]:  # all but activation_error and weight_rounding
        if getattr(kind, name, None) not in ("storage", "float32"):
            missing.append(f'{name} ("storage" or "float32")')
    if not 0 <= getattr(kind, "activation_error", 0.0) <= MAX_ACTIVATION_ERROR:
        missing.append(f"activation_error (from 0 to {MAX_ACTIVATION_ERROR:g})")
    if getattr(kind, "weight_rounding", "none") not in WEIGHT_ROUNDINGS:
        missing.append(f"weight_rounding ({', '.join(WEIGHT_ROUNDINGS)})")
    if not isinstance(getattr(kind, "deterministic", None), bool):
        missing.append("deterministic (True or False)")
    missing += [
        f"{name} (True or False)"
        for name in ("takes_resets", "times_in_build", "costly_shapes", "runs_unnamed")
        if not isinstance(getattr(kind, name), bool)
    ]
    return missing
