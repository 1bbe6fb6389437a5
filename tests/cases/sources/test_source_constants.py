"""Constants of an implementation's own sources: which files are read, what counts, in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.cases.sources.c_constants import c_constants
from pytest_ecornn.cases.sources.own_sources import own_files
from pytest_ecornn.cases.sources.source_constants import LARGEST, python_constants, ranked, source_constants
from pytest_ecornn.run.processes import gpu_workers

LIKELY = [
    ("CHUNK = 96", 96),
    ("CHUNK = 3 << 5", 96),
    ("WARP = 32\nCHUNK = WARP * 3", 96),
    ("class Fault:\n    lanes = 8\n    chunk = lanes * 12", 96),
    ("def run(x, block=96): ...", 96),
    ("def run(x, *, block=96): ...", 96),
    ("launch(x, BLOCK_T=96)", 96),
    ('CONFIG = {"stages": 2, "steps": 96}', 96),
    ("if T > 96: pass", 96),
    ("if steps >= int('96'): pass", 96),
    ("tail = x.shape[0] % 96", 96),
    ("blocks = -(-T // 96)", 96),
    ("h = h[:, :96]", 96),
    ("for t in range(0, T, 96): pass", 96),
    ("rank = i >> 6", 64),
    ("lane = i & 63", 64),
    ("wide = h.bit_length() > 9", 512),
    ("LIMIT = 1e2", 100),
    ("def chunk():\n    return 96", 96),
    ("TILES = (48, 96)", 96),
    ("SIZE = max(32, 96)", 96),
    ("FLAGS = ['-DTILE=96']", 96),
    ("SOURCE = '''\n#define TILE 96\n__global__ void f();\n'''", 96),
    ("PROGRAM = '''\ndef f(T):\n    return T % 96\n'''", 96),
]


@pytest.mark.parametrize(("source", "value"), LIKELY)
def test_what_looks_like_a_size_comes_first(source: str, value: int) -> None:
    assert (value, True) in list(python_constants(f"y = f(77)\n{source}"))
    order = ranked(python_constants(f"y = f(77)\n{source}"))
    assert order.index(value) < order.index(77)


@pytest.mark.parametrize(
    "source",
    [
        '"""Of 96 steps."""',
        "# 96",
        "x = 'in 96 steps'",
        "x = True",
        "x = 0.96",
        f"x = {LARGEST + 1}",
        "if",
    ],
)
def test_what_is_no_size_is_left_out(source: str) -> None:
    assert ranked(python_constants(source)) == []


C_SOURCE = r"""
#define TILE_K 40  // not 41
#define TILE_BYTES (TILE_K * sizeof(float))
constexpr int kWarp = 32, kRows = kWarp * 3;
enum { STAGES = 5, DEPTH = STAGES * 9 };
__shared__ float tile[72];
template <int N> struct S {};
using Wide = S<448>;
/* 777 */
for (int k = 0; k < n; k += 24) if (row >= 1000u || 56 < n) x[i >> 7] = y & 0x1F;
int grid = n / 36 + f(99);
"""


def test_constants_of_c() -> None:
    found = dict.fromkeys(value for value, is_likely in c_constants(C_SOURCE) if is_likely)
    assert {40, 32, 5, 45, 72, 448, 24, 1000, 56, 128, 36} <= found.keys()
    assert not {41, 777} & {value for value, _ in c_constants(C_SOURCE)}
    assert (99, False) in list(c_constants(C_SOURCE))


def test_counts_of_gates_come_last_and_each_constant_once() -> None:
    assert ranked([(4, True), (99, False), (96, False), (96, True), (7, True), (2, True), (5000, True)]) == [96, 7, 99, 4]


def test_files_that_an_implementation_names_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    sources = {
        "mine.py": "from . import _shared\nfrom ._more import f\nimport torch\nSOURCE = 'kernel.cu'",
        "_shared.py": "from pytest_ecornn.implementations._deep import g\nA = 11",
        "_more.py": "B = 12",
        "_deep.py": "C = 13",
        "_other.py": "D = 14",
        "other.cu": "#define E 15",
        "kernel.cu": '#include "cuda/tiles.cuh"\n#define F 16',
        "cuda/tiles.cuh": "#define G 17",
        "mine.cuh": "#define I 18",
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    assert {path.name for path, _ in own_files(tmp_path / "mine.py")} == {
        "mine.py", "_shared.py", "_more.py", "_deep.py", "kernel.cu", "tiles.cuh", "mine.cuh",
    }  # fmt: skip
    assert sorted(source_constants(tmp_path / "mine.py")) == [11, 12, 13, 16, 17, 18]


def test_a_package_s_files_are_its_own_and_what_it_imports_of_shared_ones(tmp_path: Path) -> None:
    sources = {
        "mine/__init__.py": "from . import plan\nfrom pytest_ecornn.implementations._common.cells import g\n"
        "from pytest_ecornn.implementations._cuda import launch\nfrom pytest_ecornn.implementations._cuda.launch import run",
        "mine/plan.py": "from pytest_ecornn.implementations.base.steps import h\nA = 11",
        "mine/kernels/kernel.cu": '#include "ecornn/rnn/tiles.cuh"\n#include "near.cuh"\n#define B 12',
        "mine/kernels/near.cuh": "#define C 13",
        "_cuda/include/ecornn/rnn/tiles.cuh": "#define D 14",
        "_common/cells.py": "E = 15",
        "_common/other.py": "F = 16",
        "_cuda/launch.py": "J = 20",
        "base/__init__.py": "G = 17",
        "base/steps.py": "H = 18",
        "base/rest.py": "I = 19",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {str(path.relative_to(tmp_path)) for path, _ in own_files(tmp_path / "mine/__init__.py")}
    assert found == sources.keys() - {"_common/other.py", "_cuda/launch.py", "base/__init__.py", "base/rest.py"}


def test_files_that_cannot_be_read_hold_no_constants(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"\xff\x00 = (")
    assert source_constants(tmp_path / "mine.py") == []
    assert source_constants(tmp_path / "missing.py") == []


def test_values_that_a_loaded_module_holds_count(tmp_path: Path) -> None:
    assert 12 in source_constants(tmp_path / "missing.py", gpu_workers.__name__)
