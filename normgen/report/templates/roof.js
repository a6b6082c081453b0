// % of roofline over cols: one line per op, direction, dtype, place and device; a point per shape.
function drawRoof() {
  const host = byId("roof"), lines = data.roof.filter(passes);
  const devices = unique(data.roof.map((line) => line.device));
  const name = (line) => (devices.length > 1 ? `${line.label}, ${line.device}` : line.label);
  byId("roof-note").textContent = roofNote();
  const named = lines.filter(hasColour), others = lines.length - named.length;
  byId("roof-legend").replaceChildren(
    ...named.map((line) => make("span", {}, swatch(colour(line), roofDash(line, devices), true), name(line))),
    ...(others ? [make("span", {}, swatch("var(--grey)", "", true), `${others} more: a filter above colours them`)] : []));
  if (!lines.length) return nothing(host, "No measured winner with a roofline matches the filters.");
  const points = lines.flatMap((line) => line.points), octaves = points.map((point) => Math.log2(point.cols));
  const box = frame(host, { height: 330, label: "Percent of roofline over cols, logarithmic to base two" });
  const low = Math.floor(Math.min(...octaves) - 0.5), high = Math.ceil(Math.max(...octaves) + 0.5);
  const x = linear([low, high], [box.x0, box.x1]);
  const floor = Math.max(0, Math.floor(Math.min(...points.map((p) => p.percent_of_roof)) / 10) * 10 - 10);
  const y = linear([floor, Math.max(105, ...points.map((p) => p.percent_of_roof + 3))], [box.y0, box.y1]);
  yAxis(box, y, niceTicks(floor, 100, 6), "% of roofline");
  const step = Math.ceil((high - low) / Math.max(4, Math.floor((box.x1 - box.x0) / 70)));
  const powers = Array.from({ length: high - low + 1 }, (_, i) => low + i).filter((p) => (p - low) % step === 0);
  xAxis(box, x, powers, "cols", (power) => (2 ** power).toLocaleString("en"));
  box.root.append(svg("line", { class: "roof", x1: box.x0, x2: box.x1, y1: y(100), y2: y(100) }),
    svg("text", { x: box.x1, y: box.y0 - 6, "text-anchor": "end", class: "halo" }, box.width < 600
      ? "dashed: the roofline" : "dashed: the roofline, hand-written kernels that move the same bytes"));
  const greyFirst = [...lines].sort((a, b) => hasColour(a) - hasColour(b));
  for (const line of greyFirst) drawRoofLine(box, line, x, y, name(line), roofDash(line, devices));
}

function drawRoofLine(box, line, x, y, name, dash) {
  const stroke = colour(line), place = ([cols, value]) => `${x(Math.log2(cols))} ${y(value)}`;
  if (line.middle.length > 1) {
    box.root.append(svg("path", { d: "M" + line.middle.map(place).join("L"), stroke, fill: "none", "stroke-width": 2,
      "stroke-dasharray": dash }));
  }
  for (const point of line.points) {
    const text = `${name}\n${shape(point)}: ${percent(point.percent_of_roof)} of roofline\n${figures(point.us)} µs, ` +
      `${figures(point.gb_per_s)} GB/s${point.confirmed ? "" : "\nbest of a search or sweep, not confirmed"}\n${point.schedule}`;
    const circle = svg("circle", { cx: x(Math.log2(point.cols)), cy: y(point.percent_of_roof), r: 5, stroke,
      "stroke-width": 2, fill: point.confirmed ? stroke : "var(--bg)", tabindex: 0, role: "img", "aria-label": text });
    box.root.append(withTip(circle, text));
  }
}

const roofDash = (line, devices) => DASHES[devices.indexOf(line.device) % DASHES.length];

function roofNote() {
  const predicted = data.finals.filter((one) => passes(one) && !one.measured).length;
  const left = data.finals.filter((one) => passes(one) && one.measured && !one.roof_us).length;
  return [predicted ? `${plural(predicted, "predicted winner")} not drawn: nothing was measured.` : "",
    left ? `${plural(left, "winner")} without a measured roofline not drawn.` : ""].filter(Boolean).join(" ");
}

function startRoof() { redraws.push(drawRoof); }
