"""What the documents quote is what the program says, what they show runs, and the README stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pytest_ecornn import contract
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.run.options import Options
from pytest_ecornn.suites.published import staleness
from pytest_ecornn.verification.properties import properties
from tests.helpers.foreign import QUICK, QUIET, Foreign
from tests.tools import readme

ROOT = Path(__file__).parents[2]
GUIDES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "implementations/README.md", *GUIDES]
_AGES = re.compile(r"^Older than the kernels of (\w+)\..*?\n\n", re.M | re.S)
RECIPE_CASE = "mingru-T3-B2-H5-float32-projected"


def text(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    """Code of the fenced blocks in this language, "" for those without one."""
    return [code for name, code in re.findall(r"^```(\w*)\n(.*?)^```$", text(page), re.M | re.S) if name == language]


def sentences(page: str) -> list[str]:
    """Prose without code, tables, headings, pictures and the targets of links."""
    plain = re.sub(r"```.*?```|<!--.*?-->", "", text(page), flags=re.S)
    lines = [line for line in plain.splitlines() if not line.lstrip().startswith(("|", "#", "!"))]
    joined = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines))
    return [part for part in re.split(r"(?<=[.!?:])\s+|\n\n|^\s*[-*] ", joined, flags=re.M) if len(part.split()) > 2]


def anchors(page: Path) -> set[str]:
    """Those that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    """A directory with the recipe as my_scan.py and as kernels/my_scan.py."""
    (recipe,) = blocks("implementations/README.md", "python")
    for folder in (tmp_path, tmp_path / "kernels"):
        folder.mkdir(exist_ok=True)
        (folder / "my_scan.py").write_text(recipe)
    return Foreign(tmp_path)


@pytest.mark.parametrize("page", readme.QUOTES)
def test_what_a_page_quotes_is_its_source(page: str) -> None:
    quoted, written = (_AGES.sub("", one) for one in (readme.quoted(page), text(page)))
    assert quoted == written, "run make docs"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_figures_older_than_their_kernels_say_what_changed_until_a_commit(page: str) -> None:
    """Kernels that change later need no new page."""
    if not any(map(staleness.of_report, readme.PATHS.values())):
        pytest.skip("no history has the reports' commits")
    said = _AGES.search(text(page))
    assert bool(said) == bool(readme.ages()), "run make docs"
    assert not said or "\n".join(readme.ages(said[1])).strip() == said[0].strip(), "run make docs"


def test_the_readme_is_read_in_a_minute() -> None:
    lengths = [len(sentence.split()) for sentence in sentences("README.md")]
    assert len(text("README.md").splitlines()) <= 120
    assert max(lengths) <= 30
    assert sum(lengths) / len(lengths) <= 12


@pytest.mark.parametrize("page", GUIDES)
def test_guides_have_short_sentences(page: str) -> None:
    assert [sentence for sentence in sentences(page) if len(sentence.split()) > 30] == []


def test_the_readme_lists_every_implementation() -> None:
    names = {re.sub("(_bct)?(_compiled)?$", "", name) for name in discover([])}
    section = text("README.md").partition("## Implementations")[2].partition("\n## ")[0]
    listed = {name for cell in re.findall(r"^\| (\w[^|]*) \|", section, re.M) for name in cell.split(", ") if "." not in name}
    assert listed - {"name"} == names


def test_options_case_names_and_properties_in_the_documents_exist_and_are_complete() -> None:
    known = {option.flag for option in Options.declared().values()}
    assert {option for page in PAGES for option in re.findall(r"--ecornn-[\w-]*\w", text(page))} <= known
    tokens = {*contract._FLAGS, *(value for values in contract._CHOICES.values() for value in values)}
    assert tokens <= set(re.findall(r"`(\w+)`", text("docs/cli.md")))
    listed = re.findall(r"^\| `(\w+)` \|", text("docs/how-it-verifies.md"), re.M)
    assert listed == [one.name for one in properties.PROPERTIES]


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_commands_can_be_pasted(page: str) -> None:
    """No word of capitals stands for what a reader has to know, but for a variable that the block sets or exports."""
    code = "".join(blocks(page, ""))
    assigned = set(re.findall(r"\b([A-Z_]+)=", code))
    assert set(re.findall(r"(?<![\w$-])[A-Z]{4,}\b", code)) <= assigned | {"LSTM"}


@pytest.mark.parametrize("page", PAGES)
def test_what_needs_an_extra_says_so_in_the_same_section(page: str) -> None:
    needing = [part for part in re.split(r"^## ", text(page), flags=re.M) if "--ecornn-isolate" in part]
    assert [part for part in needing if "[test]" not in part] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    place = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", place.read_text()):
        file = place.parent / target if target else place
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_modules_are_used_as_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope = {"torch": torch, "model": torch.nn.LSTM(2, 2)}
    for code in blocks(page, "python"):
        exec(code.replace('"cuda"', '"cpu"'), scope)
    assert isinstance(scope["layer"], torch.nn.Module)


def test_the_recipe_is_a_working_implementation(foreign: Foreign) -> None:
    from pytest_ecornn.verification.verification import Candidate

    case = contract.Case.parse("mingru-T7-B3-H5-float32-batchfirst-state-projected-training")
    candidate = Candidate.build("my_scan", discover([foreign.path / "my_scan.py"])["my_scan"].cls, case)
    assert [one.message for one in candidate.verify() if one.status != "passed"] == []


def commands(page: str) -> list[list[str]]:
    """The arguments of each pytest command, a line's variable expanded and its comment left out."""
    shown = "".join(blocks(page, ""))
    variables = dict(re.findall(r'^(\w+)="(.*)"$', shown, re.M))
    lines = [re.sub(r"^\$(\w+)", lambda match: variables[match[1]], line) for line in shown.splitlines()]
    return [line.partition("#")[0].split()[1:] for line in lines if line.startswith("pytest ")]


def test_the_commands_of_readme_and_gate_run_one_after_the_other(foreign: Foreign) -> None:
    verify, bench, store, compare = commands("README.md")
    same_store, compare_with_limits = commands("docs/gate.md")
    assert store[: len(bench)] == bench  # bench alone needs no run of its own
    assert same_store == store
    foreign.write("conftest.py", QUIET)
    for command in (verify, store, compare, compare_with_limits):
        done = foreign.run(*command, "--ecornn-case", RECIPE_CASE, *QUICK, check=0)
    assert "compared with report.json" in done.stdout


def test_the_workflow_of_the_gate_passes_a_right_kernel(foreign: Foreign) -> None:
    workflow, matrix, *_ = blocks("docs/gate.md", "yaml")
    assert "pytest --ecornn-verify --ecornn-implementations kernels/my_scan.py --ecornn-shard ${{ matrix.shard }}/4" in matrix
    (command,) = re.findall(r"run: >\n\s+pytest (.*)\Z", workflow, re.S)
    foreign.run(*command.split(), *QUICK, check=0)
    assert (foreign.path / "verify.xml").exists()
