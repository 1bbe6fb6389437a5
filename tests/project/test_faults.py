"""Faults of other libraries are as docs/faults.md shows them, where the very version is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.helpers.foreign import environment

PAGE = (Path(__file__).parents[2] / "docs/faults.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
PACKAGES = {"ONNX Runtime": "onnxruntime"}  # where the title has another name


@pytest.mark.parametrize("title", SECTIONS)
def test_a_fault_of_another_library_is_as_shown(title: str, tmp_path: Path) -> None:
    """Each comment at the script's end has what a line prints, then what is right."""
    library, _, shown = title.partition(":")[0].rpartition(" ")
    try:
        installed = version(PACKAGES.get(library, library)).partition("+")[0]
    except PackageNotFoundError:
        installed = "none"
    if installed != shown:
        pytest.skip(f"shows {library} {shown}, and {installed} is installed")
    (code,) = re.findall(r"^```python\n(.*?)^```$", SECTIONS[title], re.M | re.S)
    comments = re.findall(r"^# (.*); (.*)$", code, re.M)
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, "-W", "ignore", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [printed for printed, _ in comments], done.stderr[-2000:]
    assert any(printed != right for printed, right in comments)


def test_the_table_leads_to_each_fault() -> None:
    links = re.findall(r"^\| \[(.*?)\]\(#(.*?)\)", PAGE, re.M)
    titles = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in SECTIONS]
    assert [anchor for _, anchor in links] == titles
    assert [library for library, _ in links] == [title.partition(":")[0] for title in SECTIONS]
