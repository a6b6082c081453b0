// Knob importance of one run: bars of the share of variance, and the times of every value of the chosen knob.
function knobRuns() { return data.series.filter((one) => passes(one) && one.shares.length); }

function drawKnobs() {
  const runs = knobRuns(), picker = byId("knob-run"), bars = byId("knob-bars"), strip = byId("knob-strip");
  picker.replaceChildren(...runs.map((one) => make("option", { value: one.label }, one.label)));
  const one = runs.find((run) => run.label === state.run) ?? runs[0];
  if (!one) {
    strip.replaceChildren();
    byId("knob-note").textContent = "";
    return nothing(bars, "No measured run with at least two times matches the filters.");
  }
  picker.value = one.label;
  const chosen = one.shares.find((share) => share.knob === state.knob) ?? one.shares[0];
  bars.replaceChildren(...one.shares.map((share) => knobBar(share, share === chosen)));
  const timed = one.trials.filter((trial) => trial.outcome === "ok").length;
  const same = one.shares.filter((share) => share.share < share.chance).map((share) => share.knob);
  byId("knob-note").textContent = `${one.label}: ${timed} of ${one.trials.length} candidates have a time.` +
    (same.length ? ` No more than chance: ${same.join(", ")}.` : "");
  drawStrip(strip, one, chosen);
}

function knobBar(share, pressed) {
  const text = percent(100 * share.share).replace(" %", "") + "%";
  const choose = () => {
    change({ knob: share.knob });
    byId("knob-bars").querySelector("[aria-pressed=true]").focus();
  };
  return make("button", { type: "button", class: "bar", "aria-pressed": String(pressed), onclick: choose,
    title: `η² ${text}, by chance ${percent(100 * share.chance)}, ${share.levels.length} values` },
  make("b", {}, share.knob),
  make("i", { "aria-hidden": "true" }, make("span", { style: `width:${100 * share.share}%` }),
    make("em", { style: `left:${100 * share.chance}%` })), make("u", {}, text));
}

function drawStrip(host, one, share) {
  const box = frame(host, { height: 360, bottom: 56, label: `Times by ${share.knob}` });
  const column = Object.keys(one.knobs).indexOf(share.knob), values = one.knobs[share.knob];
  const times = values.map((_, code) => one.trials
    .filter((trial) => trial.outcome === "ok" && trial.codes[column] === code).map((trial) => trial.us));
  const failed = values.map((_, code) => one.trials
    .filter((trial) => trial.outcome !== "ok" && trial.codes[column] === code).length);
  const all = times.flat(), low = Math.min(...all), high = Math.max(...all);
  const y = logScale(low * 0.97, high * 1.03, box);
  yAxis(box, y, y.ticks, "marginal time, µs (log)");
  box.root.append(svg("line", { class: "axis", x1: box.x0, x2: box.x1, y1: box.y0, y2: box.y0 }));
  const band = (box.x1 - box.x0) / values.length, narrow = band < 95;
  values.forEach((value, code) => {
    const middle = box.x0 + (code + 0.5) * band;
    drawLevel(box, times[code].sort((a, b) => a - b), middle, Math.min(band * 0.34, 46), y);
    const count = `n = ${times[code].length}` + (failed[code] && !narrow ? `, ${failed[code]} failed` : "");
    const name = svg("text", { x: middle, y: box.y0 + 16, class: "title", "text-anchor": "middle" }, String(value));
    box.root.append(name, svg("text", { x: middle, y: box.y0 + 31, "text-anchor": "middle" }, narrow ? count.slice(4) : count));
  });
  const title = narrow ? `${share.knob} (below: candidates with a time)` : share.knob;
  box.root.append(svg("text", { x: (box.x0 + box.x1) / 2, y: box.height - 6, "text-anchor": "middle" }, title));
}

function drawLevel(box, times, middle, half, y) {
  if (!times.length) return;
  const at = (q) => times[Math.min(times.length - 1, Math.floor(q * times.length))];
  const [q1, q2, q3] = [quantile(times, 0.25), quantile(times, 0.5), quantile(times, 0.75)];
  const text = `${plural(times.length, "candidate")}\nbest ${figures(at(0))} µs\nmedian ${figures(q2)} µs\nworst ${figures(times[times.length - 1])} µs`;
  const group = svg("g", { tabindex: 0, role: "img", "aria-label": text.replaceAll("\n", ", ") });
  group.append(svg("rect", { x: middle - half, width: 2 * half, y: y(q3), height: Math.max(1, y(q1) - y(q3)),
    fill: "var(--c0)", "fill-opacity": 0.14, stroke: "var(--c0)", "stroke-opacity": 0.5 }));
  times.forEach((us, i) => {
    const jitter = (((i * 0.61803398875) % 1) - 0.5) * 1.7 * half;
    group.append(svg("circle", { cx: middle + jitter, cy: y(us), r: 2.4, fill: "var(--c0)", "fill-opacity": 0.6 }));
  });
  group.append(svg("line", { x1: middle - half, x2: middle + half, y1: y(q2), y2: y(q2), stroke: "var(--text)", "stroke-width": 2 }));
  box.root.append(withTip(group, text));
}

function quantile(sorted, q) {
  const at = q * (sorted.length - 1), below = Math.floor(at), above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - below);
}

function logScale(low, high, box) {
  const inner = linear([Math.log(low), Math.log(high)], [box.y0, box.y1]);
  const y = (us) => inner(Math.log(us));
  const marks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (const m of [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) marks.push(m * 10 ** power);
  const inside = marks.filter((mark) => mark >= low && mark <= high);
  y.ticks = inside.length >= 3 ? inside.filter((m, i) => i === 0 || y(inside[i - 1]) - y(m) > 13) : niceTicks(low, high, 6);
  return y;
}

function startKnobs() {
  const select = make("select", { id: "knob-run", onchange: () => change({ run: select.value }) });
  byId("knob-controls").append(make("label", {}, "Run", select));
  redraws.push(drawKnobs);
}
