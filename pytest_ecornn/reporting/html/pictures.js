"use strict";

// What pictures show, from the page's data: curves and rooflines in place of static ones, and the samples of a timing.

const hasPlace = (value) => value > 0 && value < Infinity;

// Points of an implementation: times with intervals, or the rates of a roofline.
function lineOf(picture, rows, n) {
  const name = text("implementation", rows[0]);
  const points = rows.map((row, i) => {
    const [y, low, high] = picture.y ? [picture.y[n][i]] : data[picture.column][row][0];
    const value = picture.y ? `${significant(y ?? NaN)} ${picture.axes[1]}` : durationInterval(y, low, high);
    const interval = hasPlace(low) && hasPlace(high) ? { low, high } : {};
    return { x: picture.x[n][i], y, ...interval, row, text: value, label: `${name} on ${text("case", row)}, ${value}` };
  });
  return { name, colour: picture.colours[n], points: points.filter(({ y }) => hasPlace(y)) };
}

// What the machine's memory and products allow, by the operations of a byte.
function roofLine([gbPerSecond, gflopPerSecond]) {
  const at = (x) => Math.min(gbPerSecond * x, gflopPerSecond);
  const name = `memory ${significant(gbPerSecond)} GB/s, products ${significant(gflopPerSecond)} GFLOP/s`;
  const ridge = { x: gflopPerSecond / gbPerSecond, y: gflopPerSecond };
  return { name, colour: "ink", at, textAt: (x) => `${significant(at(x))} GFLOP/s`, points: [ridge] };
}

// In the order of the static legend: from the line that ends highest to the one that ends lowest.
function pictureOf(picture, label) {
  const lines = picture.rows.map((rows, n) => lineOf(picture, rows, n)).filter(({ points }) => points.length);
  if (picture.roof) lines.push(roofLine(picture.roof));
  lines.sort((a, b) => b.points.at(-1).y - a.points.at(-1).y);
  return { label, axes: picture.axes, aspect: 0.6, isLog: true, isJoined: !picture.roof, lines };
}

// Each picture is replaced when it comes near the window. figures: in the order of the data.
function replaceWhenNear(figures, open) {
  const pictures = new Map([...figures].map((figure, n) => [figure, data.pictures[n]]));
  const watch = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter(({ isIntersecting }) => isIntersecting)) {
      watch.unobserve(target);
      const label = target.getAttribute("aria-label");
      const plot = new Plot(pictureOf(pictures.get(target), label), open);
      target.replaceChildren(element("figcaption", label), plot.element);
      for (const name of ["role", "aria-label"]) target.removeAttribute(name);
    }
  }, { rootMargin: "50%" });
  for (const figure of figures) watch.observe(figure);
}

function samplesPlot(name, samples) {
  const points = samples.flatMap((sample, n) => {
    const value = sample === null ? "" : duration(sample);
    return sample === null ? [] : [{ x: n + 1, y: sample, text: value, label: value }];
  });
  if (!points.length) return "";
  const [low, high] = [Math.min, Math.max].map((end) => duration(end(...points.map(({ y }) => y))));
  const label = `Blocks in order, ${name}: ${low} to ${high} a call`;
  const line = { name: "a call", colour: "blue", points };
  return new Plot({ label, axes: ["block", "us a call"], aspect: 0.3, isLog: false, isJoined: true, lines: [line] }).element;
}
