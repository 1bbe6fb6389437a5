"""The chart of cases: points lie where speeds say, bars span intervals, and no text lies over another."""

from __future__ import annotations

from math import inf, log, nan
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.reporting.pictures.case_chart import Band, Mark, add_bands
from pytest_ecornn.reporting.pictures.column import PictureColumn
from pytest_ecornn.results.statistics import Ratio
from tests.helpers.reporting.pictures import SVG, boxes, of_role, outside, overlaps, texts

BASE = Mark("torch_cpu", "baseline", Ratio(1, 1, 1), "6.90 ms")


def picture(*bands: Band, baseline: str = "torch_cpu") -> ElementTree.Element:
    column = PictureColumn("a title")
    add_bands(column, bands, baseline)
    return ElementTree.fromstring(column.picture().document())


def band(*marks: Mark, case: str = "lstm-T35-B32-H200-float32") -> Band:
    return Band(case, "inference, cpu", "torch_cpu", [BASE, *marks])


def mark(speed: Ratio, verdict: str = "faster", name: str = "mine") -> Mark:
    return Mark(name, verdict, speed, "1.00 ms")


def points(root: ElementTree.Element) -> list[float]:
    """x of each point but the baseline's diamond."""
    return [float(one.attrib["cx"]) for one in of_role(root, "point") if one.tag == f"{SVG}circle"]


def tick(root: ElementTree.Element, label: str) -> float:
    return next(float(text.attrib["x"]) for text in root.iter(f"{SVG}text") if text.text == label)


def place(root: ElementTree.Element, ratio: float) -> float:
    """Where the axis has a ratio, by the labels of 1x and 2x."""
    one, two = tick(root, "1x"), tick(root, "2x")
    return one + (two - one) * log(ratio) / log(2)


def test_points_lie_where_their_speeds_say_and_the_baseline_at_one() -> None:
    speeds = (0.25, 0.9, 1.7, 8.0)
    root = picture(band(*(mark(Ratio(one, one, one)) for one in speeds)))
    assert points(root) == pytest.approx([place(root, one) for one in speeds], abs=0.2)
    (base,) = (one for one in of_role(root, "point") if one.tag == f"{SVG}path")
    assert float(base.attrib["d"][1:].split()[0]) + 4.5 == pytest.approx(tick(root, "1x"), abs=0.2)


def test_a_bar_spans_its_interval() -> None:
    root = picture(band(mark(Ratio(3, 2, 4)), mark(Ratio(0.5, 0.4, 0.8), "slower")))
    bars = [(float(bar.attrib["x1"]), float(bar.attrib["x2"])) for bar in of_role(root, "interval")]
    assert bars[0] == pytest.approx((place(root, 2), place(root, 4)), abs=0.2)
    assert bars[1] == pytest.approx((place(root, 0.4), place(root, 0.8)), abs=0.2)
    assert not of_role(root, "beyond")


@pytest.mark.parametrize(("low", "high", "arrows"), [(1e-6, 2.1, 1), (1.9, inf, 1), (0.0, 1e30, 2), (-1.0, 2.1, 1)])
def test_an_interval_that_dwarfs_its_point_ends_in_arrows(low: float, high: float, arrows: int) -> None:
    root = picture(band(mark(Ratio(2, low, high))))
    assert len(of_role(root, "beyond")) == arrows
    (bar,) = of_role(root, "interval")
    assert 0 < float(bar.attrib["x1"]) <= points(root)[0] <= float(bar.attrib["x2"]) < 640
    assert place(root, 40) > float(bar.attrib["x2"])


@pytest.mark.parametrize("ratio", [nan, inf, 0.0, -1.0, 1e300, 1e-300])
def test_a_speed_without_a_place_is_a_text(ratio: float) -> None:
    odd = Mark("mine", "unclear", Ratio(ratio, ratio, ratio), "1.00 ms", "unclear, without a finite ratio")
    root = picture(band(odd))
    assert points(root) == []
    assert "unclear, without a finite ratio" in texts(root)
    assert "1.00 ms" in texts(root)


@pytest.mark.parametrize("bound", [nan, inf, 0.0])
def test_a_point_without_an_interval_has_no_bar(bound: float) -> None:
    root = picture(band(mark(Ratio(2, bound, nan))))
    assert (len(points(root)), of_role(root, "interval")) == (1, [])


def test_the_colour_is_the_verdicts_and_the_legend_has_those_that_are_drawn() -> None:
    verdicts = {"faster": "fill-blue", "same": "fill-weak", "unclear": "fill-page", "slower": "fill-red"}
    root = picture(band(*(mark(Ratio(2, 2, 2), verdict) for verdict in verdicts)))
    circles = [one.attrib["class"].split()[0] for one in of_role(root, "point") if one.tag == f"{SVG}circle"]
    assert circles == list(verdicts.values())
    assert [text for text in texts(root) if text in verdicts] == list(verdicts)
    assert "unclear" not in texts(picture(band(mark(Ratio(2, 2, 2)))))


def test_bands_alternate_and_hold_their_rows() -> None:
    root = picture(*(band(mark(Ratio(2, 1.9, 2.1)), case=f"lstm-T{steps}-B1-H8-float32") for steps in (1, 2, 3)))
    bands = of_role(root, "band")
    assert [one.attrib["class"].split()[0] for one in bands] == ["fill-band", "fill-page", "fill-band"]
    for one, circle in zip(bands, (one for one in of_role(root, "point") if one.tag == f"{SVG}circle"), strict=False):
        top = float(one.attrib["y"])
        assert top < float(circle.attrib["cy"]) < top + float(one.attrib["height"])


def test_the_axis_names_the_baseline_and_says_which_side_is_slower() -> None:
    assert "times as fast as torch_cpu; left of 1x is slower" in texts(picture(band()))


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
SPEEDS = st.builds(Ratio, *(st.floats(allow_nan=True, allow_infinity=True) for _ in range(3)))
SENSIBLE = st.floats(1e-3, 1e3).map(lambda one: Ratio(one, 0.9 * one, 1.1 * one))
MARKS = st.builds(
    Mark, NAMES, st.sampled_from(["faster", "same", "unclear", "slower", "failed", "refused"]), SENSIBLE | SPEEDS,
    st.sampled_from(["", "999 us", "12.6 ms"]), NAMES, st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.lists(st.builds(Band, NAMES, NAMES, NAMES, st.lists(MARKS, max_size=4)), max_size=4), NAMES)
def test_no_text_lies_over_another_or_leaves_the_picture(bands: list[Band], baseline: str) -> None:
    root = picture(*bands, baseline=baseline)
    found = boxes(root)
    assert overlaps(found) == []
    assert outside(root, found) == []
    assert all(0 < x < 640 for x in points(root))


def test_the_difference_of_a_case_is_its_largest_certain_one() -> None:
    assert band(mark(Ratio(0.1, 0.1, 0.1), "slower"), mark(Ratio(3, 3, 3))).difference == pytest.approx(log(10))
    assert band(mark(Ratio(9, 0.1, 99), "unclear"), mark(Ratio(nan, nan, nan))).difference == 0
    assert not band().has_failed
    assert band(Mark("mine", "unproven")).has_failed
