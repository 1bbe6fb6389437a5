"use strict";

// A picture that reacts: the pointer or the arrow keys show values, dragging zooms, the legend hides lines.
//
// picture: label, axes (names of x and y), aspect (height by width), isLog, isJoined, and lines of { name, colour, points }.
// A point has x, y, text and label, and where there are, low, high, and the row that a click opens. A line with `at` has a y
// for any x, and `textAt`.

const charts = new Set();
const clickRadius = 16; // pixels
const least = (list, key) => list.reduce((best, one) => (key(one) < key(best) ? one : best), list[0]);
const moves = {
  ArrowLeft: (to, from) => to.x < from.x,
  ArrowRight: (to, from) => to.x > from.x,
  ArrowUp: (to, from) => to.x === from.x && to.y > from.y,
  ArrowDown: (to, from) => to.x === from.x && to.y < from.y,
};

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw(false)));

class Plot {
  constructor(picture, open) {
    Object.assign(this, { ...picture, open, chart: null, current: null, chosen: null });
    const points = this.lines.flatMap((line, n) => line.points.map((point) => ({ ...point, line: n })));
    this.points = points.sort((a, b) => a.x - b.x);
    const [first, last, margin] = [points[0].x, points.at(-1).x, this.isJoined ? 1.2 : 2];
    const ends = this.isLog ? [first / margin, last * margin] : [first - 0.5, last + 0.5];
    this.xs = [ends[0], ...points.map(({ x }) => x), ends[1]];
    const opens = points.some(({ row }) => row !== undefined);
    this.hint = `Arrow keys move the cursor, dragging zooms${opens ? ", a click or Enter on a point shows its details" : ""}.`;
    this.element = element("div", this.parts(), { class: "plot" });
    this.reset.addEventListener("click", () => this.showAll());
    this.area.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(([{ contentRect }]) => this.resize(Math.floor(contentRect.width))).observe(this.area);
  }

  // The chart's area, what is at the cursor, and the legend with the values of all lines there.
  parts() {
    const label = `${this.label}. ${this.hint}`;
    this.area = element("div", [], { class: "area", tabindex: "0", role: "application", "aria-label": label });
    this.readout = element("output", this.hint);
    this.reset = element("button", "Reset zoom", { type: "button", disabled: "" });
    this.buttons = this.lines.map((line, n) => this.legendButton(line, n));
    this.values = this.lines.map(() => element("td", ""));
    const legend = this.buttons.map((button, n) => element("tr", [element("th", button, { scope: "row" }), this.values[n]]));
    return [this.area, element("p", [this.readout, this.reset]), element("table", legend)];
  }

  legendButton({ name, colour, at }, n) {
    const [sample, line] = ["svg", "line"].map((kind) => document.createElementNS("http://www.w3.org/2000/svg", kind));
    line.setAttribute("class", `stroke-${colour}${at ? " dashed" : ""}`);
    for (const [key, value] of Object.entries({ x2: 24, y1: 6, y2: 6 })) line.setAttribute(key, value);
    sample.append(line);
    const button = element("button", [sample, name], { type: "button", "aria-pressed": "true" });
    button.addEventListener("click", () => {
      const show = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", show);
      this.chart.setSeries(n + 1, { show });
    });
    return button;
  }

  colour(n) {
    return getComputedStyle(this.buttons[n].querySelector("line")).stroke;
  }

  // What is out of sight, as in closed details, keeps no chart.
  resize(width) {
    const size = { width, height: Math.round(Math.min(400, Math.max(180, this.aspect * width))) };
    if (width && this.chart) this.chart.setSize(size);
    else if (width) this.create(size);
    else if (charts.delete(this.chart)) this.chart = this.chart.destroy() ?? null;
  }

  create(size) {
    this.chart = createChart(this, size);
    charts.add(this.chart);
    const { ctx, cursor, over } = this.chart;
    ctx.canvas.setAttribute("role", "img");
    ctx.canvas.setAttribute("aria-label", this.label);
    let down = [0, 0];
    over.addEventListener("mousedown", ({ clientX, clientY }) => { down = [clientX, clientY]; });
    over.addEventListener("click", ({ clientX, clientY }) => {
      const isDrag = Math.hypot(clientX - down[0], clientY - down[1]) > 5;
      const isNear = this.current && Math.hypot(...this.offset(this.current, cursor.left, cursor.top)) <= clickRadius;
      if (isNear && !isDrag) this.openCurrent();
    });
  }

  // Pixels from a place to a point, right and down.
  offset({ x, y }, left, top) {
    return [this.chart.valToPos(x, "x") - left, this.chart.valToPos(y, "y") - top];
  }

  // The points in sight that the cursor may rest on.
  get inSight() {
    const { series, scales } = this.chart;
    const isIn = (value, { min, max }) => min <= value && value <= max;
    const isShown = (line) => !this.lines[line].at && series[line + 1].show;
    return this.points.filter(({ x, y, line }) => isShown(line) && isIn(x, scales.x) && isIn(y, scales.y));
  }

  // Of joined points the nearest size comes first.
  look(left, top) {
    const weight = this.isJoined ? 1e4 : 1;
    const distance = (point) => {
      const [right, down] = this.offset(point, left, top);
      return Math.hypot(weight * right, down);
    };
    this.current = left < 0 ? null : this.chosen ?? least(this.inSight, distance) ?? null;
  }

  // Where a line has a value at the cursor, among xs.
  indexAtCursor(n) {
    if (!this.current) return null;
    if (n < 0 || n === this.current.line || this.lines[n].at) return 1 + this.points.indexOf(this.current);
    return 1 + this.points.findIndex(({ line, x }) => line === n && x === this.current.x) || null;
  }

  readOut() {
    const found = this.current;
    this.readout.textContent = found ? `${this.axes[0]} ${axisNumber(found.x)}: ${found.label}` : this.hint;
    this.lines.forEach((line, n) => {
      const index = this.chart.series[n + 1].show ? this.indexAtCursor(n) : null;
      this.values[n].textContent = index === null ? "" : line.at ? line.textAt(found.x) : this.points[index - 1].text;
    });
  }

  // To the nearest x comes first, and there to the same line.
  press(event) {
    if (event.key === "Enter" && this.current) this.openCurrent();
    if (!(event.key in moves)) return;
    event.preventDefault();
    const from = this.current;
    const place = from ? this.offset(from, 0, 0) : [0, 0];
    const distance = (point) => {
      const [right, down] = this.offset(point, ...place);
      return 1e6 * Math.abs(right) + (right && point.line !== from?.line ? 1e4 : 0) + Math.abs(down);
    };
    this.chosen = least(this.inSight.filter((point) => !from || moves[event.key](point, from)), distance);
    if (!this.chosen) return;
    const [left, top] = this.offset(this.chosen, 0, 0);
    this.chart.setCursor({ left, top });
    this.chosen = null;
  }

  openCurrent() {
    if (this.current.row !== undefined) this.open(this.current.row);
  }

  showAll() {
    this.chart.setScale("x", { min: this.xs[0], max: this.xs.at(-1) });
    this.reset.disabled = true;
  }
}
