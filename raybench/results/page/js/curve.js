// A trial's learning curve as SVG.

const WIDTH = innerWidth < 640 ? 340 : 520, HEIGHT = 240, LEFT = 56, RIGHT = 12, TOP = 14, BOTTOM = 40;

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Round numbers from `low` to `high`, about `wanted` of them.
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

// `details` has the metric and the target; seconds and values are one trial's.
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

function curveTable(details, seconds, values) {
  const kind = details.isShare ? "share" : "number";
  const rows = seconds.map((second, i) => made("tr", {},
    made("th", { scope: "row", class: "number" }, written(second, "seconds")),
    made("td", { class: "number" }, written(values[i], kind))));
  return made("details", {}, made("summary", {}, "Its numbers as a table"),
    made("table", {}, made("caption", {}, `${details.axis}, ${rows.length} evaluations`),
      made("thead", {}, made("tr", {},
        made("th", { scope: "col", class: "number" }, "seconds of training"),
        made("th", { scope: "col", class: "number" }, details.metric))),
      made("tbody", {}, ...rows)));
}
