"""DeepBench's problems: their cases and published times, and the page from made-up rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ecornn.contract import Case
from pytest_ecornn.results.rows import Row
from pytest_ecornn.suites.published import deepbench
from pytest_ecornn.suites.published.common.report_rows import cases_of
from pytest_ecornn.suites.published.deepbench import INPUTS, Part, label_of
from tests.helpers.report_rows import report_row, timing
from tests.helpers.studies import cells_of

TRANSLATION = Case(cell="lstm", steps=25, batch=16, hidden_size=512, input_size=INPUTS, device="cuda")
SPEECH = replace(TRANSLATION, cell="gru", steps=1500, batch=32, hidden_size=2816)
SERVER = replace(TRANSLATION, cell="gru", steps=1, batch=1)
DEVICE = replace(TRANSLATION, steps=150, batch=1, hidden_size=256)


def parts(*rows: Row) -> dict[str, Part]:
    return {part.name: part for part in deepbench.parts_of(rows)}


def text_of(*rows: Row) -> str:
    return "\n".join(section.text for section in deepbench.sections(rows))


# Problems and cases.


def test_the_problems_are_deepbench_s_with_training_and_inference_apart() -> None:
    training, inference, _ = deepbench.parts_of([])
    origins = {**training.origins, **inference.origins}
    assert origins.keys() == cases_of("deepbench").keys()
    problems = {(origin.label, label_of(case)) for case, origin in origins.items()}
    assert Counter(label for label, _ in problems) == {
        "speech recognition": 29, "machine translation": 12, "language modelling": 7, "character language modelling": 3,
        "speaker id": 2, "inference on a server": 68, "inference on a device": 2,
        "inference on a server; inference on a device": 1,
    }  # fmt: skip
    assert {TRANSLATION, SPEECH, SERVER, DEVICE} <= origins.keys()
    assert training.origins.keys().isdisjoint(inference.origins)
    assert DEVICE in inference.cases("inference on a device")


def test_published_times_stand_beside_a_case() -> None:
    (line,) = cells_of(text_of(*timed(TRANSLATION, cudnn=400.0)), label_of(TRANSLATION))
    assert line[-2:] == ["1,095", "1,270"]


def test_the_documentation_counts_the_cases_of_each_part() -> None:
    text = (Path(__file__).parents[3] / "docs/how-it-measures.md").read_text()
    for name, part in parts().items():
        assert cells_of(text, f"`{name}`")[0][1] == str(len(part.origins))


# The page from made-up rows.


def timed(case: Case, **us: float) -> list[Row]:
    """Replayed times by implementation. Nothing is timed as called."""
    baseline = {"cudnn": us["cudnn"]}
    return [report_row(name, case, replay=timing(time, **baseline if name != "cudnn" else {})) for name, time in us.items()]


def test_ratios_are_over_cudnn_and_a_refusal_is_told_once() -> None:
    refused = [report_row("persistent_gpu", replace(SPEECH, steps=steps), f"needs {steps} SMs") for steps in (1500, 750)]
    text = text_of(*timed(TRANSLATION, cudnn=400.0, auto=100.0), *refused)
    (line,) = cells_of(text, label_of(TRANSLATION))
    assert line[1:6] == ["float32", "400.0", "-", "-", "100.0 (4.00)"]
    said = "- persistent_gpu, forward, 2 cases: needs 1500 SMs (gru 2,816 B 32 T 1,500 float32; gru 2,816 B 32 T 750 float32)"
    assert said in text
    assert "- 3 of 318 cases were reached." in text


def test_a_call_that_is_too_long_for_a_graph_is_marked() -> None:
    rows = [report_row(name, TRANSLATION, timing=timing(9.0, cudnn=18.0)) for name in ("auto", "cudnn")]
    assert cells_of(text_of(*rows), rf"{label_of(TRANSLATION)} \*")


def test_where_auto_has_no_time_no_lowest_is_said() -> None:
    training = parts(*timed(TRANSLATION, cudnn=400.0, persistent_gpu=100.0))["training"]
    (line, *_) = cells_of(deepbench.summary(training), "forward, float32")
    assert line[-5:] == ["4.00 [4.00, 4.00] of 1", *["-"] * 4]


def test_each_part_that_was_timed_has_a_chart() -> None:
    rows = [row for case in (TRANSLATION, SERVER) for row in timed(case, cudnn=4.0, auto=1.0, persistent_gpu=2.0)]
    charts = {name: text for section in deepbench.sections(rows) for name, text in section.charts.items()}
    assert set(charts) == {"deepbench_training.svg", "deepbench_inference.svg"}
    for text in charts.values():
        assert "auto, float32" in "".join(ElementTree.fromstring(text).itertext())


def pruned_rows(at_10: Callable[[int], float]) -> list[Row]:
    """All cases: dense over sparse is at_10 of the problem's number at 10 %, at 30 % twice a third of it."""
    pruned = parts()["pruned"]
    ratios = {
        case: at_10(number // len(pruned.variants)) * (1 if case.density == 0.1 else 2 / 3)
        for number, case in enumerate(pruned.origins)
    }
    return [row for case, ratio in ratios.items() for row in timed(case, cudnn=100.0 * ratio, sparse_persistent_gpu=100.0)]


@pytest.mark.parametrize(("at_10", "mean", "best"), [(lambda n: 4.0, "yes", "no"), (lambda n: 1.0 + 5 * (n == 3), "no", "yes")])
def test_pruned_layers_have_a_bar_for_the_mean_and_one_for_the_best(
    at_10: Callable[[int], float], mean: str, best: str
) -> None:
    rows = pruned_rows(at_10)
    table = deepbench.targets(parts(*rows)["pruned"])
    (ten,), (thirty,) = ([line for line in cells_of(table, density) if line[1] == "all"] for density in ("10%", "30%"))
    assert (ten[2], ten[4], ten[6]) == ("58 of 58", f"at least 3: {mean}", "-")
    assert (thirty[4], thirty[6]) == ("-", f"at least 3: {best}")
    text = text_of(*rows[2:])
    assert f"at least 3: {mean} so far" in text
    assert cells_of(text, "rnn_relu 1,760, B 16, T 50")[0][1:3] == ["float32", "10%"]
