// Search progress: best-so-far against evaluations, single candidates as dots, failures as crosses under the plot.
const hiddenRuns = new Set();
const searches = data.series.filter((one) => one.kind === "search");
// Of a run that no GPU timed the cost model's word counts; such runs are drawn only where there is no measured one.
const counts = (one, trial) => trial.outcome === (one.measured ? "ok" : "predicted");
const fails = (trial) => trial.outcome !== "ok" && trial.outcome !== "predicted";
const SCALES = {
  relative: { title: "time / best of the run", of: (us, one) => us / lowest(one), text: (v) => `${v.toFixed(3)}×` },
  us: { title: "marginal time, µs", of: (us) => us, text: (v) => `${figures(v)} µs` },
  roof: { title: "% of roofline", of: (us, one) => (one.roof_us ? (100 * one.roof_us) / us : null), text: percent },
};
function lowest(one) { return one.best[one.best.length - 1]; }

function drawProgress() {
  const host = byId("progress"), found = searches.filter((one) => passes(one) && lowest(one) !== null);
  const timed = found.filter((one) => one.measured), shown = timed.length ? timed : found;
  drawRunLegend(shown);
  noteProgress(shown);
  const drawn = shown.filter((one) => !hiddenRuns.has(one.label));
  if (!drawn.length) return nothing(host, "No search matches the filters: a sweep has no order.");
  const scaleKind = SCALES[state.y] ?? SCALES.relative, lanes = drawn.length <= 8 ? drawn.length : 1;
  const box = frame(host, { height: 380 + 13 * lanes, bottom: 46 + 13 * lanes,
    label: "Search progress. Use the arrow keys to step through evaluations." });
  const most = Math.max(...drawn.map((one) => one.trials.length));
  const x = evaluationScale(box, drawn, most), y = progressScale(box, drawn, scaleKind);
  yAxis(box, y, y.ticks, timed.length ? scaleKind.title : `predicted: ${scaleKind.title}`);
  xAxis({ ...box, y0: box.y0 + 13 * lanes }, x, x.ticks, x.title);
  box.root.append(svg("line", { class: "axis", x1: box.x0, x2: box.x1, y1: box.y0, y2: box.y0 }));
  drawn.forEach((one, lane) => drawRun(box, one, lanes === 1 ? 0 : lane, x, y, scaleKind, drawn.length));
  crosshair(box, drawn, x, scaleKind, most);
}

// Logarithmic where runs differ so much in length that the short ones would be a smear at the left.
function evaluationScale(box, drawn, most) {
  const isLog = most > 4 * Math.min(...drawn.map((one) => one.trials.length));
  const inner = linear(isLog ? [0, Math.log2(most)] : [0, most], [box.x0, box.x1]);
  const x = (n) => inner(isLog ? Math.log2(Math.max(1, n)) : n);
  x.at = (share) => Math.round(isLog ? most ** share : share * most);
  x.ticks = isLog ? Array.from({ length: Math.floor(Math.log2(most)) + 1 }, (_, i) => 2 ** i) : niceTicks(0, most, 8);
  x.title = isLog ? "evaluations (log)" : "evaluations";
  return x;
}

function progressScale(box, drawn, kind) {
  const best = drawn.flatMap((one) => one.best.filter((us) => us !== null).map((us) => kind.of(us, one)));
  const known = best.filter((v) => v !== null);
  const low = Math.min(...known), high = Math.max(...known), room = (high - low || Math.abs(high) * 0.05) * 0.25;
  const domain = state.y === "roof" ? [low - room, high + room * 0.4] : [low - room * 0.4, high + room];
  const y = linear(domain, [box.y0, box.y1]);
  y.inside = (v) => v !== null && v >= domain[0] && v <= domain[1];
  y.ticks = niceTicks(domain[0], domain[1], 6);
  return y;
}

function drawRun(box, one, lane, x, y, kind, count) {
  const stroke = colour(one), group = svg("g", { "data-run": one.label });
  const laneY = box.y0 + 8 + 13 * lane;
  one.trials.forEach((trial, i) => {
    const value = counts(one, trial) ? kind.of(trial.us, one) : null;
    if (fails(trial)) {
      const at = x(i + 1), cross = `M${at - 3} ${laneY - 3}l6 6m0 -6l-6 6`;
      group.append(svg("path", { class: "failed", d: cross, stroke, "stroke-width": 1.4, fill: "none" }));
    } else if (value !== null && count <= 8 && y.inside(value)) {
      group.append(svg("circle", { cx: x(i + 1), cy: y(value), r: 2, fill: stroke, "fill-opacity": 0.4 }));
    }
  });
  let path = "", last = null;
  one.best.forEach((us, i) => {
    const value = us === null ? null : kind.of(us, one);
    if (value === null) return;
    path += last === null ? `M${x(i + 1)} ${y(value)}` : value === last ? "" : `H${x(i + 1)}V${y(value)}`;
    last = value;
  });
  if (path) path += `H${x(one.best.length)}`;
  group.append(svg("path", { d: path, stroke, fill: "none", "stroke-width": 2.2, "stroke-dasharray": one.dash }));
  box.root.append(group);
}

