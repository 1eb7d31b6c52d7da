// The table of trials: sorted by its heads, filtered, in pages.

const PAGE = 50;

class Trials {
  constructor(root) {
    this.name = root.dataset.study;
    Object.assign(this, block(`${this.name}-rows`));
    this.root = root;
    this.table = root.querySelector("table");
    this.marked = new Set(this.interpolated);
    this.texts = null; // of rows in lower case, made when somebody looks for one
    this.sorted = { column: null, descending: false };
    this.page = 0;
    this.chosen = new Map();
    this.wanted = "";
    this.status = made("p", { role: "status" });
    this.heads();
    this.controls();
    this.pager();
    this.show();
  }

  // What is shown of a trial that is opened: read when the first one is.
  details() {
    this.known ??= block(`${this.name}-details`);
    return this.known;
  }

  open(row) {
    openTrial(this, this.rows[row][0], row, this.ids[row]);
  }

  openNamed(name) {
    const row = this.rows.findIndex((cells) => cells[0] === name);
    if (row >= 0) this.open(row);
    return row >= 0;
  }

  openPlace(place) {
    const row = this.ids.indexOf(place);
    if (row >= 0) this.open(row);
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
    const selects = [], labels = [];
    this.columns.forEach((column, number) => {
      if (!column.choices) return;
      const values = [...new Set(this.rows.map((row) => row[number]))];
      if (values.length < 2) return;
      values.sort((one, other) => (one > other ? 1 : -1));
      const select = made("select", {
        onchange: () => {
          const at = select.selectedIndex - 1;
          if (at < 0) this.chosen.delete(number);
          else this.chosen.set(number, values[at]);
          this.restart();
        },
      }, made("option", {}, "all"),
      ...values.map((value) => made("option", {}, written(value, column.kind))));
      selects.push(select);
      labels.push(made("label", {}, isolated(column.title), select));
    });
    const clear = made("button", {
      type: "button",
      onclick: () => {
        find.value = this.wanted = "";
        for (const select of selects) select.selectedIndex = 0;
        this.chosen.clear();
        this.restart();
      },
    }, "Show all");
    const controls = this.root.querySelector(".controls");
    controls.append(made("label", {}, made("span", {}, "find"), find),
      ...labels, clear);
    controls.hidden = false;
  }

  pager() {
    const turn = (by) => () => { this.page += by; this.show(); };
    this.before = made("button", { type: "button", onclick: turn(-1) }, "Previous");
    this.after = made("button", { type: "button", onclick: turn(1) }, "Next");
    const pager = this.root.querySelector(".pager");
    pager.append(this.before, this.after);
    pager.hidden = false;
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

  // Numbers of the rows that are asked for, in the order that is asked for; missing values last.
  listed() {
    let found = this.rows.map((_, number) => number);
    for (const [column, value] of this.chosen) {
      found = found.filter((number) => this.rows[number][column] === value);
    }
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
      ? "Best first; open one for its curve, seconds, spec and command"
      : `By ${this.columns[this.sorted.column].title}; open one for its curve and command`;
    this.status.textContent = shown.length
      ? `${range} of ${number}${listed.length < this.rows.length ? ` (${all} in all)` : ""}`
      : `None of ${all} fits; show all, or look for something else.`;
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
    return made("td", { class: "number" }, text + star);
  }
}
