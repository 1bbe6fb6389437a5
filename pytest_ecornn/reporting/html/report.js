"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const filters = document.getElementById("filters");
const dialog = document.getElementById("details");
const columnNames = { timing: "as called", replay: "device only" };
const text = (column, row) => data.texts[data[column][row]];

function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  made.append(...[content].flat());
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Filters, the order and the open details are all in the address, so that a link shows the same.

const state = { search: "", column: "timing", sort: "", row: "", cell: "", dtype: "", mode: "", device: "", verdict: "" };
const tables = [...document.querySelectorAll(".scroll")].map((region) => ({
  region,
  body: region.querySelector("tbody"),
  headers: [...region.querySelectorAll("thead th[data-key]")],
  lines: [...region.querySelectorAll("tbody tr")].map((line, order) => ({
    line,
    order,
    tokens: line.dataset.case.toLowerCase().split("-"),
    speeds: [...line.querySelectorAll("td:not(.answer)")].map((cell) => parseFloat(cell.dataset.speed)),
  })),
}));

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(state)) state[key] = given.get(key) ?? (key === "column" ? "timing" : "");
  if (!tables.some(({ region }) => region.dataset.column === state.column)) state.column = "timing";
}

function writeAddress() {
  const given = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) if (value && (key !== "column" || value !== "timing")) given.set(key, value);
  history.replaceState(null, "", given.size ? `#${given}` : location.pathname + location.search);
}

function shows({ line, tokens }) {
  const terms = state.search.toLowerCase().split(/[\s,-]+/).filter(Boolean);
  const chosen = ["cell", "dtype", "mode", "device", "verdict"];
  return chosen.every((key) => !state[key] || line.dataset[key] === state[key])
    && terms.every((term) => tokens.some((token) => (/\d$/.test(term) ? token === term : token.startsWith(term))));
}

const isText = (key) => key === "case" || key === "verdict";

function sortKey(key) {
  return isText(key) ? ({ line }) => line.dataset[key] : ({ speeds }) => speeds[Number(key)];
}

// Lines without a speed are last in either direction.
function sorted(lines) {
  if (!state.sort) return lines;
  const [key, direction] = state.sort.split(".");
  const of = sortKey(key);
  const sign = direction === "up" ? 1 : -1;
  const isKnown = (line) => isText(key) || of(line) > 0;
  const known = lines.filter(isKnown);
  const compare = isText(key)
    ? (a, b) => of(a).localeCompare(of(b), undefined, { numeric: true })
    : (a, b) => of(a) - of(b);
  known.sort((a, b) => sign * compare(a, b) || a.order - b.order);
  return [...known, ...lines.filter((line) => !isKnown(line))];
}

// Names rise first, speeds fall first; a third click restores the order of the run.
function nextSort(key) {
  const [first, second] = isText(key) ? ["up", "down"] : ["down", "up"];
  if (state.sort === `${key}.${first}`) return `${key}.${second}`;
  return state.sort === `${key}.${second}` ? "" : `${key}.${first}`;
}

function update() {
  let shown = 0;
  let all = 0;
  for (const { region, body, headers, lines } of tables) {
    region.hidden = region.dataset.column !== state.column;
    if (region.hidden) continue;
    all = lines.length;
    for (const one of lines) {
      one.line.hidden = !shows(one);
      shown += !one.line.hidden;
    }
    if (body.dataset.sort !== state.sort) {
      body.append(...sorted(lines).map(({ line }) => line));
      body.dataset.sort = state.sort;
    }
    for (const header of headers) {
      const [key, direction] = state.sort.split(".");
      if (state.sort && header.dataset.key === key) header.setAttribute("aria-sort", direction === "up" ? "ascending" : "descending");
      else header.removeAttribute("aria-sort");
    }
  }
  document.getElementById("count").textContent = `${shown} of ${all} cases`;
  writeAddress();
}

// Details of one row.

function figures(name, timing) {
  const [times, speeds, further, samples] = timing;
  const lines = [["time of a call", durationInterval(...times)]];
  for (const [baseline, speed, verdict] of speeds) {
    lines.push([`beside ${data.texts[baseline]}`, `${data.texts[speed]}, ${data.texts[verdict]}`]);
  }
  lines.push(["more", further.map((number) => data.texts[number]).join("; ")]);
  const list = element("dl", lines.map(([key, value]) => element("div", [element("dt", key), element("dd", value)])));
  return [element("h3", name), list, samples.length > 1 ? samplesPlot(name, samples) : ""];
}

// As a shell takes it.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

function showDetails(row) {
  const [name, test] = [text("implementation", row), text("case", row)];
  const facts = [["status", text("status", row)], ["error", text("error", row)], ["what ran", text("notes", row)], ["host", text("beside", row)]];
  const list = facts.filter(([, value]) => value).map(([key, value]) => element("div", [element("dt", key), element("dd", value)]));
  const timings = Object.entries(columnNames).filter(([column]) => data[column][row]);
  dialog.replaceChildren(
    element("h2", `${name} on ${test}`, { id: "details-title", tabindex: "-1", autofocus: "" }),
    element("dl", list),
    ...timings.flatMap(([column, label]) => figures(label, data[column][row])),
    element("h3", "Verify and time this case"),
    element("pre", `pytest --ecornn-bench --ecornn-only ${quoted(name)} --ecornn-case ${quoted(test)}`, { tabindex: "0" }),
    element("p", "Add what the run was given besides, as --ecornn-implementations: see The run."),
    element("form", element("button", "Close"), { method: "dialog" }),
  );
  state.row = `${name} ${test}`;
  writeAddress();
  if (!dialog.open) dialog.showModal();
}

function openLinked() {
  const found = data.case.findIndex((_, row) => `${text("implementation", row)} ${text("case", row)}` === state.row);
  if (found >= 0) {
    showDetails(found);
    return;
  }
  if (dialog.open) dialog.close();
  state.row = "";
  writeAddress();
}

// What the page offers only with JavaScript.

function prepare() {
  for (const select of filters.querySelectorAll("select")) {
    const key = select.dataset.filter;
    const values = new Set(tables.flatMap(({ lines }) => lines.map(({ line }) => line.dataset[key])));
    for (const value of [...values].sort()) select.append(element("option", value, { value }));
    select.addEventListener("change", () => { state[key] = select.value; update(); });
  }
  for (const { headers } of tables) {
    for (const header of headers) {
      const button = element("button", header.textContent, { type: "button" });
      button.addEventListener("click", () => {
        state.sort = nextSort(header.dataset.key);
        update();
      });
      header.replaceChildren(button);
    }
  }
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => {
    for (const key of Object.keys(state)) if (key !== "column") state[key] = "";
    setTimeout(showState);
  });
  filters.search.addEventListener("input", () => { state.search = filters.search.value; update(); });
  for (const radio of filters.querySelectorAll("[name=column]")) {
    radio.addEventListener("change", () => { state.column = radio.value; update(); });
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-row]");
    if (button) showDetails(Number(button.dataset.row));
  });
  dialog.addEventListener("close", () => { state.row = ""; writeAddress(); });
  addEventListener("hashchange", () => { readAddress(); showState(); openLinked(); });
  filters.hidden = false;
}

function showState() {
  filters.search.value = state.search;
  for (const select of filters.querySelectorAll("select")) select.value = state[select.dataset.filter];
  for (const radio of filters.querySelectorAll("[name=column]")) radio.checked = radio.value === state.column;
  update();
}

if (data.pictures.length) replaceWhenNear(document.querySelectorAll("figure"), showDetails);
if (tables.length) {
  prepare();
  readAddress();
  showState();
  openLinked();
}
