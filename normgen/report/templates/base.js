// State, formats and the small drawing kit all figures share. Text only ever enters the page as text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SHARED = ["op", "direction", "dtype", "place"];
const DEFAULTS = { op: "", direction: "", dtype: "", place: "", outcome: "", kind: "", q: "", sort: "us", dir: "asc",
  y: "relative", run: "", knob: "" };
const state = { ...DEFAULTS };
const redraws = [];

function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(DEFAULTS)) state[name] = given.get(name) ?? DEFAULTS[name];
}

function change(changes) {
  Object.assign(state, changes);
  const kept = Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]);
  history.replaceState(null, "", kept.length ? "#" + new URLSearchParams(kept) : location.pathname + location.search);
  redraw();
}

function redraw() {
  hideTip();
  chooseColours();
  for (const draw of redraws) draw();
}

const passes = (one) => SHARED.every((name) => !state[name] || one[name] === state[name]);

function make(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const svg = (tag, attributes, ...children) => make("svg:" + tag, attributes, ...children);

function figures(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  return value >= 10 ** (digits - 1) ? value.toFixed(0) : value.toPrecision(digits);
}
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const shape = (one) => `${one.rows}×${one.cols}`;
const percent = (value) => (value === null || value === undefined ? "–" : value.toFixed(1) + " %");
const unique = (values) => [...new Set(values)].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));

// A colour for each op, direction, dtype and place, the same in every figure; a dash for each run of one. No colour
// stands for two of them: of those that the filters leave, the eight with most points have one, the others are grey.
const COLOURS = 8;
let coloured = [];
const ordinal = new Map();
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
function family(one) { return [one.op, one.direction, one.dtype, one.place].join(" "); }
function chooseColours() {
  const points = new Map();
  const count = (one, more) => points.set(family(one), (points.get(family(one)) ?? 0) + more);
  data.roof.filter(passes).forEach((one) => count(one, one.points.length));
  data.series.filter(passes).forEach((one) => count(one, one.kind === "search" ? 1000 : 1)); // searches have lines first
  coloured = [...points].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1)).slice(0, COLOURS).map(([name]) => name);
}
const hasColour = (one) => coloured.includes(family(one));
const colour = (one) => (hasColour(one) ? `var(--c${coloured.indexOf(family(one))})` : "var(--grey)");
data.series.forEach((one) => {
  const before = ordinal.get(family(one)) ?? 0;
  one.dash = DASHES[before % DASHES.length];
  ordinal.set(family(one), before + 1);
});

function linear(domain, range) {
  const [d0, d1] = domain, [r0, r1] = range;
  return (value) => r0 + ((value - d0) / (d1 - d0 || 1)) * (r1 - r0);
}

function niceTicks(low, high, count) {
  const span = high - low || 1, rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(tick);
  return ticks;
}
const tickText = (tick) => String(Number(tick.toPrecision(6)));

function frame(host, { height, left = 58, right = 18, top = 14, bottom = 42, label }) {
  const width = Math.max(320, host.clientWidth || 1000);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  host.replaceChildren(root);
  return { root, width, height, x0: left, x1: width - right, y0: height - bottom, y1: top };
}

function yAxis(box, scale, ticks, title, text = tickText) {
  for (const tick of ticks) {
    const y = scale(tick);
    box.root.append(svg("line", { class: "grid", x1: box.x0, x2: box.x1, y1: y, y2: y }));
    box.root.append(svg("text", { x: box.x0 - 8, y: y + 4, "text-anchor": "end" }, text(tick)));
  }
  const middle = (box.y0 + box.y1) / 2;
  const turned = `rotate(-90 14 ${middle})`;
  box.root.append(svg("text", { x: 14, y: middle, transform: turned, "text-anchor": "middle" }, title));
}

function xAxis(box, scale, ticks, title, text = tickText) {
  box.root.append(svg("line", { class: "axis", x1: box.x0, x2: box.x1, y1: box.y0, y2: box.y0 }));
  for (const tick of ticks) {
    box.root.append(svg("line", { class: "axis", x1: scale(tick), x2: scale(tick), y1: box.y0, y2: box.y0 + 4 }));
    box.root.append(svg("text", { x: scale(tick), y: box.y0 + 17, "text-anchor": "middle" }, text(tick)));
  }
  box.root.append(svg("text", { x: (box.x0 + box.x1) / 2, y: box.height - 4, "text-anchor": "middle" }, title));
}

function nothing(host, why) { host.replaceChildren(make("p", { class: "muted" }, why)); }

function showTip(text, clientX, clientY) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = clientY + 16 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(4, left) + scrollX}px`;
  tip.style.top = `${(below ? clientY + 16 : clientY - tip.offsetHeight - 12) + scrollY}px`;
}
function hideTip() { byId("tip").hidden = true; }

function withTip(node, text) {
  const atNode = () => { const at = node.getBoundingClientRect(); showTip(text, at.right, at.top); };
  node.addEventListener("mousemove", (event) => showTip(text, event.clientX, event.clientY));
  node.addEventListener("mouseleave", hideTip);
  node.addEventListener("focus", atNode);
  node.addEventListener("blur", hideTip);
  return node;
}

function selectOf(name, title, values, all = "all") {
  const options = [make("option", { value: "" }, all), ...values.map((v) => make("option", { value: v }, v))];
  const select = make("select", { id: `filter-${name}`, onchange: () => change({ [name]: select.value }) }, ...options);
  redraws.push(() => { select.value = state[name]; });
  return make("label", {}, title, select);
}

function swatch(stroke, dash, dot) {
  const line = svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke, "stroke-width": 2.2, "stroke-dasharray": dash });
  return svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, line,
    dot ? svg("circle", { cx: 13, cy: 5, r: 4, fill: stroke }) : null);
}
