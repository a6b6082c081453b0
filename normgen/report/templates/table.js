// The table of records: final records and every candidate; sorted, filtered, and drawn as far as asked for.
const PAGE = 100;
let limit = PAGE;
let lastView = "";
const opened = new Set();
const rows = [
  ...data.finals.map((one) => rowOf(one, one, one.measured ? "winner" : "predicted")),
  ...data.series.flatMap((one) => one.trials.map((trial, i) => rowOf(one, trial, "candidate", i + 1))),
];
rows.forEach((row, i) => { row.id = i; });

function rowOf(one, figure, kind, number = null) {
  const us = figure.us ?? null, predicted = figure.outcome === "predicted";
  return {
    kind, op: one.op, direction: one.direction, dtype: one.dtype, place: one.place, device: one.device, rows: one.rows,
    cols: one.cols, outcome: figure.outcome, us, low: figure.low, high: figure.high, schedule: figure.schedule, predicted,
    gb: us && one.bytes ? one.bytes / us / 1e3 : null,
    roof: us && one.roof_us && !predicted ? (100 * one.roof_us) / us : null,
    gain: us && one.default_us ? one.default_us / us : null,
    chain: figure.chain ?? null, alone: /alone$/.test(one.place) ? us : figure.alone_us ?? null,
    registers: figure.registers || null, spill: figure.spill, error: figure.error, verified: figure.verified ?? "",
    reason: figure.reason ?? "", number,
    run: one.label, command: one.command, created: one.created, dtypes: one.dtypes, search: figure.search,
    text: [one.op, one.direction, one.dtype, shape(one), one.place, kind, figure.outcome, figure.schedule, one.device,
      figure.reason ?? ""].join(" ").toLowerCase(),
  };
}

const COLUMNS = [
  { key: "problem", name: "problem", of: (r) => `${r.op} ${r.direction} ${r.dtype} ${shape(r)}` + (r.place === "fresh" ? "" : ` ${r.place}`),
    by: (r) => [r.op, r.direction, r.dtype, String(r.cols).padStart(9, "0"), String(r.rows).padStart(9, "0")].join(" "), css: "problem" },
  { key: "outcome", name: "outcome", of: badges, by: (r) => r.outcome },
  { key: "us", name: "marginal µs", of: (r) => (r.us === null ? "–" : (r.predicted ? "≈ " : "") + figures(r.us) +
    (/alone$/.test(r.place) ? " alone" : "")), by: (r) => r.us, css: "n" },
  { key: "chain", name: "chain µs", of: (r) => (r.chain === null ? "–" : r.chain.map(figures).join(" / ")),
    by: (r) => (r.chain === null ? null : r.chain[0]), css: "n" },
  { key: "gb", name: "GB/s", of: (r) => (r.gb === null ? "–" : (r.predicted ? "≈ " : "") + r.gb.toFixed(0)), by: (r) => r.gb, css: "n" },
  { key: "roof", name: "% of roofline", of: (r) => (r.roof === null ? "–" : r.roof.toFixed(1)), by: (r) => r.roof, css: "n" },
  { key: "gain", name: "vs default", of: (r) => (r.gain === null ? "–" : `${r.gain.toFixed(2)}×`), by: (r) => r.gain, css: "n" },
  { key: "registers", name: "registers", of: (r) => (r.registers === null ? "–" : String(r.registers)), by: (r) => r.registers, css: "n" },
  { key: "alone", name: "alone µs", of: (r) => (r.alone === null ? "–" : figures(r.alone)), by: (r) => r.alone, css: "n" },
  { key: "schedule", name: "schedule", of: (r) => r.schedule, by: (r) => r.schedule, css: "code" },
  { key: "device", name: "device", of: (r) => r.device, by: (r) => r.device },
];

function badges(row) {
  if (row.predicted) return make("span", { class: "badge predicted" }, "predicted, not measured");
  if (row.outcome !== "ok") return make("span", { class: "badge bad" }, row.outcome);
  return row.kind === "winner" ? make("span", { class: "badge winner" }, "winner") : "ok";
}

