"use strict";

// How a picture of plot.js is drawn: by uPlot, in the colours of the page.

const labelSpacing = [48, 18]; // pixels from label to label, along x and y
const axisNumber = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });

// Equal steps over a narrow range; ones, twos and fives of powers of ten over a wider one; powers of ten over a wide one.
function logTicks(low, high) {
  const step = 10 ** Math.floor(Math.log10((high - low) / 2));
  const steps = Array.from({ length: 21 }, (_, n) => Number(((Math.ceil(low / step) + n) * step).toPrecision(12)));
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: 2 + Math.ceil(Math.log10(high / low)) }, (_, n) => 10 ** (first + n));
  const factors = high > 1e3 * low ? [1] : [1, 2, 5];
  const ticks = high < 4 * low ? steps : powers.flatMap((power) => factors.map((factor) => factor * power));
  return ticks.filter((tick) => low <= tick && tick <= high);
}

// Without those whose label would lie over the one before.
function ticksWithRoom(chart, ticks, scale, spacing) {
  let last = -Infinity;
  return ticks.filter((tick) => {
    const place = chart.valToPos(tick, scale);
    const hasRoom = Math.abs(place - last) >= spacing;
    if (hasRoom) last = place;
    return hasRoom;
  });
}

// n: 0 of x, 1 of y. ticks: what may be marked, logTicks where there are none. style: of an element with the colours.
function axis(n, label, isLog, ticks, style) {
  const stroke = () => style.color;
  const line = { stroke: () => style.borderTopColor, width: 1 };
  const font = "12px system-ui, sans-serif";
  const splits = (chart, side, low, high) => {
    const found = ticks?.filter((tick) => low <= tick && tick <= high) ?? logTicks(low, high);
    return ticksWithRoom(chart, found, "xy"[n], labelSpacing[n]);
  };
  return {
    label, labelSize: 22, labelGap: 0, size: [34, 68][n], font, labelFont: font, stroke, grid: line, ticks: line,
    values: (chart, found) => found.map(axisNumber),
    ...(isLog ? { splits, filter: (chart, found) => found } : {}),
  };
}

// The y that are shown, with a margin; what they were where nothing is. lines: those of a plot, points: in order of x.
function yRange(chart, { lines, points, xs, isLog }) {
  const [low, high] = chart.series[0].idxs.map((index) => xs[index]);
  const isShown = (line) => chart.series[line + 1].show;
  const seen = points.filter(({ x, line }) => low <= x && x <= high && isShown(line));
  const between = lines.flatMap(({ at }, line) => (at && isShown(line) ? [at(low), at(high)] : []));
  const values = [...seen.flatMap(({ y, low: bottom = y, high: top = y }) => [bottom, top]), ...between];
  if (!values.length) return [chart.scales.y.min ?? 1, chart.scales.y.max ?? 10];
  const [least, most] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const margin = isLog ? Math.max(1.1, (most / least) ** 0.06) : 0.08 * (most - least) || 1;
  return isLog ? [least / margin, most * margin] : [least - margin, most + margin];
}

// A mark for each point of a line, and its interval.
function drawPoints(chart, points, colour) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = 1.5 * uPlot.pxRatio;
  for (const { x, y, low = y, high = y } of points) {
    const left = chart.valToPos(x, "x", true);
    const [top, middle, bottom] = [high, y, low].map((value) => chart.valToPos(value, "y", true));
    ctx.beginPath();
    ctx.moveTo(left, top);
    ctx.lineTo(left, bottom);
    ctx.stroke();
    ctx.beginPath();
    ctx.arc(left, middle, 3.5 * uPlot.pxRatio, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.restore();
}

// Returns the chart of a Plot, in its area.
function createChart(plot, size) {
  const { area, axes, isJoined, isLog, lines, points, xs } = plot;
  const style = getComputedStyle(area);
  const scale = { distr: isLog ? 3 : 1, time: false };
  const sizes = isJoined ? [...new Set(points.map(({ x }) => x))] : null;
  const valueOf = (point, line) => (point?.line === line ? point.y : null);
  const values = lines.map(({ at }, line) => xs.map((x, n) => (at ? at(x) : valueOf(points[n - 1], line))));
  const series = lines.map(({ at }, line) => ({
    stroke: () => plot.colour(line), width: 2, dash: at && [6, 4], spanGaps: true, points: { show: false },
    ...(isJoined || at ? {} : { paths: () => null }),
  }));
  const marks = (chart, n) => drawPoints(chart, points.filter(({ line }) => line === n - 1), plot.colour(n - 1));
  const options = {
    ...size,
    legend: { show: false },
    axes: [axis(0, axes[0], isLog, sizes, style), axis(1, axes[1], isLog, null, style)],
    scales: {
      x: { ...scale, range: (chart, low, high) => [low, high] },
      y: { ...scale, range: (chart) => yRange(chart, plot) },
    },
    series: [{}, ...series],
    cursor: {
      drag: { x: true, y: true, uni: 40, dist: 5, click: () => {} },
      bind: { dblclick: () => () => plot.showAll() },
      move: (chart, left, top) => { plot.look(left, top); return [left, top]; },
      dataIdx: (chart, n) => plot.indexAtCursor(n - 1),
      points: { size: 9 },
    },
    hooks: {
      drawSeries: [(chart, n) => lines[n - 1].at || marks(chart, n)],
      setCursor: [() => plot.readOut()],
      setSelect: [() => { plot.reset.disabled = false; }],
    },
  };
  return new uPlot(options, [xs, ...values], area);
}
