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


PLAN = ReportPlan(
    "some",
    "Some",
    1,
    {
        "times": Section(measure, labels, 0.5, row=Outer, is_resumable=True, groups=tuple(GROUPS), is_sharded=True),
        "other": Section(other, labels, 0.5, row=Outer),
    },
    ("times", "other"),
    10.0,
)


def files(folders: Sequence[Path]) -> list[Path]:
    return [folder / "some.json" for folder in folders]


def ran(folder: Path, *parts: str, run: Run | None = None, resumed: Path | None = None, **changed: Any) -> Path:
    """A report of these parts, changed in its JSON file: as if `run` had made it."""
    PLAN.run(folder, 10.0, parts, resumed)
    written = read(folder)
    (folder / "some.json").write_text(json.dumps({**written, "runs": [asdict(run)] if run else written["runs"], **changed}))
    return folder


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "some.json").read_text())
    return found


def test_a_part_is_measured_by_groups(tmp_path: Path) -> None:
    ran(tmp_path / "one", "long")
    assert labels_of(tmp_path / "one") == {"times": ["c"]}
    ran(tmp_path / "whole", "times", "long")
    assert labels_of(tmp_path / "whole") == {"times": ["a", "b", "c"]}
    ran(tmp_path / "more", "short", resumed=tmp_path / "one/some.json")
    assert labels_of(tmp_path / "more") == {"times": ["c", "a", "b"]}


def labels_of(folder: Path) -> dict[str, list[str]]:
    return {name: [row["label"] for row in rows] for name, rows in read(folder)["rows"].items()}


def test_the_command_takes_groups_and_joins_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted, "exit_code", lambda program, measure: measure() or 0)
    for parts in (["short", "other"], ["long"]):
        assert PLAN.main("", ["--output", str(tmp_path / parts[0]), "--parts", *parts]) == 0
    monkeypatch.undo()
    PLAN.joined([tmp_path / "short/some.json", tmp_path / "long/some.json"]).write(tmp_path / "all")
    assert labels_of(tmp_path / "all") == {"times": ["a", "b", "c"], "other": ["d"]}


@pytest.mark.parametrize("file", [[], ["first/some.json"]])
def test_the_command_goes_on_after_an_earlier_run(file: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted, "exit_code", lambda program, measure: measure() or 0)
    folders = [tmp_path / "first", tmp_path / ("second" if file else "first")]
    assert PLAN.main("", ["--output", str(folders[0]), "--parts", "short"]) == 0
    again = ["--output", str(folders[1]), "--parts", "long", "--resume", *(str(tmp_path / one) for one in file)]
    assert PLAN.main("", again) == 0
    assert labels_of(folders[1]) == {"times": ["a", "b", "c"]}


def test_shards_share_out_a_part_and_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted, "exit_code", lambda program, measure: measure() or 0)
    folders = [tmp_path / str(number) for number in (1, 2, 3)]
    for number, folder in enumerate(folders, 1):
        assert PLAN.main("", ["--output", str(folder), "--parts", "times", "--shard", f"{number}/3"]) == 0
    shared = [labels_of(folder)["times"] for folder in folders]
    assert sorted(chain.from_iterable(shared)) == ["a", "b", "c"]
    assert sum(map(bool, shared)) > 1
    assert [run["shard"] for folder in folders for run in read(folder)["runs"]] == ["1/3", "2/3", "3/3"]
    PLAN.joined(files(folders)).write(tmp_path / "all")
    assert sorted(labels_of(tmp_path / "all")["times"]) == ["a", "b", "c"]


def test_what_has_no_cases_is_not_sharded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        PLAN.main("", ["--output", str(tmp_path), "--shard", "1/2"])
    assert "--shard: expected parts that have cases to share, got other" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        PLAN.main("", ["--output", str(tmp_path), "--parts", "times", "--shard", "3/2"])
    assert "argument --shard: expected I/N, I from 1 to N, got 3/2" in capsys.readouterr().err


