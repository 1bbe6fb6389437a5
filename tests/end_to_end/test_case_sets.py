"""A case set of one's own, as docs/cli.md shows it: a file or a hook, and its published times on every page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.helpers.foreign import QUICK, QUIET, Foreign

ONE = ("--ecornn-only", "sequential", "-k", "test_benchmark", *QUICK)
# The file and the command of docs/cli.md, word for word.
PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text().partition("## Case sets")[2]
_, MINE, _, COMMAND, *_ = (text.removeprefix("\n") for text in PAGE.split("```"))
HOOK = """\
from pathlib import Path

def pytest_ecornn_case_sets(config):
    return [Path(__file__).parent / "sets" / "my_paper.csv"]
"""


def test_a_file_of_ones_own_is_a_set_whose_labels_and_published_times_every_report_has(foreign: Foreign) -> None:
    foreign.write("my_cases.csv", MINE)
    foreign.write("quiet.py", QUIET)
    done = foreign.run(*COMMAND.split()[1:], *ONE, "-p", "quiet", check=0)
    folder = foreign.path / "reports/local"
    stored = json.loads((folder / "report.json").read_text())["rows"]
    rows = {row["case"]: row for row in stored if row["kind"] == "benchmark"}
    row = rows["lstm-T25-B16-H64-float32"]
    assert (row["label"], row["source"]) == ("translation", "A. Author, 2024")
    assert row["published"] == [{"time_us": 500.0, "system": "V100"}, {"time_us": 250.0, "system": "Titan Xp"}]
    assert (rows["gru-T8-B4-H32-float32"]["label"], rows["gru-T8-B4-H32-float32"]["published"]) == ("speech", [])
    lines = csv.DictReader((folder / "report.csv").read_text().splitlines())
    (line,) = (one for one in lines if (one["kind"], one["label"]) == ("benchmark", "translation"))
    assert (line["published_us"], line["published_on"]) == ("250.0", "Titan Xp")
    assert float(line["published_ratio"]) == row["timing"]["time_us"] / 250
    for text in ((folder / "report.md").read_text(), (folder / "report.html").read_text()):
        assert "translation" in text
        assert "500 us (V100), 250 us (Titan Xp)" in text
        assert "Ratio to published" in text
    assert "translation" in done.stdout
    assert "x published" in done.stdout
    assert "A. Author, 2024" in (folder / "report.html").read_text()


def test_a_set_is_registered_by_a_hook(foreign: Foreign) -> None:
    foreign.write("sets/my_paper.csv", MINE)
    foreign.write("conftest.py", HOOK)
    foreign.run("--ecornn-verify", "--ecornn-cases", "my_paper", *ONE[:2], "-k", "test_fixed_case", *QUICK, check=0)
    assert {row["label"] for row in foreign.rows_by_key().values() if row["kind"] == "fixed"} == {"translation", "speech"}


def test_an_unknown_set_and_a_wrong_file_are_usage_errors(foreign: Foreign) -> None:
    foreign.write("bad.csv", "case\nlstm-T3\n")
    for name, error in {
        "deepbank": "unknown case set 'deepbank' (a file's name ends in .csv): expected one of smoke, edge, seed, full, ",
        "bad.csv": f"case set {foreign.path}/bad.csv, line 2: 'lstm-T3' lacks B, H: expected CELL-T#-B#-H#[-option...]",
    }.items():
        done = foreign.run_here("--ecornn-bench", "--ecornn-cases", name, check=4)
        assert f"ERROR: {error}" in done.stderr


def test_a_sweep_and_a_file_of_cases_are_run_case_by_case(foreign: Foreign) -> None:
    foreign.write("mine.txt", "# mine\ngru-T1-B{1,3}-H4\n")
    sweep = "lstm-T{1..2}-B1-H4"
    cases = ("--ecornn-case", sweep, "--ecornn-case", "mine.txt")
    foreign.run("--ecornn-verify", *cases, *ONE[:2], "-k", "test_fixed_case", *QUICK, check=0)
    names = ["lstm-T1-B1-H4-float32", "lstm-T2-B1-H4-float32", "gru-T1-B1-H4-float32", "gru-T1-B3-H4-float32"]
    assert [case for kind, _, case in foreign.rows_by_key() if kind == "fixed"] == names
    assert foreign.report()["run"]["settings"]["cases"] == f"{sweep}, mine.txt"
    for wrong, error in {
        "lstm-T1-B{1;3}-H4": "'lstm-T1-B{1;3}-H4': expected {a,b,c}, {a..b} (doubled from a to b) or {a..b..s}",
        "no.txt": f"{foreign.path}/no.txt: cannot be read (No such file or directory)",
    }.items():
        done = foreign.run_here("--ecornn-verify", "--ecornn-case", wrong, check=4)
        assert f"ERROR: {error}" in done.stderr
