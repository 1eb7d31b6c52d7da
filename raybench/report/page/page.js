(() => {
"use strict";
// Formatting of values.

const MISSING = "-";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const HUNDREDTHS = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

function written(value, kind) {
  if (value === null) return MISSING;
  if (kind === "text") return value;
  if (kind === "count") return WHOLE.format(value);
  if (kind === "seconds") return HUNDREDTHS.format(value);
  if (kind === "share") return `${(100 * value).toFixed(1)} %`;
  if (kind === "rate") return String(Number(value.toPrecision(3)));
  return Math.abs(value) >= 1000 ? WHOLE.format(value) : String(Number(value.toPrecision(4)));
}

// Makes an HTML element; strings become text, never markup.
function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Isolates text that may run from right to left.
const isolated = (text) => made("bdi", {}, text);
const block = (name) => JSON.parse(document.getElementById(name).textContent);
// Numeric cells, column heads (`columns`: [title, whether the column is numeric]) and row heads.
const numeric = (text) => made("td", { class: "number" }, text);
const headed = (columns) => made("thead", {}, made("tr", {}, ...columns.map(([title, isNumber]) =>
  made("th", { scope: "col", class: isNumber ? "number" : null }, title))));
const rowHead = (text, isNumber) => made("th", { scope: "row", class: isNumber ? "number" : null }, text);

// A trial's learning curve as SVG.

const WIDTH = innerWidth < 640 ? 340 : 520, HEIGHT = 240, LEFT = 56, RIGHT = 12, TOP = 14, BOTTOM = 40;

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Returns about `wanted` round numbers from `low` to `high`.
function ticks(low, high, wanted) {
  const rough = (high - low || Math.abs(high) || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) {
    found.push(Number(at.toPrecision(10)));
  }
  return found;
}

// `details` has the metric and the target; `seconds` and `values` are the points of one trial.
function curve(details, seconds, values) {
  const points = seconds.map((x, i) => [x, values[i]]).filter(([x, y]) => x !== null && y !== null);
  if (!points.length) return made("p", {}, "No evaluation was recorded.");
  const factor = details.isShare ? 100 : 1, unit = details.isShare ? " %" : "";
  const name = (value) => `${Number((factor * value).toPrecision(4))}${unit}`;
  const ys = points.map((point) => point[1]);
  if (details.target !== null) ys.push(details.target);
  const least = Math.min(...ys), most = Math.max(...ys);
  const margin = (most - least || Math.abs(most) || 1) * 0.06;
  const end = Math.max(...points.map((point) => point[0])) || 1;
  const low = least - margin, high = most + margin;
  const x = (value) => LEFT + (value / end) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const first = points[0], last = points[points.length - 1];
  const label = `Learning curve, ${details.axis}: ${name(first[1])} after ${first[0]} s, ` +
    `${name(last[1])} after ${last[0]} s of training.`;
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const at of ticks(low, high, 4)) {
    svg.append(drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(at), y2: y(at), class: "grid" }));
    svg.append(drawn("text", { x: LEFT - 6, y: y(at) + 4, class: "end" }, name(at)));
  }
  for (const at of ticks(0, end, 5)) {
    svg.append(drawn("text", { x: x(at), y: HEIGHT - BOTTOM + 18, class: "middle" }, String(at)));
  }
  svg.append(drawn("text",
    { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, class: "middle" }, "seconds of training"));
  if (details.target !== null) {
    const at = y(details.target);
    svg.append(drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at, class: "target" }));
    svg.append(drawn("text", { x: LEFT + 4, y: at - 5 }, `target ${name(details.target)}`));
  }
  const path = points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
  svg.append(drawn("polyline", { points: path.join(" "), class: "curve" }));
  for (const point of points) {
    svg.append(drawn("circle", { cx: x(point[0]), cy: y(point[1]), r: 2.5, class: "dot" }));
  }
  return svg;
}

// Dialog of a trial: learning curve, seconds by phase, and the command to run it again.