function crosshair(box, drawn, x, kind, most) {
  const line = svg("line", { class: "cross", y1: box.y1, y2: box.y0, visibility: "hidden" });
  const area = svg("rect", { x: box.x0, y: box.y1, width: box.x1 - box.x0, height: box.y0 - box.y1, fill: "transparent",
    tabindex: 0, role: "slider", "aria-label": "Evaluation", "aria-valuemin": 1, "aria-valuemax": most, "aria-valuenow": 1 });
  let at = 1;
  const move = (to, clientX, clientY) => {
    at = Math.max(1, Math.min(most, to));
    line.setAttribute("x1", x(at)); line.setAttribute("x2", x(at)); line.setAttribute("visibility", "visible");
    const text = [`evaluation ${at}`, ...drawn.slice(0, 10).map((one) => readout(one, at, kind)),
      drawn.length > 10 ? `and ${drawn.length - 10} more` : ""].filter(Boolean).join("\n");
    area.setAttribute("aria-valuenow", at); area.setAttribute("aria-valuetext", text);
    const place = area.getBoundingClientRect(), share = (x(at) - box.x0) / (box.x1 - box.x0);
    showTip(text, clientX ?? place.left + share * place.width, clientY ?? place.top + 20);
  };
  const leave = () => { hideTip(); line.setAttribute("visibility", "hidden"); };
  area.addEventListener("mousemove", (event) => {
    const place = area.getBoundingClientRect();
    move(x.at((event.clientX - place.left) / place.width), event.clientX, event.clientY);
  });
  area.addEventListener("mouseleave", leave);
  area.addEventListener("focus", () => move(at));
  area.addEventListener("blur", leave);
  area.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -most, End: most }[event.key];
    if (step) { event.preventDefault(); move(at + step); }
  });
  box.root.append(line, area);
}

function readout(one, at, kind) {
  const index = Math.min(at, one.trials.length) - 1, best = one.best[index], trial = one.trials[at - 1];
  const now = trial && fails(trial) ? `, this one: ${trial.outcome}` : "";
  return `${one.label}: best ${best === null ? "–" : kind.text(kind.of(best, one) ?? 0)}${now}`;
}

function drawRunLegend(shown) {
  const items = shown.map((one) => {
    const failed = one.trials.filter(fails).length;
    const text = `${one.label}: ${one.measured ? "" : "predicted, not measured, ≈ "}${figures(lowest(one))} µs in ${one.trials.length} evaluations` + (failed ? `, ${failed} failed` : "");
    const flip = () => {
      if (!hiddenRuns.delete(one.label)) hiddenRuns.add(one.label);
      drawProgress();
      byId("progress-legend").querySelectorAll("button")[shown.indexOf(one)].focus();
    };
    return make("button", { type: "button", "aria-pressed": String(!hiddenRuns.has(one.label)), onclick: flip },
      swatch(colour(one), one.dash), text);
  });
  byId("progress-legend").replaceChildren(...items);
}

function noteProgress(shown) {
  const others = data.series.filter((one) => passes(one) && !shown.includes(one));
  const predicted = others.filter((one) => one.kind === "search" && !one.measured).length;
  const sweeps = others.filter((one) => one.kind !== "search").length;
  const words = [];
  if (predicted) words.push(`${plural(predicted, "predicted run")} ${predicted === 1 ? "is" : "are"} not drawn beside measured ones.`);
  if (sweeps) words.push(`${plural(sweeps, "sweep")} ${sweeps === 1 ? "is" : "are"} not drawn: a sweep has no search order.`);
  byId("progress-note").textContent = words.join(" ");
}

function startProgress() {
  const radio = (value, text) => {
    const input = make("input", { type: "radio", name: "y", value, onchange: () => change({ y: value }) });
    redraws.push(() => { input.checked = state.y === value; });
    return make("label", {}, input, text);
  };
  byId("progress-controls").append(make("fieldset", {}, make("legend", {}, "Scale"),
    radio("relative", "relative to the run's best"), radio("us", "µs"), radio("roof", "% of roofline")));
  redraws.push(drawProgress);
}
