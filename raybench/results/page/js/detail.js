// A trial that is opened: its curve, where its seconds went, its spec, the command to run it again.

// As a shell takes it; `shlex.quote` of Python.
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function commandOf(settings) {
  const parts = settings.map(([key, value]) => `--set ${quoted(`${key}=${value}`)}`);
  return ["python -m raybench.train", ...parts].join(" \\\n  ");
}

function specOf(settings) {
  return settings.map(([key, value]) => `${key}: ${value}`).join("\n");
}

function copyable(text, what) {
  const pre = made("pre", { tabindex: "0" }, made("code", { dir: "ltr" }, text));
  const said = made("span", { role: "status" });
  if (!navigator.clipboard) return made("div", { class: "copyable" }, pre);
  const button = made("button", {
    type: "button",
    onclick: () => navigator.clipboard.writeText(text).then(
      () => { said.textContent = "copied"; },
      () => { said.textContent = "not copied: mark it and copy it by hand"; }),
  }, `Copy the ${what}`);
  return made("div", { class: "copyable" }, pre, button, said);
}

function ledger(phases, seconds, wall) {
  const most = Math.max(...seconds, 1e-9);
  const rows = phases.map((phase, i) => {
    const bar = made("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * seconds[i]) / most}%`;
    return made("tr", {}, made("th", { scope: "row" }, phase),
      made("td", { class: "number" }, written(seconds[i], "seconds")),
      made("td", { class: "bars" }, bar));
  });
  const foot = made("tr", {}, made("th", { scope: "row" }, "start to end"),
    made("td", { class: "number" }, written(wall, "seconds")), made("td", {}));
  return made("table", { class: "ledger" },
    made("caption", {}, "Where its seconds went; only train counts for the target"),
    made("thead", {}, made("tr", {}, made("th", { scope: "col" }, "phase"),
      made("th", { scope: "col", class: "number" }, "seconds"),
      made("th", { scope: "col" }, "share"))),
    made("tbody", {}, ...rows), made("tfoot", {}, foot));
}

const dialog = made("dialog", { "aria-labelledby": "opened" });
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => {
  history.replaceState(null, "", `${location.pathname}${location.search}`);
});

// Opens the trial in row `row` of a study's data (`place`: its number among the records).
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
    made("figure", {}, curve(details, seconds, values), curveTable(details, seconds, values)),
    ledger(details.phases, details.ledgers[row], details.walls[row]),
    made("h3", {}, "Run it again"), copyable(commandOf(settings), "command"),
    made("h3", {}, "Its spec, where it is not the default"), copyable(specOf(settings), "spec"));
  history.replaceState(null, "", `#${study.name}-t${place}`);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
