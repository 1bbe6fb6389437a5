"""Plots over logarithmic axes: where points are, and that the picture is a whole document of its own."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pytest_ecornn.reporting.pictures.log_plot import Line, log_plot
from tests.helpers.reporting.pictures import SVG, of_role

LINES = [
    Line("slow & <old>", [(256, 600.0), (1024, 2400.0)], 1, is_dashed=True),
    Line("fast", [(256, 0.06), (1024, 0.24), (4096, 0.0), (16_384, float("nan"))], 2),
]


def drawn(lines: list[Line]) -> ElementTree.Element:
    return ElementTree.fromstring(log_plot("times", "steps", "ms", lines).document())


def test_equal_ratios_are_equal_distances() -> None:
    points = [
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for line in drawn(LINES).iter(f"{SVG}polyline")
    ]
    (slow_left, slow_right), (fast_left, fast_right) = points
    assert slow_left[0] == fast_left[0] < slow_right[0] == fast_right[0]
    assert slow_left[1] - slow_right[1] == pytest.approx(fast_left[1] - fast_right[1], abs=0.2)
    assert slow_left[1] < fast_left[1]  # upwards is less in a picture


def test_an_interval_is_a_bar_through_its_point() -> None:
    line = Line("one", [(1, 10.0), (2, 20.0), (3, 0.0)], 1, intervals=[(5.0, 40.0), (20.0, 20.0), (1.0, 2.0)])
    picture = drawn([line])
    bars = [one.attrib for one in of_role(picture, "interval")]
    points = [one.attrib for one in picture.iter(f"{SVG}circle")]
    assert len(bars) == 2  # the last point has no place on the axis
    assert bars[0]["x1"] == bars[0]["x2"] == points[0]["cx"]
    assert float(bars[0]["y2"]) < float(points[0]["cy"]) < float(bars[0]["y1"])
    assert all(44 <= float(bar[end]) <= 424 for bar in bars for end in ("y1", "y2"))


def test_texts_are_as_given_and_every_x_with_a_point_is_a_tick() -> None:
    texts = [text.text for text in drawn(LINES).iter(f"{SVG}text")]
    assert {"times", "steps", "ms", "256", "1,024", "0.01", "1,000", "fast"} <= set(texts)
    assert "4,096" not in texts
    assert texts.index("slow & <old>") < texts.index("fast")  # the legend in the order of the lines' ends


def test_lines_that_differ_are_told_apart() -> None:
    slow, fast = drawn(LINES).iter(f"{SVG}polyline")
    assert slow.attrib["class"] != fast.attrib["class"]
    assert ("stroke-dasharray" in slow.attrib, "stroke-dasharray" in fast.attrib) == (True, False)


@pytest.mark.parametrize("values", [(3.0, 3.0), (1.0, 1.0), (0.011, 0.09), (2.0, 45.0)])
def test_all_points_are_within_the_axes_and_between_two_ticks_at_least(values: tuple[float, float]) -> None:
    picture = drawn([Line("one", list(zip((1, 2), values, strict=True)), 1)])
    (frame,) = of_role(picture, "frame")
    top, height = float(frame.attrib["y"]), float(frame.attrib["height"])
    (line,) = picture.iter(f"{SVG}polyline")
    heights = [float(pair.split(",")[1]) for pair in line.attrib["points"].split()]
    assert all(top - 0.1 <= one <= top + height + 0.1 for one in heights)
    ticks = [one for one in picture.iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    assert len(ticks) >= 2


def test_one_point_is_a_plot_and_none_is_an_error() -> None:
    assert len(list(drawn([Line("one", [(64, 1e-7)], 1)]).iter(f"{SVG}polyline"))) == 1
    with pytest.raises(ValueError, match="with points above 0, got none for 'times'"):
        drawn([Line("none", [(64, 0.0)], 1)])