def test_a_report_that_is_not_there_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parted, "exit_code", lambda program, measure: measure() or 0)
    with pytest.raises(SystemExit):
        PLAN.main("", ["--output", str(tmp_path / "all"), "--resume"])
    assert f"some: error: {tmp_path}/all/some.json: cannot be read (No such file" in capsys.readouterr().err


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
    folders = [ran(tmp_path / "one", "short", "other", run=ONE), ran(tmp_path / "two", "long", run=OTHER)]
    PLAN.joined(files(folders)).write(tmp_path / "all")
    text = (tmp_path / "all/some.md").read_text()
    assert "\n\na, b, c\n\nd\n" in text
    apart = "measured apart at the same time by 2 processes on 2 GPUs: short, other; long"
    assert f"; made in 240 s and 481 s; {apart}.\n" in text
    ran(tmp_path / "more", "other", resumed=tmp_path / "all/some.json")
    assert f"; made in 0 s, with rows of 721 s before; {apart}.\n" in (tmp_path / "more/some.md").read_text()


def test_what_both_took_over_is_joined_once(tmp_path: Path) -> None:
    first = ran(tmp_path / "first", "other", run=Run(["other"], 90.0, 10.0, "x")) / "some.json"
    folders = [ran(tmp_path / group, group, resumed=first) for group in GROUPS]
    PLAN.joined(files(folders)).write(tmp_path / "all")
    assert labels_of(tmp_path / "all") == {"times": ["a", "b", "c"], "other": ["d"]}
    assert [run["parts"] for run in read(tmp_path / "all")["runs"]] == [["other"], ["short"], ["long"]]
    assert "with rows of 90 s before" in (tmp_path / "all/some.md").read_text()


@pytest.mark.parametrize("why", DUE)
def test_what_one_has_not_measured_is_the_other_s(why: str, tmp_path: Path) -> None:
    late = [asdict(Outer("a", (1.0, 1.0, 1.0))), asdict(Outer("c", inner={why: Inner(Ratio(1.0, 1.0, 1.0), [])}))]
    one, two = ran(tmp_path / "one", "short", rows={"times": late}, ended={"times": "cut"}), ran(tmp_path / "two", "long")
    for folders in ([one, two], [two, one]):
        PLAN.joined(files(folders)).write(tmp_path / "all")
        assert {row["label"]: row["time_us"] for row in read(tmp_path / "all")["rows"]["times"]} == {
            "a": [1.0] * 3, "c": [1.0] * 3
        }  # fmt: skip
        assert "The part on times ended early: cut." in (tmp_path / "all/some.md").read_text()
    PLAN.joined(files([one])).write(tmp_path / "alone")
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


def test_other_figures_of_one_row_are_not_joined(tmp_path: Path) -> None:
    others = {"times": [asdict(Outer("c", (2.0, 2.0, 2.0)))]}
    folders = [ran(tmp_path / "one", "long"), ran(tmp_path / "two", "long", rows=others)]
    with pytest.raises(ValueError, match=r"two/some\.json, times: c has other figures"):
        PLAN.joined(files(folders)).write(tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": {"commit": "beef"}}, "commit: .* and beef"),
        ({"machine": {"cores": 999}}, r"cores: \d+ and 999"),
        ({"allocator": "jemalloc"}, "allocator: .* and jemalloc"),
    ],
)
def test_what_was_made_otherwise_is_not_joined(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    one, two = ran(tmp_path / "one", "short"), ran(tmp_path / "two", "long")
    written = read(two)
    merged = {name: {**written[name], **new} if isinstance(new, dict) else new for name, new in changed.items()}
    (two / "some.json").write_text(json.dumps({**written, **merged}))
    with pytest.raises(ValueError, match=rf"two/some\.json .* expected \(as in .*one/some\.json\) and found: {said}$"):
        PLAN.joined(files([one, two])).write(tmp_path / "all")


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

    def counting(report: Any, folder: Path) -> None:
        written.append(len(report.rows["times"]))
        write(report, folder)

    monkeypatch.setattr(parted.Report, "write", counting)
    PLAN.run(tmp_path / "second", 10.0, ["times"], first)
    assert labels_of(tmp_path / "second") == {"times": ["a", "b", "c"]}
    assert written == [3, 3]  # after "c", and at the end
