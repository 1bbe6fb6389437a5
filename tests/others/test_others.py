"""Layers of other libraries, by adapters in this folder, are right: what fails on one is a false alarm, or a fault of theirs.

What is wrong in the versions that were tried is refused by the adapters, and shown in docs/faults.md.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.foreign import Foreign

HERE = Path(__file__).parent
ADAPTERS = sorted(path.stem for path in HERE.glob("[!_]*.py") if path != Path(__file__))
LIBRARIES = {"mingru_pytorch": "minGRU_pytorch"}  # where the name does not begin with it
# calls_at_once fails, as docs/faults.md shows; other properties of a scan are in test_properties.py.
OPTIONS = {"torch_scan": ["-k", "not test_properties"]}


def check(foreign: Foreign, file: Path, *options: str) -> None:
    implementation = ("--ecornn-implementations", str(file), "--ecornn-only", file.stem)
    foreign.run("--ecornn-verify", "--ecornn-profile", "quick", *implementation, *options, check=0)


def test_the_plainest_adapter_has_ten_lines_and_passes(foreign: Foreign) -> None:
    """As docs/add-an-implementation.md shows it."""
    page = (HERE.parents[1] / "docs/add-an-implementation.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    assert len([line for line in code.splitlines() if line]) <= 10
    check(foreign, foreign.write("plain.py", code), "-k", "not test_fixed_case")


@pytest.mark.test_all
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_layer_of_another_library_passes(name: str, foreign: Foreign) -> None:
    library = LIBRARIES.get(name, name.partition("_")[0])
    if find_spec(library) is None:
        pytest.skip(f"needs {library}, of the extra [others]")
    check(foreign, HERE / f"{name}.py", *OPTIONS.get(name, []))
