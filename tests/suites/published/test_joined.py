"""A report measured by several processes, each its share, and their rows joined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results.shard import Shard
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common import parted
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import ReportPlan, Run, Section
from tests.helpers.studies import Inner, Outer

DUE = (NOT_REACHED, "OutOfMemoryError: CUDA out of memory")  # reasons for which a later run measures again
GROUPS = {"short": ["a", "b"], "long": ["c"]}
ONE, OTHER = Run(["short", "other"], 240.0, 1000.0, "x"), Run(["long"], 481.0, 1001.0, "y")


def measure(
    deadline: float, earlier: Sequence[Outer] = (), groups: Sequence[str] = (), shard: Shard | None = None
) -> Iterator[Outer]:
    yield from earlier
    for label in (label for group in groups for label in GROUPS[group] if not shard or shard.has(label)):
        if label not in [row.label for row in earlier]:
            yield Outer(label, (1.0, 1.0, 1.0))


def other(deadline: float) -> Iterator[Outer]:
    yield Outer("d")


def labels(rows: Sequence[Any]) -> str:
    return ", ".join(row.label for row in rows)


TIMES = Section(measure, labels, 0.9, row=Outer, is_resumable=True, groups=tuple(GROUPS), is_sharded=True)
OTHER_PART = Section(other, labels, 0.1, row=Outer)
PLAN = ReportPlan("some", "Some", 1, {"times": TIMES, "other": OTHER_PART}, ("times", "other"), 10.0)


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted, "exit_code", lambda program, measure: measure() or 0)


def command(folder: Path, *arguments: str) -> Path:
    assert PLAN.main("", ["--output", str(folder), *arguments]) == 0
    return folder


def joined(into: Path, *folders: Path) -> dict[str, list[str]]:
    """Labels of what was joined."""
    PLAN.joined([folder / "some.json" for folder in folders]).write(into)
    return labels_of(into)


def ran(folder: Path, *parts: str, run: Run | None = None, resumed: Path | None = None, **changed: Any) -> Path:
    """A report of these parts, changed in its JSON file: as if `run` had made it."""
    PLAN.run(folder, 10.0, parts, resumed)
    written = read(folder)
    (folder / "some.json").write_text(json.dumps({**written, "runs": [asdict(run)] if run else written["runs"], **changed}))
    return folder


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "some.json").read_text())
    return found


def labels_of(folder: Path) -> dict[str, list[str]]:
    return {name: [row["label"] for row in rows] for name, rows in read(folder)["rows"].items()}


def test_a_part_is_measured_by_groups(tmp_path: Path) -> None:
    assert labels_of(ran(tmp_path / "one", "long")) == {"times": ["c"]}
    assert labels_of(ran(tmp_path / "whole", "times", "long")) == {"times": ["a", "b", "c"]}


def test_the_command_takes_groups_and_joins(tmp_path: Path) -> None:
    folders = [command(tmp_path / parts[0], "--parts", *parts) for parts in (["short", "other"], ["long"])]
    assert joined(tmp_path / "all", *folders) == {"times": ["a", "b", "c"], "other": ["d"]}


@pytest.mark.parametrize("file", [[], ["first/some.json"]])
def test_the_command_goes_on_after_an_earlier_run(file: list[str], tmp_path: Path) -> None:
    command(tmp_path / "first", "--parts", "short")
    last = tmp_path / ("second" if file else "first")
    command(last, "--parts", "long", "--resume", *(str(tmp_path / one) for one in file))
    assert labels_of(last) == {"times": ["a", "b", "c"]}


def test_a_report_of_an_older_version_is_gone_on_with(tmp_path: Path) -> None:
    file = ran(tmp_path / "one", "long", seconds=90.0) / "some.json"
    file.write_text(json.dumps({name: value for name, value in read(file.parent).items() if name != "runs"}))
    ran(tmp_path / "two", "short", resumed=file)
    assert labels_of(tmp_path / "two") == {"times": ["c", "a", "b"]}
    assert "with rows of 90 s before" in (tmp_path / "two/some.md").read_text()


def test_shards_share_out_a_part_and_are_joined(tmp_path: Path) -> None:
    folders = [command(tmp_path / str(n), "--parts", "times", "--shard", f"{n}/3") for n in (1, 2, 3)]
    shared = [labels_of(folder)["times"] for folder in folders]
    assert sorted(chain.from_iterable(shared)) == ["a", "b", "c"]
    assert sum(map(bool, shared)) > 1
    assert [run["shard"] for folder in folders for run in read(folder)["runs"]] == ["1/3", "2/3", "3/3"]
    assert sorted(joined(tmp_path / "all", *folders)["times"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "speed"], "invalid choice: 'speed'"),
        (["--shard", "1/2"], "--shard: expected parts that have cases to share, got other"),
        (["--parts", "times", "--shard", "3/2"], "argument --shard: expected I/N, I from 1 to N, got 3/2"),
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
    one = ran(tmp_path / "one", "short") / "some.json"
    one.write_text(json.dumps({**read(one.parent), **changed} if changed else changed))
    with pytest.raises(ValueError, match=f"^{one}: {said}") as refused:
        PLAN.joined([one]).write(tmp_path / "all")
    assert "\n" not in str(refused.value)


def test_a_joined_report_says_what_was_measured_apart(tmp_path: Path) -> None:
    joined(tmp_path / "all", ran(tmp_path / "one", "short", "other", run=ONE), ran(tmp_path / "two", "long", run=OTHER))
    text = (tmp_path / "all/some.md").read_text()
    assert "\n\na, b, c\n\nd\n" in text
    apart = "measured apart at the same time by 2 processes on 2 GPUs: short, other; long"
    assert f"; made in 240 s and 481 s; {apart}.\n" in text
    ran(tmp_path / "more", "other", resumed=tmp_path / "all/some.json")
    assert f"; made in 0 s, with rows of 721 s before; {apart}.\n" in (tmp_path / "more/some.md").read_text()


def test_what_both_took_over_is_joined_once(tmp_path: Path) -> None:
    first = ran(tmp_path / "first", "other", run=Run(["other"], 90.0, 10.0, "x")) / "some.json"
    folders = [ran(tmp_path / group, group, resumed=first) for group in GROUPS]
    assert joined(tmp_path / "all", *folders) == {"times": ["a", "b", "c"], "other": ["d"]}
    assert [run["parts"] for run in read(tmp_path / "all")["runs"]] == [["other"], ["short"], ["long"]]
    assert "with rows of 90 s before" in (tmp_path / "all/some.md").read_text()


@pytest.mark.parametrize("why", DUE)
def test_what_one_has_not_measured_is_the_other_s(why: str, tmp_path: Path) -> None:
    late = [asdict(Outer("a", (1.0, 1.0, 1.0))), asdict(Outer("c", inner={why: Inner(Ratio(1.0, 1.0, 1.0), [])}))]
    one, two = ran(tmp_path / "one", "short", rows={"times": late}, ended={"times": "cut"}), ran(tmp_path / "two", "long")
    for folders in ([one, two], [two, one]):
        joined(tmp_path / "all", *folders)
        assert {row["label"]: row["time_us"] for row in read(tmp_path / "all")["rows"]["times"]} == {
            "a": [1.0] * 3, "c": [1.0] * 3
        }  # fmt: skip
        assert "The part on times ended early: cut." in (tmp_path / "all/some.md").read_text()
    joined(tmp_path / "alone", one)
    assert why in json.dumps(read(tmp_path / "alone")["rows"])


@pytest.mark.parametrize("why", DUE)
@pytest.mark.parametrize("again", ["short", "other"])
def test_what_was_not_measured_and_is_not_asked_for_again_stays(again: str, why: str, tmp_path: Path) -> None:
    late = {name: asdict(Outer(name, inner={why: Inner(Ratio(1.0, 1.0, 1.0), [])})) for name in "acd"}
    rows = {"times": [late["a"], late["c"]], "other": [late["d"]]}
    first = ran(tmp_path / "first", "times", "other", rows=rows)
    ran(tmp_path / "more", again, resumed=first / "some.json")
    found = read(tmp_path / "more")["rows"]
    is_late = {row["label"]: why in json.dumps(row) for part in found.values() for row in part}
    measured = {"short": {"a": False, "b": False, "c": True, "d": True}, "other": {"a": True, "c": True, "d": False}}
    assert is_late == measured[again]
    assert sum(len(part) for part in found.values()) == len(is_late)


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
@pytest.mark.parametrize("shard", [None, Shard(1, 1)])
def test_the_row_that_lacks_less_stays(earlier: Outer, later: Outer, kept: float, shard: Shard | None, tmp_path: Path) -> None:
    def measure_a(deadline: float, earlier: Sequence[Outer] = (), shard: Shard | None = None) -> Iterator[Outer]:
        yield from earlier
        yield later

    part = Section(measure_a, labels, 1.0, row=Outer, is_resumable=True, is_sharded=True)
    plan = replace(PLAN, parts={"times": part}, order=("times",))
    plan.run(tmp_path / "first", 10.0, ["times"])
    written = read(tmp_path / "first")
    (tmp_path / "first/some.json").write_text(json.dumps({**written, "rows": {"times": [asdict(earlier)]}}))
    plan.run(tmp_path / "second", 10.0, ["times"], tmp_path / "first/some.json", shard)
    (row,) = read(tmp_path / "second")["rows"]["times"]
    assert row["time_us"][0] == kept


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": {"commit": "beef"}}, r" .* expected \(as in .*one/some\.json\) and found: commit: .* and beef$"),
        ({"machine": {"cores": 999}}, r" .* expected \(as in .*one/some\.json\) and found: cores: \d+ and 999$"),
        ({"allocator": "jemalloc"}, r" .* expected \(as in .*one/some\.json\) and found: allocator: .* and jemalloc$"),
        ({"rows": {"times": [asdict(Outer("c", (2.0, 2.0, 2.0)))]}}, ", times: c has other figures"),
    ],
)
def test_what_was_made_otherwise_is_not_joined(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    one, two = ran(tmp_path / "one", "times"), ran(tmp_path / "two", "long")
    written = read(two)
    merged = {name: {**written[name], **new} if isinstance(new, dict) else new for name, new in changed.items()}
    (two / "some.json").write_text(json.dumps({**written, **merged}))
    with pytest.raises(ValueError, match=rf"two/some\.json{said}"):
        joined(tmp_path / "all", one, two)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([ONE], "made in 240 s"),
        ([Run([], 249.0), Run([], 481.0)], "made in 481 s, with rows of 249 s before"),
        ([ONE, replace(OTHER, began=1240.0)], "made in 481 s, with rows of 240 s before"),
        ([ONE, replace(OTHER, gpu="x")], "made in 240 s and 481 s; measured apart at the same time by 2 processes on 1 GPU: "
         "short, other; long"),
    ],
)  # fmt: skip
def test_runs_are_told_by_when_they_were(made: list[Run], said: str) -> None:
    assert parted.describe(made) == said


def test_rows_of_an_earlier_run_are_not_written_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ran(tmp_path / "first", "short") / "some.json"
    written: list[int] = []
    write = parted.Report.write
    monkeypatch.setattr(parted.Report, "write", lambda one, into: written.append(len(one.rows["times"])) or write(one, into))
    PLAN.run(tmp_path / "second", 10.0, ["times"], first)
    assert labels_of(tmp_path / "second") == {"times": ["a", "b", "c"]}
    assert written == [3, 3]  # after "c", and at the end
