"""DeepBench's problems: their cases and published times, the report from made-up rows, and a small one measured on a CPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ecornn.cases.case_sets import Origin
from pytest_ecornn.contract import Case
from pytest_ecornn.suites.published import deepbench
from pytest_ecornn.suites.published.common.case_times import (
    CALLED,
    NO_GRAPHS,
    NOT_CALLED,
    REPLAYED,
    Cell,
    Row,
    TimedComparison,
)
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import from_json
from pytest_ecornn.suites.published.deepbench_parts import problem_times
from pytest_ecornn.suites.published.deepbench_parts.problem_times import (
    INPUTS,
    ProblemTimes,
    Variant,
    in_turn,
    label_of,
)
from tests.helpers.studies import cells_of

TRANSLATION = Case(cell="lstm", steps=25, batch=16, hidden_size=512, input_size=INPUTS, device="cuda")
SPEECH = replace(TRANSLATION, cell="gru", steps=1500, batch=32, hidden_size=2816)
SERVER = replace(TRANSLATION, cell="gru", steps=1, batch=1)
DEVICE = replace(TRANSLATION, steps=150, batch=1, hidden_size=256)
PARTS = (deepbench.TRAINING, deepbench.INFERENCE, deepbench.PRUNED)


# Problems and cases.


def test_the_problems_are_deepbench_s_with_training_and_inference_apart() -> None:
    origins = {**deepbench.TRAINING.origins, **deepbench.INFERENCE.origins}
    problems = {(origin.label, label_of(case)) for case, origin in origins.items()}
    assert Counter(label for label, _ in problems) == {
        "speech recognition": 29, "machine translation": 12, "language modelling": 7, "character language modelling": 3,
        "speaker id": 2, "inference on a server": 68, "inference on a device": 2,
        "inference on a server; inference on a device": 1,
    }  # fmt: skip
    assert {TRANSLATION, SPEECH, SERVER, DEVICE} <= origins.keys()
    assert deepbench.TRAINING.origins.keys().isdisjoint(deepbench.INFERENCE.origins)
    assert DEVICE in [case for case, _ in deepbench.INFERENCE.rows_of([], "inference on a device", Variant.of(DEVICE))]


def test_published_times_stand_beside_a_case() -> None:
    row = timed(deepbench.TRAINING, TRANSLATION, cudnn=400.0)
    (line,) = cells_of(problem_times.render(deepbench.TRAINING, [row]), label_of(TRANSLATION))
    assert line[-2:] == ["1,095", "1,270"]


def test_a_shortened_run_covers_all_applications_by_small_problems() -> None:
    ordered = list(dict.fromkeys(map(label_of, in_turn(deepbench.TRAINING.origins))))
    assert len(ordered) == 53
    labels = {label_of(case): origin.label for case, origin in deepbench.TRAINING.origins.items()}
    assert {labels[one] for one in ordered[:5]} == set(deepbench.TRAINING.applications)
    works = {label_of(case): case.steps * case.batch * case.hidden_size**2 for case in deepbench.TRAINING.origins}
    for application in deepbench.TRAINING.applications:
        work = [works[one] for one in ordered if labels[one] == application]
        assert work == sorted(work)


# The report from made-up rows.


def timed(times: ProblemTimes, case: Case, **us: float) -> Row:
    """Replayed times by implementation; the others do not run. Nothing is timed as called."""
    names, samples = times.comparison.names, {name: [time] * 8 for name, time in us.items()}
    replayed = times.comparison.cells(samples, {name: "needs 9 SMs" for name in names if name not in us})
    called = {name: Cell(NOT_CALLED) for name in names}
    return Row(case, {CALLED: called, REPLAYED: replayed})


def test_where_auto_has_no_time_no_lowest_is_said() -> None:
    row = timed(deepbench.TRAINING, TRANSLATION, cudnn=400.0, persistent_gpu=100.0)
    (line, *_) = cells_of(problem_times.summary(deepbench.TRAINING, [row]), "forward, float32")
    assert line[-5:] == ["4.00 [4.00, 4.00] of 1", *["-"] * 4]


def pruned_rows(at_10: Callable[[int], float]) -> list[Row]:
    """All cases: dense over sparse is at_10 of the problem's number at 10 %, at 30 % twice a third of it."""
    times = deepbench.PRUNED
    return [
        timed(times, case, cudnn=100.0 * at_10(number // len(times.variants)) * (1 if case.density == 0.1 else 2 / 3),
              sparse_persistent_gpu=100.0)
        for number, case in enumerate(times.origins)
    ]  # fmt: skip


@pytest.mark.parametrize(("at_10", "mean", "best"), [(lambda n: 4.0, "yes", "no"), (lambda n: 1.0 + 5 * (n == 3), "no", "yes")])
def test_pruned_layers_have_a_bar_for_the_mean_and_one_for_the_best(
    at_10: Callable[[int], float], mean: str, best: str
) -> None:
    rows = pruned_rows(at_10)
    table = problem_times.targets(deepbench.PRUNED, rows)
    (ten,), (thirty,) = ([line for line in cells_of(table, density) if line[1] == "all"] for density in ("10%", "30%"))
    assert (ten[2], ten[4], ten[6]) == ("58 of 58", f"at least 3: {mean}", "-")
    assert (thirty[4], thirty[6]) == ("-", f"at least 3: {best}")
    late = deepbench.PRUNED.comparison.unmeasured_row(rows[0].case, NOT_REACHED)
    text = problem_times.render_pruned(deepbench.PRUNED, [late, *rows[1:]])
    assert f"at least 3: {mean} so far" in text
    assert cells_of(text, "rnn_relu 1,760, B 16, T 50")[0][1:3] == ["float32", "10%"]


# Measured on a CPU.


def test_the_documentation_counts_the_cases_of_each_part() -> None:
    text = (Path(__file__).parents[3] / "docs/how-it-measures.md").read_text()
    for times in PARTS:
        assert cells_of(text, f"`{times.name}`")[0][1] == str(len(times.cases()))


def small_parts() -> list[ProblemTimes]:
    """Tiny problems by implementations of a CPU."""
    dense = TimedComparison(("torch_cpu", "sequential"), ("torch_cpu",), called=lambda case: False)
    pruned = TimedComparison(("sequential", "torch_cpu"), ("torch_cpu",), needed="sequential")
    problems = (("lstm", 2), ("gru", 2)), (("gru", 1),), (("gru", 2),)  # sizes differ, lest a case be of two parts
    return [
        replace(times, comparison=comparison, origins={
            Case(cell=cell, steps=size, batch=size, hidden_size=8, dtype="float16" if precision == "float16" else "float32",
                 precision="tf32" if precision == "tf32" else "ieee", mode=mode, density=density): Origin(cell)
            for cell, size in of_part for precision, mode, density in times.variants
        })
        for times, of_part, comparison in zip(PARTS, problems, (dense, dense, pruned), strict=True)
    ]  # fmt: skip


def stored_rows(folder: Path) -> Mapping[Case, Row]:
    rows = json.loads((folder / "deepbench.json").read_text())["rows"]
    read = [from_json(Row, row) for row in chain.from_iterable(rows.values())]
    assert json.loads(json.dumps([asdict(row) for row in read])) == [*chain.from_iterable(rows.values())]
    return {row.case: row for row in read}


def test_a_small_report_is_measured_on_a_cpu_and_gone_on_with(tmp_path: Path) -> None:
    parts = small_parts()
    plan = deepbench.make_plan(*parts)
    plan.run(tmp_path / "first", 60.0, ["training-float32", "pruned"])
    first = stored_rows(tmp_path / "first")
    assert set(first) == {*parts[0].cases(["training-float32"]), *parts[2].cases()}
    plan.run(tmp_path / "second", 60.0, list(plan.parts), tmp_path / "first/deepbench.json")
    rows = stored_rows(tmp_path / "second")
    assert set(rows) == {case for times in parts for case in times.cases()}
    assert {case: rows[case] for case in first} == first
    for row in rows.values():
        assert (row.cells[CALLED]["sequential"].time_us is not None) == (row.case.precision == "ieee")
        if row.case.precision == "ieee":
            assert row.cells[REPLAYED]["sequential"].reason == NO_GRAPHS
    text = (tmp_path / "second/deepbench.md").read_text()
    assert len(cells_of(text, r"lstm 8, B 2, T 2 \*")) == 4  # two precisions run, in two passes
    assert NO_GRAPHS not in text  # what was timed as called has a time
    pictures = [f"deepbench_{times.name}.svg" for times in parts]
    for name in pictures:
        assert f"![{name}]({name})" in text
        assert ElementTree.parse(tmp_path / "second" / name).getroot().tag.endswith("svg")
