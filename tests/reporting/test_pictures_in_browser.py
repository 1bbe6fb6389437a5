"""Pictures of report.html in Chromium: values at the cursor, legend, zoom, keyboard, details, colours, and what stays without.

Needs Playwright and Chromium: without them these tests are skipped, but fail in CI.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ecornn.reporting import html
from pytest_ecornn.reporting.pictures import palette
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row
from tests.helpers.reporting.browser import OpenFile, check_accessibility, wait_until
from tests.helpers.reporting_samples import concluded, row, sample_run, timing

SIZES = (16, 64, 256)
US_A_STEP = {"scan_cpu": 0.5, "sequential": 3.0}
CEILINGS = {"copy_points": {"1000000": 50.0}, "matmul_gflop_per_s": {"float32": 800.0}}
CURVE, ROOFLINE = 0, 1


def case(steps: int) -> str:
    return f"mingru-T{steps}-B8-H64-float32"


def measured() -> list[Row]:
    """Two implementations over three sizes: a curve and a roofline."""
    rows = []
    for name, us in US_A_STEP.items():
        for steps in SIZES:
            one = row(name, case(steps), timing=timing(us * steps, {}))
            assert one.timing
            one.timing.operations, one.timing.bytes, one.timing.gflop_per_s = 10 * steps, 64, 100 / us + steps
            rows.append(one)
    return rows


def rendered() -> str:
    return html.render(replace(sample_run(), ceilings=CEILINGS), concluded(measured()))


@pytest.fixture
def open_page(open_report: OpenFile) -> OpenFile:
    """Opens the page, its pictures in sight one after the other."""

    def open_one(text: str = "", address: str = "", **options: Any) -> Any:
        page = open_report(text or rendered(), address, **{"viewport": {"width": 1200, "height": 2400}, **options})
        if options.get("java_script_enabled", True):
            wait_until(lambda: page.locator("figure canvas").count() == page.locator("figure").count())
        return page

    return open_one


def place(page: Any, picture: int, x: float, y: float) -> tuple[float, float]:
    """Where a picture shows a point, in pixels of the window."""
    code = """([n, x, y]) => {
        const chart = [...charts].find(({ root }) => document.querySelectorAll("figure")[n].contains(root));
        const { left, top } = chart.over.getBoundingClientRect();
        return [left + chart.valToPos(x, "x"), top + chart.valToPos(y, "y")];
    }"""
    return tuple(page.evaluate(code, [picture, x, y]))


def values(page: Any, picture: int = CURVE) -> dict[str, str]:
    """The legend: what each line has at the cursor."""
    rows = page.locator("figure").nth(picture).locator("table tr")
    return {one.locator("th").inner_text(): one.locator("td").inner_text() for one in rows.all()}


def readout(page: Any, picture: int = CURVE) -> str:
    return str(page.locator("figure").nth(picture).locator("output").inner_text())


def axis_range(page: Any, axis: str = "x") -> list[float]:
    """What an axis of the curve shows."""
    return list(page.evaluate("axis => [...charts].map(({ scales }) => [scales[axis].min, scales[axis].max])[0]", axis))


def interval(time_us: float) -> str:
    return formatting.duration_interval(time_us, 0.99 * time_us, 1.01 * time_us)


def test_the_pointer_shows_the_values_of_all_lines_with_intervals(open_page: OpenFile) -> None:
    page = open_page()
    assert set(values(page).values()) == {""}
    left, top = place(page, CURVE, 64, 32)
    page.mouse.move(left + 6, top - 20)
    assert values(page) == {"sequential": interval(192), "scan_cpu": interval(32)}
    assert readout(page) == f"T, time steps 64: scan_cpu on {case(64)}, {interval(32)}"
    page.mouse.move(*place(page, CURVE, 256, 768))
    assert readout(page) == f"T, time steps 256: sequential on {case(256)}, {interval(768)}"
    page.mouse.move(*place(page, CURVE, 33, 7.9))  # closer to a point at 16, but to the size 64
    assert readout(page).startswith("T, time steps 64: scan_cpu")
    page.mouse.move(0, 0)
    assert set(values(page).values()) == {""}


@pytest.mark.parametrize("time_us", [0.01234, 9.996, 99.95, 314.159, 1999.7, 65_432.1, 12_345_678.9])
def test_times_are_written_as_in_the_tables(time_us: float, open_page: OpenFile) -> None:
    page = open_page()
    ends = [time_us, 0.97 * time_us, 1.042 * time_us]
    assert page.evaluate("times => durationInterval(...times)", ends) == formatting.duration_interval(*ends)


def test_a_roofline_shows_the_row_the_rate_and_the_roof_at_its_place(open_page: OpenFile) -> None:
    page = open_page()
    page.mouse.move(*place(page, ROOFLINE, 10, 264))
    assert readout(page, ROOFLINE) == f"operations a byte 10: scan_cpu on {case(64)}, 264 GFLOP/s"
    roof = "memory 50.0 GB/s, products 800 GFLOP/s"
    assert values(page, ROOFLINE) == {"scan_cpu": "264 GFLOP/s", "sequential": "97.3 GFLOP/s", roof: "500 GFLOP/s"}
    corner = "[...charts].map(({ data: [xs, ...lines] }) => lines.map((line) => line[xs.indexOf(16)]))"
    assert 800 in page.evaluate(corner)[ROOFLINE]  # where memory and products allow the same


def test_a_legend_entry_hides_and_shows_a_line(open_page: OpenFile) -> None:
    page = open_page()
    entry = page.locator("figure").first.get_by_role("button", name="sequential")
    full = page.evaluate("[...charts][0].scales.y.max")
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert page.evaluate("[...charts][0].scales.y.max") < full / 2  # the axis fits what is left
    page.mouse.move(*place(page, CURVE, 64, 100))
    assert values(page) == {"sequential": "", "scan_cpu": interval(32)}
    entry.press("Enter")
    assert entry.get_attribute("aria-pressed") == "true"
    page.mouse.move(*place(page, CURVE, 64, 190))
    assert values(page) == {"sequential": interval(192), "scan_cpu": interval(32)}
    assert readout(page).startswith("T, time steps 64: sequential")


def zoom(page: Any, first: float = 30, last: float = 100, top: float | None = None, bottom: float | None = None) -> None:
    """Drags over a part of the curve, from left to right and from top to bottom."""
    top = top or place(page, CURVE, 1, 100)[1]
    page.mouse.move(place(page, CURVE, first, 1)[0], top)
    page.mouse.down()
    page.mouse.move(place(page, CURVE, last, 1)[0], bottom or top, steps=4)
    page.mouse.up()


def test_dragging_zooms_and_a_double_click_or_the_button_resets(open_page: OpenFile) -> None:
    page = open_page()
    reset = page.locator("figure").first.get_by_role("button", name="Reset zoom")
    everything = axis_range(page)
    assert reset.is_disabled()
    zoom(page)
    assert axis_range(page) == pytest.approx([30, 100], rel=0.05)
    assert page.locator("dialog[open]").count() == 0
    page.mouse.dblclick(*place(page, CURVE, 45, 190))
    assert (axis_range(page), reset.is_disabled()) == (everything, True)
    zoom(page)
    reset.click()
    assert (axis_range(page), reset.is_disabled()) == (everything, True)


def test_a_drag_that_ends_where_a_point_comes_to_lie_opens_nothing(open_page: OpenFile) -> None:
    page = open_page()
    low, high = axis_range(page)
    end = 0.7  # of the axis
    last = low * (high / low) ** end
    first = (64 / last**end) ** (1 / (1 - end))  # 64 comes to lie at the same share of the axis
    zoom(page, first, last)
    left, top = place(page, CURVE, 64, 192)
    page.locator("figure").first.get_by_role("button", name="Reset zoom").click()
    assert place(page, CURVE, last, 1)[0] == pytest.approx(left, abs=2)
    zoom(page, first, last, top)
    assert page.locator("dialog[open]").count() == 0
    assert readout(page).startswith("T, time steps 64: sequential")


def test_a_drag_over_both_axes_zooms_both(open_page: OpenFile) -> None:
    page = open_page()
    zoom(page, bottom=place(page, CURVE, 1, 20)[1], top=place(page, CURVE, 1, 400)[1])
    assert [*axis_range(page), *axis_range(page, "y")] == pytest.approx([30, 100, 20, 400], rel=0.05)


def test_arrow_keys_move_the_cursor_and_enter_opens(open_page: OpenFile) -> None:
    page = open_page()
    area = page.locator("figure .area").first
    area.focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
        seen.append(readout(page).removeprefix("T, time steps ").partition(" on ")[0])
    assert seen == [
        "16: sequential", "64: sequential", "64: sequential", "256: sequential", "256: scan_cpu", "64: scan_cpu",
        "16: scan_cpu", "16: scan_cpu",
    ]  # fmt: skip
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] h2").inner_text() == f"scan_cpu on {case(16)}"
    page.keyboard.press("Escape")
    assert area.evaluate("area => area === document.activeElement")


def test_a_click_on_a_point_opens_its_details_and_links_to_them(open_page: OpenFile) -> None:
    page = open_page()
    page.mouse.click(*place(page, CURVE, 64, 100))  # between two points
    assert page.locator("dialog[open]").count() == 0
    left, top = place(page, CURVE, 64, 192)
    page.mouse.click(left + 3, top - 3)
    assert page.locator("dialog[open] h2").inner_text() == f"sequential on {case(64)}"
    assert f"row=sequential+{case(64)}" in page.url
    other = open_page(address=page.url[page.url.index("#") :])
    assert other.locator("dialog[open] h2").inner_text() == f"sequential on {case(64)}"


def test_the_samples_of_the_details_react_too(open_page: OpenFile) -> None:
    page = open_page()
    page.locator("button[data-row]").first.click()
    area = page.locator("dialog .area")
    wait_until(lambda: area.locator("canvas").count() == 1)
    assert "Blocks in order, as called" in area.locator("canvas").get_attribute("aria-label")
    area.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    samples = measured()[0].timing.samples_us  # type: ignore[union-attr]
    sample = formatting.duration(float(f"{samples[1]:.4g}"))
    assert page.locator("dialog output").inner_text() == f"block 2: {sample}"
    count = "charts.size"
    before = page.evaluate(count)
    page.keyboard.press("Escape")
    wait_until(lambda: page.evaluate(count) == before - 1)  # a closed one keeps nothing


def mark_colour(page: Any) -> tuple[int, ...]:
    """The colour of a point of scan_cpu, on the canvas."""
    code = """() => {
        const { ctx, valToPos } = [...charts][0];
        const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
        pixel.drawImage(ctx.canvas, -valToPos(64, "x", true), -valToPos(32, "y", true));
        return [...pixel.getImageData(0, 0, 1, 1).data];
    }"""
    return tuple(page.evaluate(code)[:3])


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def test_pictures_follow_the_colour_scheme(open_page: OpenFile) -> None:
    page = open_page(color_scheme="light")
    of_legend = page.locator("figure").first.get_by_role("button", name="scan_cpu").locator("line").get_attribute("class")
    light, dark = palette.INKS[of_legend.removeprefix("stroke-")]
    wait_until(lambda: mark_colour(page) == rgb(light))
    page.emulate_media(color_scheme="dark")
    wait_until(lambda: mark_colour(page) == rgb(dark))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_pictures(scheme: str, open_page: OpenFile) -> None:
    page = open_page(color_scheme=scheme)
    check_accessibility(page)
    page.locator("figure").first.get_by_role("button", name="sequential").click()
    page.locator("button[data-row]").first.click()
    wait_until(lambda: page.locator("dialog canvas").count() == 1)
    check_accessibility(page)


def test_a_phone_shows_pictures_of_its_width(open_page: OpenFile) -> None:
    page = open_page(viewport={"width": 390, "height": 2400}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.touchscreen.tap(*place(page, CURVE, 64, 80))
    assert values(page) == {"sequential": interval(192), "scan_cpu": interval(32)}
    page.set_viewport_size({"width": 800, "height": 2400})
    wait_until(lambda: page.locator("figure canvas").first.bounding_box()["width"] > 390)
    page.set_viewport_size({"width": 390, "height": 2400})
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_nothing_moves_by_itself(open_page: OpenFile) -> None:
    page = open_page(reduced_motion="reduce")
    page.mouse.move(*place(page, CURVE, 64, 100))
    zoom(page)
    assert page.evaluate("document.getAnimations().length") == 0


def test_without_javascript_the_static_pictures_are_there(open_page: OpenFile) -> None:
    page = open_page(java_script_enabled=False)
    assert page.locator("figure > svg:visible").count() == 2
    assert page.locator("figure polyline").count() == 3  # two curves and a roof
    assert page.locator("canvas").count() == 0


def test_an_injected_script_is_blocked_and_pictures_are_drawn(open_page: OpenFile) -> None:
    injected = rendered().replace("<figure", "<script>window.ran = 1</script><p style='color: red'>x</p><figure", 1)
    page = open_page(injected, expects_errors=True)
    assert page.evaluate("window.ran") is None
    assert page.locator(".curves > p").evaluate("one => getComputedStyle(one).color") != "rgb(255, 0, 0)"
    page.mouse.move(*place(page, CURVE, 64, 32))
    assert values(page)["scan_cpu"] == interval(32)


def test_names_are_text_in_pictures(open_page: OpenFile) -> None:
    name = "<img src=x onerror='window.ran=1'>"
    rows = [replace(one, implementation=name) for one in measured() if one.implementation == "scan_cpu"]
    page = open_page(html.render(sample_run(), concluded(rows)))
    page.mouse.move(*place(page, CURVE, 64, 32))
    assert values(page) == {name: interval(32)}
    assert page.evaluate("window.ran") is None


def test_what_is_no_number_is_left_out(open_page: OpenFile) -> None:
    rows = measured()
    for one in (rows[1], rows[4]):  # of T64
        assert one.timing
        one.timing.time_us, one.timing.gflop_per_s = float("nan"), float("inf")
    page = open_page(html.render(replace(sample_run(), ceilings=CEILINGS), concluded(rows)))
    page.mouse.move(*place(page, CURVE, 64, 32))
    assert "T, time steps" in readout(page)
    assert "T64" not in readout(page)
    page.mouse.move(*place(page, ROOFLINE, 10, 264))
    assert "T64" not in readout(page, ROOFLINE)