// Quotes text for a shell, like `shlex.quote` of Python.
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function commandOf(settings) {
  const parts = settings.map(([key, value]) => `--set ${quoted(`${key}=${value}`)}`);
  return ["raybench train", ...parts].join(" \\\n  ");
}

function ledger(phases, seconds, wall) {
  const most = Math.max(...seconds, 1e-9);
  const rows = phases.map((phase, i) => {
    const bar = made("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * seconds[i]) / most}%`;
    return made("tr", {}, rowHead(phase), numeric(written(seconds[i], "seconds")),
      made("td", { class: "bars" }, bar));
  });
  const foot = made("tr", {}, rowHead("start to end"), numeric(written(wall, "seconds")), made("td"));
  return made("table", { class: "ledger" },
    made("caption", {}, "Where its seconds went; only train counts for the target"),
    headed([["phase"], ["seconds", true], ["share"]]),
    made("tbody", {}, ...rows), made("tfoot", {}, foot));
}

const dialog = made("dialog", { "aria-labelledby": "opened" });
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => {
  history.replaceState(null, "", `${location.pathname}${location.search}`);
});

// Opens the dialog of the trial in row `row` of a study's data; `place` is the trial's position
// among the records, and part of its URL.
function openTrial(study, name, row, place) {
  const details = study.details();
  const [seconds, values] = details.curves[row];
  const settings = details.specs[row].map((number) => details.settings[number]);
  const notes = details.notes[row].map(([key, value]) =>
    made("div", {}, made("dt", {}, key), made("dd", {}, isolated(value))));
  const close = made("button", { type: "button", class: "close", onclick: () => dialog.close() },
    "Close");
  dialog.replaceChildren(
    made("header", {}, made("h2", { id: "opened" }, "Trial ", isolated(name)), close),
    made("p", {}, isolated(details.labels[row])),
    made("dl", { class: "provenance" }, ...notes),
    made("figure", {}, curve(details, seconds, values)),
    ledger(details.phases, details.ledgers[row], details.walls[row]),
    made("h3", {}, "Run it again"), made("pre", { tabindex: "0" }, made("code", { dir: "ltr" }, commandOf(settings))));
  history.replaceState(null, "", `#${study.name}-t${place}`);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

// The table of trials, which can be sorted and searched and is divided into pages.

const PAGE = 50;

class Trials {
  constructor(root) {
    this.name = root.dataset.study;
    Object.assign(this, block(`${this.name}-rows`));
    this.root = root;
    this.table = root.querySelector("table");
    this.marked = new Set(this.interpolated);
    this.texts = null; // text of each row in lower case, made for the first search
    this.sorted = { column: null, descending: false };
    this.page = 0;
    this.wanted = "";
    this.status = made("p", { role: "status" });
    this.heads();
    this.controls();
    this.pager();
    this.show();
  }

  // Returns the data of the dialogs, parsed when the first dialog is opened.
  details() {
    this.known ??= block(`${this.name}-details`);
    return this.known;
  }

  // Opens the dialog of the trial in a row; returns false for row -1 (no such trial).
  open(row) {
    if (row >= 0) openTrial(this, this.rows[row][0], row, this.ids[row]);
    return row >= 0;
  }

  openNamed(name) {
    return this.open(this.rows.findIndex((cells) => cells[0] === name));
  }

  heads() {
    const cells = this.columns.map((column, number) => made("th",
      { scope: "col", class: column.kind === "text" ? null : "number" },
      made("button", { type: "button", onclick: () => this.sort(number) },
        isolated(column.title), made("span", { class: "arrow", "aria-hidden": "true" }))));
    this.table.tHead.replaceChildren(made("tr", {}, ...cells));
  }

  controls() {
    const find = made("input", {
      type: "search",
      oninput: (event) => { this.wanted = event.target.value.trim().toLowerCase(); this.restart(); },
    });
    this.root.querySelector(".controls").append(made("label", {}, made("span", {}, "find"), find));
  }

  pager() {
    const turn = (by) => () => { this.page += by; this.show(); };
    this.before = made("button", { type: "button", onclick: turn(-1) }, "Previous");
    this.after = made("button", { type: "button", onclick: turn(1) }, "Next");
    const pager = this.root.querySelector(".pager");
    pager.append(this.before, this.after);
    this.root.querySelector(".scroll").before(this.status);
  }

  sort(column) {
    const again = this.sorted.column === column;
    const descending = again ? !this.sorted.descending : this.columns[column].descending;
    this.sorted = { column, descending };
    [...this.table.tHead.rows[0].cells].forEach((cell, number) => {
      const is = number === column;
      if (is) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
      cell.querySelector(".arrow").textContent = is ? (descending ? " ▼" : " ▲") : "";
    });
    this.restart();
  }

  restart() {
    this.page = 0;
    this.show();
  }

  // Returns the numbers of the rows that have the wanted words, sorted; missing values come last.
  listed() {
    let found = this.rows.map((_, number) => number);
    if (this.wanted) {
      this.texts ??= this.rows.map((row) =>
        row.map((value, i) => written(value, this.columns[i].kind)).join(" ").toLowerCase());
      const words = this.wanted.split(/\s+/);
      found = found.filter((number) => words.every((word) => this.texts[number].includes(word)));
    }
    const { column, descending } = this.sorted;
    if (column === null) return found;
    const sign = descending ? -1 : 1;
    return found.sort((one, other) => {
      const a = this.rows[one][column], b = this.rows[other][column];
      if (a === null || b === null) return (a === null) - (b === null);
      return a === b ? 0 : (a < b ? -sign : sign);
    });
  }

  show() {
    const listed = this.listed();
    const from = this.page * PAGE, shown = listed.slice(from, from + PAGE);
    this.table.tBodies[0].replaceChildren(...shown.map((row) => this.row(row)));
    const all = WHOLE.format(this.rows.length), number = WHOLE.format(listed.length);
    const range = `${WHOLE.format(from + 1)} to ${WHOLE.format(from + shown.length)}`;
    this.table.caption.firstChild.textContent = this.sorted.column === null
      ? "Best first, by new seeds where a configuration has them; open one for its curve, seconds and command"
      : `By ${this.columns[this.sorted.column].title}; open one for its curve and command`;
    this.status.textContent = shown.length
      ? `${range} of ${number}${listed.length < this.rows.length ? ` (${all} in all)` : ""}`
      : `None of ${all} has these words.`;
    this.before.disabled = this.page === 0;
    this.after.disabled = from + PAGE >= listed.length;
    this.before.parentElement.hidden = listed.length <= PAGE;
  }

  row(number) {
    const [name, ...cells] = this.rows[number];
    const button = made("button", { type: "button", "aria-haspopup": "dialog" }, isolated(name));
    return made("tr", { onclick: () => this.open(number) },
      made("th", { scope: "row" }, button),
      ...cells.map((value, i) => this.cell(value, this.columns[i + 1], number)));
  }

  cell(value, column, number) {
    const text = written(value, column.kind);
    if (column.kind === "text") return made("td", {}, isolated(text));
    const star = column.marked && value !== null && this.marked.has(number) ? "*" : "";
    return numeric(text + star);
  }
}

// Starts the page: tables, and links that open the dialog of a trial.

document.body.append(dialog);
const tables = new Map();
for (const root of document.querySelectorAll(".trials")) {
  tables.set(root.dataset.study, new Trials(root));
}

// Clicks on links to a trial, or on its marks in a figure.
document.addEventListener("click", (event) => {
  const found = event.target.closest("[data-trial]");
  if (!found) return;
  const study = found.dataset.study ?? found.closest("figure")?.id.split("-")[0];
  if (tables.get(study)?.openNamed(found.dataset.trial)) event.preventDefault();
});

function openAddressed() {
  const match = /^#(s\d+)-t(\d+)$/.exec(location.hash);
  const table = match && tables.get(match[1]);
  table?.open(table.ids.indexOf(Number(match[2])));
}
addEventListener("hashchange", openAddressed);
openAddressed();

})();
