"""A report in parts: measured within a time, gone on with, and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common import parted
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED, measure_each
from pytest_ecornn.suites.published.common.parted import ReportPart, ReportPlan
from tests.helpers.studies import Inner, Outer

DUE = (NOT_REACHED, "OutOfMemoryError: CUDA out of memory")  # reasons for which a later run measures again


def measure(deadline: float, earlier: Sequence[Outer] = ()) -> Iterator[Outer]:
    yield from earlier
    for label in "abc":
        if label not in [row.label for row in earlier]:
            yield Outer(label, (1.0, 1.0, 1.0))


def other(deadline: float) -> Iterator[Outer]:
    yield Outer("d")


def labels(rows: Sequence[Any]) -> str:
    return ", ".join(row.label for row in rows)


TIMES = ReportPart(measure, labels, 0.9, row=Outer, is_resumable=True)
OTHER_PART = ReportPart(other, labels, 0.1, row=Outer)
PLAN = ReportPlan("some", "Some", 1, {"times": TIMES, "other": OTHER_PART}, ("times", "other"), 10.0)


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted, "exit_code", lambda program, measure: measure() or 0)


def command(folder: Path, *arguments: str) -> Path:
    assert PLAN.main("", ["--output", str(folder), *arguments]) == 0
    return folder


def ran(folder: Path, *parts: str, resumed: Path | None = None, **changed: Any) -> Path:
    """A report of these parts, changed in its JSON file."""
    PLAN.run(folder, 10.0, parts, resumed)
    (folder / "some.json").write_text(json.dumps({**read(folder), **changed}))
    return folder


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "some.json").read_text())
    return found


def labels_of(folder: Path) -> dict[str, list[str]]:
    return {name: [row["label"] for row in rows] for name, rows in read(folder)["rows"].items()}


@pytest.mark.parametrize("file", [[], ["first/some.json"]])
def test_the_command_goes_on_after_an_earlier_run(file: list[str], tmp_path: Path) -> None:
    command(tmp_path / "first", "--parts", "other")
    last = tmp_path / ("second" if file else "first")
    command(last, "--parts", "times", "--resume", *(str(tmp_path / one) for one in file))
    assert labels_of(last) == {"other": ["d"], "times": ["a", "b", "c"]}
    assert len(read(last)["runs"]) == 2


def test_a_report_of_an_older_version_is_gone_on_with(tmp_path: Path) -> None:
    file = ran(tmp_path / "one", "times", seconds=90.0) / "some.json"
    rows = {"times": read(file.parent)["rows"]["times"][2:]}
    file.write_text(json.dumps({name: value for name, value in read(file.parent).items() if name != "runs"} | {"rows": rows}))
    ran(tmp_path / "two", "times", resumed=file)
    assert labels_of(tmp_path / "two") == {"times": ["c", "a", "b"]}
    assert "made in 90 s, in 2 runs." in (tmp_path / "two/some.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "speed"], "invalid choice: 'speed'"),
        (["--resume"], "some: error: FOLDER/some.json: cannot be read (No such file"),
    ],
)
def test_arguments_that_cannot_be_followed_are_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(tmp_path, *arguments)
    assert said.replace("FOLDER", str(tmp_path)) in capsys.readouterr().err


def test_what_a_part_leaves_of_its_time_is_the_next_ones() -> None:
    running = replace(PLAN, parts={"other": OTHER_PART, "times": TIMES})
    assert running.deadlines(100.0, 60.0, ["times", "other"]) == {"other": pytest.approx(106.0), "times": pytest.approx(160.0)}
    assert list(PLAN.deadlines(0.0, 1.0, ["other", "times"])) == ["times", "other"]


def test_a_run_that_is_killed_keeps_the_rows_of_parts_after_the_one_that_it_ran(tmp_path: Path) -> None:
    def killed(deadline: float) -> Iterator[Outer]:
        yield Outer("e")
        raise KeyboardInterrupt

    file = ran(tmp_path, "other", "times") / "some.json"
    assert PLAN.lacking(file) == []
    again = replace(PLAN, parts={"other": replace(OTHER_PART, measure=killed), "times": TIMES})
    with pytest.raises(KeyboardInterrupt):
        again.run(tmp_path, 10.0, ["other", "times"], file)
    assert labels_of(tmp_path) == {"times": ["a", "b", "c"], "other": ["e"]}
    assert PLAN.lacking(file) == ["other"]
    assert "The part on other ended early: the run was over." in (tmp_path / "some.md").read_text()
    command(tmp_path, "--resume", "--parts", "other")
    assert PLAN.lacking(file) == []
    assert "ended early" not in (tmp_path / "some.md").read_text()


def test_a_part_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    def failing(deadline: float) -> Iterator[Outer]:
        yield Outer("d")
        raise RuntimeError("no memory | left")

    parts = {"other": replace(OTHER_PART, measure=failing), "times": TIMES}
    replace(PLAN, parts=parts).run(tmp_path, 10.0, list(parts))
    said = "\n\na, b, c\n\nd\n\nThe part on other ended early: RuntimeError: no memory &#124; left.\n"
    assert said in (tmp_path / "some.md").read_text()
    assert read(tmp_path)["ended"] == {"other": "RuntimeError: no memory | left"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([], r"expected the JSON of a report of some \(TypeError"),
        ({"rows": None}, "expected other types of rows"),
        ({"rows": {"times": 3}}, r"expected rows of some \(TypeError"),
        ({"rows": {"times": [{"label": "a"}, 7]}}, r"expected rows of some \(TypeError"),
        ({"rows": {"others": []}}, "rows of others are only written, never read"),
        ({"schema_version": 7}, "expected schema_version 1, got 7"),
        ({"machine": {"gpu": 3}}, r"expected the JSON of a report of some \(ValueError: machine.gpu"),
        ({"machine": {}}, r"expected the JSON of a report of some \(KeyError"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(changed: Any, said: str, tmp_path: Path) -> None:
    one = ran(tmp_path / "one", "times") / "some.json"
    one.write_text(json.dumps({**read(one.parent), **changed} if changed else changed))
    with pytest.raises(ValueError, match=f"^{one}: {said}") as refused:
        PLAN.load(one)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("why", DUE)
@pytest.mark.parametrize("again", ["times", "other"])
def test_what_was_not_measured_and_is_not_asked_for_again_stays(again: str, why: str, tmp_path: Path) -> None:
    late = {name: asdict(Outer(name, inner={why: Inner(Ratio(1.0, 1.0, 1.0), [])})) for name in "acd"}
    first = ran(tmp_path / "first", "times", "other", rows={"times": [late["a"], late["c"]], "other": [late["d"]]})
    ran(tmp_path / "more", again, resumed=first / "some.json")
    rows = read(tmp_path / "more")["rows"]
    is_late = {row["label"]: why in json.dumps(row) for part in rows.values() for row in part}
    assert (
        is_late
        == {"times": {"a": False, "b": False, "c": False, "d": True}, "other": {"a": True, "c": True, "d": False}}[again]
    )
    assert sum(map(len, rows.values())) == len(is_late)


def lacking(label: str, time_us: float, *reasons: str) -> Outer:
    """A row with a time, and reasons why others are missing."""
    ratio = Ratio(1.0, 1.0, 1.0)
    return Outer(label, (time_us,) * 3, {f"{number}: {why}": Inner(ratio, []) for number, why in enumerate(reasons)})


@pytest.mark.parametrize(
    ("earlier", "later", "kept"),
    [
        (lacking("a", 5.0, DUE[1]), lacking("a", 0.0, DUE[0], DUE[0]), 5.0),  # a later run that was cut short
        (lacking("a", 5.0, DUE[1]), lacking("a", 4.0, DUE[1]), 4.0),  # what never fits does not keep old figures
        (lacking("a", 0.0, DUE[1], DUE[1]), lacking("a", 4.0, DUE[1]), 4.0),
        (lacking("a", 5.0, DUE[1]), lacking("a", 4.0), 4.0),
    ],
)
def test_the_row_that_lacks_less_stays(earlier: Outer, later: Outer, kept: float, tmp_path: Path) -> None:
    def measure_a(deadline: float, earlier: Sequence[Outer] = ()) -> Iterator[Outer]:
        yield from earlier
        yield later

    part = ReportPart(measure_a, labels, 1.0, row=Outer, is_resumable=True)
    plan = replace(PLAN, parts={"times": part}, order=("times",))
    plan.run(tmp_path / "first", 10.0, ["times"])
    written = read(tmp_path / "first")
    (tmp_path / "first/some.json").write_text(json.dumps({**written, "rows": {"times": [asdict(earlier)]}}))
    plan.run(tmp_path / "second", 10.0, ["times"], tmp_path / "first/some.json")
    (row,) = read(tmp_path / "second")["rows"]["times"]
    assert row["time_us"][0] == kept


def test_rows_of_an_earlier_run_are_not_written_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ran(tmp_path / "first", "times")
    (file := first / "some.json").write_text(json.dumps({**read(first), "rows": {"times": read(first)["rows"]["times"][:2]}}))
    written: list[int] = []
    write = parted.Report.write
    monkeypatch.setattr(parted.Report, "write", lambda one, into: written.append(len(one.rows["times"])) or write(one, into))
    PLAN.run(tmp_path / "second", 10.0, ["times"], file)
    assert labels_of(tmp_path / "second") == {"times": ["a", "b", "c"]}
    assert written == [3, 3]  # after "c", and at the end


def test_each_item_has_a_row_whatever_happens_to_it() -> None:
    makers: Any = (lambda item: f"{6 // item}", lambda item, why: f"{item}: {why}")
    zero = "0: ZeroDivisionError: integer division or modulo by zero"
    assert list(measure_each([3, 0, 2], float("inf"), *makers)) == ["2", zero, "3"]
    assert list(measure_each([3], 0.0, *makers)) == [f"3: {NOT_REACHED}"]