function matching() {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows.filter((row) => passes(row) && (!state.outcome || row.outcome === state.outcome) &&
    (!state.kind || row.kind === state.kind) && words.every((word) => row.text.includes(word)));
  const column = COLUMNS.find((one) => one.key === state.sort) ?? COLUMNS[2], sign = state.dir === "desc" ? -1 : 1;
  return found.map((row) => [column.by(row), row]).sort(([a, x], [b, y]) => {
    if (a === null || b === null) return (a === null) - (b === null) || x.id - y.id; // what has no figure comes last
    return a < b ? -sign : a > b ? sign : x.id - y.id;
  }).map(([, row]) => row);
}

function drawTable() {
  const view = [...SHARED, "outcome", "kind", "q", "sort", "dir"].map((name) => state[name]).join("\n");
  if (view !== lastView) limit = PAGE;
  lastView = view;
  const found = matching(), shown = found.slice(0, limit), more = byId("more");
  byId("record-count").textContent = `${found.length.toLocaleString("en")} of ${plural(rows.length, "record")}` +
    (shown.length < found.length ? `, the first ${shown.length} shown` : "");
  byId("records").replaceChildren(make("caption", { class: "hidden" }, "Records; the headings sort"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, make("span", { class: "hidden" }, "details")),
      ...COLUMNS.map(heading))), make("tbody", {}, ...shown.flatMap(bodyRows)));
  more.hidden = shown.length === found.length;
  more.textContent = `Show all ${found.length.toLocaleString("en")}`;
}

function heading(column) {
  const active = column.key === state.sort, down = active && state.dir === "asc";
  const sort = () => {
    change({ sort: column.key, dir: down ? "desc" : "asc" });
    byId("records").querySelector(`[data-column=${column.key}] button`).focus();
  };
  return make("th", { scope: "col", class: column.css === "n" ? "n" : null, "data-column": column.key,
    "aria-sort": active ? (state.dir === "asc" ? "ascending" : "descending") : "none" },
  make("button", { type: "button", onclick: sort }, column.name));
}

function bodyRows(row) {
  const isOpen = opened.has(row.id);
  const flip = () => {
    if (!opened.delete(row.id)) opened.add(row.id);
    drawTable();
    byId(`open-${row.id}`).focus();
  };
  const button = make("button", { type: "button", class: "open", id: `open-${row.id}`, onclick: flip,
    "aria-expanded": String(isOpen), "aria-label": `details of ${COLUMNS[0].of(row)}, ${row.schedule}` }, isOpen ? "▾" : "▸");
  const cells = COLUMNS.map((column) => make("td", { class: column.css ?? null }, column.of(row)));
  const line = make("tr", { class: row.predicted ? "predicted" : null, "data-kind": row.kind, "data-op": row.op },
    make("td", {}, button), ...cells);
  return isOpen ? [line, make("tr", { class: "detail" }, make("td"), make("td", { colspan: COLUMNS.length }, detail(row)))] : [line];
}

function detail(row) {
  const lines = [
    row.number === null ? "" : `candidate ${row.number} of ${row.run}`,
    row.low && row.high ? `95 % interval of the median: ${figures(row.low)} to ${figures(row.high)} µs` : "",
    row.error ? `largest error: ${figures(row.error, 3)} of its bound` : "",
    row.verified ? `verified: ${row.verified}` : "",
    row.spill ? `${row.spill} bytes a thread spilled` : "",
    `tensors: ${Object.entries(row.dtypes).map(([name, dtype]) => `${name} ${dtype}`).join(", ")}`,
    row.search?.trials ? `search: ${row.search.trials} trials in ${row.search.elapsed_s ?? "?"} s` : "",
    row.command ? `command: ${row.command}` : "",
    row.created ? `created: ${row.created}` : "",
    row.reason ? `reason: ${row.reason}` : "",
  ];
  return lines.filter(Boolean).join("\n");
}

function startTable() {
  const search = make("input", { type: "search", id: "filter-q", placeholder: "words in any column", size: 26,
    oninput: () => change({ q: search.value }) });
  redraws.push(() => { if (search.value !== state.q) search.value = state.q; });
  byId("record-controls").append(selectOf("kind", "Kind", unique(rows.map((row) => row.kind))),
    selectOf("outcome", "Outcome", unique(rows.map((row) => row.outcome))), make("label", {}, "Text", search));
  byId("more").addEventListener("click", () => { limit = Infinity; drawTable(); });
  redraws.push(drawTable);
}
