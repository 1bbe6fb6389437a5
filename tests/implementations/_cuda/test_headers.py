"""Every header of a kernel parses alone: what it needs it includes, or takes as a template parameter or a host's macro.

Each is compiled with the first form of one kernel. Templates are not instantiated; kernels' own tests do that.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ecornn.implementations._cuda import compile as compiler
from tests.helpers.kernel_forms import FOLDER, VARIANTS, ptx_of, source_of, variants
from tests.helpers.requirements import needs_nvrtc

_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
SOURCES = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".cu", ".cuh"))
# Of one file each: the name of an instruction, an attribute, CUDA's own name, and the default of a host's macro.
MACROS = {"MMA": "mma.cuh", "CLUSTER_DIMS": "cluster_reduce.cuh", "CUDART_NAN_F": "rnn_cell.cuh", "PARAMS_BYTES": "dtypes.cuh"}
WGMMA = ("", "_TYPES", "_SCALES", "_ACC4", "_ACC16", "_NAMES_0", "_NAMES_1")  # an instruction of many operands
MACROS |= {f"WGMMA{part}": "wgmma.cuh" for part in WGMMA}


def headers_of(source: Path, folders: tuple[Path, ...]) -> dict[str, Path]:
    """All headers that a file includes, and those that they include, by the path in the directive."""
    found: dict[str, Path] = {}
    waiting = [source]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop().read_text()):
            if name not in found:
                found[name] = next(folder / name for folder in folders if (folder / name).exists())
                waiting.append(found[name])
    return found


def cases() -> list[tuple[str, str]]:
    """Each header, and a kernel that includes it."""
    found: dict[Path, tuple[str, str]] = {}
    for kernel in VARIANTS:
        source = source_of(kernel)
        for name, path in headers_of(source, compiler.include_folders(source)).items():
            found.setdefault(path, (name, kernel))
    return sorted(found.values())


@needs_nvrtc
@pytest.mark.parametrize(("name", "kernel"), cases())
def test_a_header_compiles_alone(name: str, kernel: str) -> None:
    ptx_of(source_of(kernel), variants(kernel)[0], f'#include "{name}"\n')


@needs_nvrtc
def test_a_header_that_needs_more_is_seen(tmp_path: Path) -> None:
    (tmp_path / "needs_more.cuh").write_text("constexpr int BYTES = 4 * SLOTS;\n")
    with pytest.raises(compiler.CompilationError, match="SLOTS"):
        ptx_of(tmp_path / "kernel.cu", (), '#include "needs_more.cuh"\n')


def test_every_header_is_included() -> None:
    assert {name.rsplit("/", 1)[-1] for name, _ in cases()} == {path.name for path in SOURCES if path.suffix == ".cuh"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_macros_are_of_one_file(path: Path) -> None:
    assert dict.fromkeys(_DEFINE.findall(path.read_text()), path.name).items() <= MACROS.items()
