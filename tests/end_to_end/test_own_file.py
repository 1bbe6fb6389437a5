"""An implementation in a file of one's own: commands that the documents show bring it in, and an error says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.run import discovery
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "implementations/README.md"]


def commands(page: Path) -> list[str]:
    """Its pytest commands, from code blocks (joined over line ends) and from text."""
    text = page.read_text().replace("\\\n", " ")
    return [line for line in text.replace("`", "\n").splitlines() if line.startswith("pytest ")]


def test_an_unknown_name_of_a_file_nearby_is_answered_with_the_option_that_brings_it_in(foreign: Foreign) -> None:
    foreign.write("my kernels/my_scan.py", samples.RIGHT)
    options = ["--ecornn-verify", "--ecornn-case", samples.CASE, "--ecornn-only", "my_scan"]
    done = foreign.run_here(*options, check=4)
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("ERROR"))
    assert error.endswith("for this file of yours add --ecornn-implementations 'my kernels/my_scan.py'")
    foreign.run(*options, "--ecornn-implementations", "my kernels/my_scan.py", *QUICK, check=0)


@pytest.mark.parametrize("name", ["absent", "*", "../outside", "folder", "sub/here", ""])
def test_other_unknown_names_are_answered_with_the_option(name: str, tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    directory = tmp_path / "inner"
    (directory / "folder.py").mkdir(parents=True)
    (directory / "sub").mkdir()
    (directory / "sub/here.py").touch()
    assert discovery.hint(name, directory) == "a file of your own needs --ecornn-implementations PATH beside it"


def test_an_own_file_that_is_named_as_well_counts_once() -> None:
    own, name = discovery.discover([]), "implementations/sequential.py"
    assert discovery.discover([ROOT / name, ROOT / "docs/.." / name]) == own


@pytest.mark.parametrize("page", PAGES)
def test_a_command_that_names_an_implementation_of_the_reader_says_where_its_file_is(page: str) -> None:
    named = [command for command in commands(ROOT / page) if any(word in command for word in ("my_scan", "NAME"))]
    assert [command for command in named if "--ecornn-implementations" not in command] == []


# Right, with its refusals as a list, by a layer that has the batch first alone.
LISTED = (
    samples.RIGHT.replace("import Cost, Implementation", "import Implementation, SupportedCases")
    .replace(
        samples.RIGHT[samples.RIGHT.index("    def unsupported") : samples.RIGHT.index("    def build")],
        "    supported = SupportedCases(\n"
        '        cells=("lstm",), dtypes=("float32",), devices=("cpu",), max_layers=1, bidirectional=False, nobias=False,\n'
        '        batchfirst="only", ragged=False, projected=False, sparse=False,\n'
        "    )\n\n",
    )
    .replace("(x @ w_ih.T + b_ih)", "(x.transpose(0, 1) @ w_ih.T + b_ih)")
    .replace("torch.stack(outputs)", "torch.stack(outputs, 1)")
    .partition("    def cost(")[0]
)


def test_an_implementation_may_list_what_it_runs_in_place_of_code(foreign: Foreign) -> None:
    foreign.write("mine.py", LISTED)
    options = ["--ecornn-implementations", "mine.py", "--ecornn-only", "mine", "--ecornn-profile", "quick"]
    foreign.run("--ecornn-verify", *options, "-k", "lstm-float32 and not minlstm", *QUICK, check=0)
    rows = [row for row in foreign.rows_by_key().values() if row["status"] == "passed"]
    assert sorted(row["kind"] for row in rows) == ["drawn", "properties"]
    assert rows[0]["examples"] >= 8
