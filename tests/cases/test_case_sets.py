"""Case sets: those that come with the package, files of one's own, and what is said of a file that is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ecornn.cases.case_sets import Origin, case_set
from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import PublishedTime
from pytest_ecornn.run.options import Options

HEAD = "case,label,source,published_us,published_on\n"
CASE = Case(cell="lstm", steps=25, batch=16, hidden_size=512)
# Cases, and times published of them.
SHIPPED = {
    "batched": (124, 0), "deepbench": (531, 638), "deepbench_pruned": (116, 0), "ecornn": (32, 0), "persistent": (148, 0),
    "scan": (20, 26), "sparse": (360, 0),
}  # fmt: skip


def written(folder: Path, text: str, name: str = "mine.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("name", SHIPPED)
def test_a_set_of_the_package_has_its_cases_and_published_times(name: str) -> None:
    origins = case_set(name)
    assert (len(origins), sum(len(origin.published) for origin in origins.values())) == SHIPPED[name]
    assert {case.device for case in origins} == {"cpu"}, "--ecornn-device gives the device"


def test_every_set_of_the_package_is_named_by_the_option() -> None:
    with pytest.raises(ValueError, match="expected one of") as error:
        case_set("none")
    names = str(error.value).partition("expected one of ")[2].split(", ")
    assert names == ["smoke", "edge", "seed", "full", *SHIPPED]
    text = Options.declared()["case_sets"].settings["help"]
    assert [name for name in names if name not in text] == []


def test_published_times_of_deepbench_are_of_the_pass_and_precision() -> None:
    case = replace(CASE, input_size=8)
    step = replace(case, dtype="float16", mode="training")
    variants = {"float32": case, "tf32": replace(case, precision="tf32"), "float16 step": step}
    times = {name: case_set("deepbench")[one].published for name, one in variants.items()}
    assert [(round(one.time_us), one.system) for one in times["float32"]] == [(1095, "V100, fp32"), (1270, "Titan Xp, fp32")]
    assert times["tf32"] == times["float32"]
    assert [round(one.time_us) for one in times["float16 step"]] == [441 + 891 + 79]


def test_lines_of_one_case_are_one_case_with_all_they_say(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEAD}{CASE},a,x,12.5,old\nlstm-T25-B16-H512,b,x,8,\ngru-T1-B1-H1,,,,\n")
    first, second = case_set(str(path)).items()
    assert first == (CASE, Origin("a; b", "x", (PublishedTime(12.5, "old"), PublishedTime(8.0))))
    assert second[1] == Origin()


def test_a_file_that_was_registered_is_a_set_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, f"label,case\nmine,{CASE}\n")
    assert case_set("mine", [path]) == {CASE: Origin("mine")}
    with pytest.raises(ValueError, match=r"expected one of .*, sparse, mine$"):
        case_set("other", [path])
    for name in ("smoke.csv", "scan.csv"):
        with pytest.raises(ValueError, match=f"{name}: there is a case set named .* already; rename the file"):
            case_set("seed", [written(tmp_path, HEAD, name)])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: expected case and any of label, source, published_us, published_on, got ''"),
        ("case,time\n", "line 1: expected case and any of label, source, published_us, published_on, got 'case, time'"),
        ("label\n", "line 1: expected case and any of .*, got 'label'"),
        (HEAD, "expected a line for each case, got none"),
        (f"{HEAD}{CASE},a\nlstm-T1-B1,,,,\n", "line 3: 'lstm-T1-B1' lacks H: expected CELL-T#-B#-H#"),
        (f"{HEAD}lstn-T1-B1-H1,,,,\n", "line 2: unknown cell 'lstn'"),
        (f"{HEAD}{CASE},,,fast,\n", "line 2: published_us: expected microseconds over 0, got 'fast'"),
        (f"{HEAD}{CASE},,,-1,\n", "line 2: published_us: expected microseconds over 0, got '-1'"),
        (f"{HEAD}{CASE},,,nan,\n", "line 2: published_us: expected microseconds over 0, got 'nan'"),
        (f"{HEAD}{CASE},,,,V100\n", "line 2: published_us: expected microseconds over 0, got ''"),
        (f"{HEAD}{CASE},A,Author,1,x,2024\n", "line 2: expected no more values than columns, got also '2024'"),
    ],
)
def test_a_wrong_file_is_answered_with_its_line_and_what_was_expected(text: str, problem: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=f"^case set {re.escape(str(path))}[,:] {problem}"):
        case_set(str(path))


def test_a_file_that_cannot_be_read_is_answered_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.csv: cannot be read \(No such file or directory\)"):
        case_set(str(tmp_path / "absent.csv"))
    (tmp_path / "latin.csv").write_bytes(f"{HEAD}{CASE},\xe9,,,\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"^case set .*latin\.csv, .*utf-8"):
        case_set(str(tmp_path / "latin.csv"))
