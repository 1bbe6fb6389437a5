"""What the README quotes is what the program says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ecornn.discovery import discover
from tests.readme import quoted

ROOT = Path(__file__).parents[1]


def test_the_readme_quotes_the_help_and_the_report() -> None:
    readme = (ROOT / "README.md").read_text()
    assert quoted(readme, (ROOT / "reports/cpu/report.md").read_text()) == readme


def test_the_recipe_is_a_working_implementation(tmp_path: Path) -> None:
    recipe = (ROOT / "implementations/README.md").read_text()
    code = re.search(r"```python\n(.*?)```", recipe, re.S)
    assert code is not None
    (tmp_path / "my_scan.py").write_text(code[1])
    from pytest_ecornn.contract import Case
    from pytest_ecornn.verification import Candidate

    case = Case.parse("mingru-T7-B3-H5-float32-batchfirst-state-projected-training")
    candidate = Candidate.build("my_scan", discover([tmp_path])["my_scan"].kind, case)
    assert [one.message for one in candidate.verify() if one.status != "passed"] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "implementations/README.md"])
def test_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
