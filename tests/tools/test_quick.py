"""The tests that `make quick` runs for a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import quick
from tests.tools.quick import ROOT, TABLES, Tree, select

FILES = {
    "pytest_ecornn/results/rows.py": "",
    "pytest_ecornn/results/regression/gate.py": "",
    "pytest_ecornn/run/discovery.py": "from pytest_ecornn.results import rows",
    "implementations/grid_gpu/host.py": "",
    "implementations/grid_gpu/kernels/forward.cu": '#include "ecornn/rnn/cell.cuh"\n#include "stage.cuh"',
    "implementations/grid_gpu/kernels/stage.cuh": '#include "ecornn/ptx/mma.cuh"',
    "implementations/_cuda/include/ecornn/ptx/mma.cuh": "",
    "implementations/_cuda/include/ecornn/rnn/cell.cuh": "",
    "implementations/scan_cpu.py": "",
    "tests/frozen/test_frozen.py": "",
    "tests/helpers/samples.py": "",
    "tests/helpers/foreign.py": "from tests.helpers import samples",
    "tests/helpers/test_foreign.py": "from tests.helpers.foreign import Foreign",
    "tests/results/test_rows.py": "from pytest_ecornn.results.rows import Row",
    "tests/results/test_statistics.py": "",
    "tests/results/regression/test_gate.py": "",
    "tests/run/conftest.py": "",
    "tests/run/test_discovery.py": "import pytest_ecornn.run.discovery\nfrom tests.helpers.foreign import Foreign",
    "tests/run/items/test_items.py": "def test() -> None:\n    import pytest_ecornn.results.rows",
    "tests/implementations/_cuda/test_kernels.py": "",
    "tests/implementations/grid_gpu/test_host.py": "",
    "tests/implementations/persistent_gpu/test_forms.py": "",
    "tests/implementations/test_scan_cpu.py": "",
    "tests/project/test_readme.py": 'TEXT = "docs/cli.md"',
    "tests/reporting/test_schema.py": 'SCHEMA = "report.schema.json"',
}
KERNELS, FAMILY = "tests/implementations/_cuda", "tests/implementations/grid_gpu"


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("pytest_ecornn/results/rows.py", ["tests/results/test_rows.py", "tests/run/items/test_items.py"]),
        ("pytest_ecornn/results/intervals.py", ["tests/results"]),  # whose test it is, its name does not say
        ("pytest_ecornn/results/regression/gate.py", ["tests/results/regression/test_gate.py"]),
        ("pytest_ecornn/plugin.py", ["tests/end_to_end/test_runs.py"]),
        ("implementations/scan_cpu.py", ["tests/implementations/test_scan_cpu.py"]),
        ("implementations/grid_gpu/host.py", ["tests/implementations/grid_gpu/test_host.py"]),
        ("implementations/grid_gpu/kernels/forward.cu", [KERNELS, FAMILY]),
        ("implementations/_cuda/include/ecornn/ptx/mma.cuh", [KERNELS, FAMILY]),  # through another header
        ("implementations/persistent_gpu/kernels/once.cu", [KERNELS, "tests/implementations/persistent_gpu", *TABLES.values()]),
        ("tests/results/test_statistics.py", ["tests/results/test_statistics.py"]),
        ("tests/helpers/samples.py", ["tests/helpers", "tests/run/test_discovery.py"]),
        ("tests/run/conftest.py", ["tests/run/test_discovery.py"]),
        ("tests/helpers/data/sample.json", ["tests/helpers", "tests/run/test_discovery.py"]),
        ("docs/cli.md", ["tests/project"]),
        ("docs/report.schema.json", ["tests/project", "tests/reporting/test_schema.py"]),
        ("pyproject.toml", ["tests/frozen", "tests/project"]),
    ],
)
def test_a_change_touches(changed: str, tests: list[str]) -> None:
    frozen = [] if "tests/frozen" in tests else ["tests/frozen/test_frozen.py"]  # which lies there
    assert select(Tree(FILES), [changed]) == sorted([*tests, *frozen])


def test_every_file_of_this_clone_has_tests() -> None:
    tree, paths = quick.clone(), quick.git("ls-files")
    if not paths:
        pytest.skip("no clone")
    for path in paths:
        for test in tree.tests_of(path):
            assert (ROOT / test).exists(), f"{path}: {test}"
    assert set(TABLES.values()) < set(paths)
    assert [path for path in paths if path.startswith(quick.PRODUCT) and not tree.tests_of(path)] == []


def test_a_commit_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"make quick: git diff .*no-such-commit"):
        quick.main(["--base", "no-such-commit", "--list"])


def test_the_list_of_a_clone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.main(["--list"]) == 0
    assert capsys.readouterr().out.startswith("make quick: ")
