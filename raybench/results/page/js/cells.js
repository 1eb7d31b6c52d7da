// How a value is written: as `_shown` in trials.py does it.

const MISSING = "-";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const HUNDREDTHS = new Intl.NumberFormat("en-US", {
  minimumFractionDigits: 2,
  maximumFractionDigits: 2,
});

function written(value, kind) {
  if (value === null) return MISSING;
  if (kind === "text") return value;
  if (kind === "count") return WHOLE.format(value);
  if (kind === "seconds") return HUNDREDTHS.format(value);
  if (kind === "share") return `${(100 * value).toFixed(1)} %`;
  if (kind === "rate") return String(Number(value.toPrecision(3)));
  return Math.abs(value) >= 1000 ? WHOLE.format(value) : String(Number(value.toPrecision(4)));
}

// Makes an element: texts are texts, never markup.
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

// A text whose letters may run from right to left.
function isolated(text) {
  return made("bdi", {}, text);
}

function block(name) {
  return JSON.parse(document.getElementById(name).textContent);
}
