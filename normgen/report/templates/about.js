// Environment, how it was measured, and which files the page was made from.
const DEVICE_NAMES = { arch: ["compute capability", (v) => (v / 10).toFixed(1)], sm_count: ["SMs", String],
  l2_bytes: ["L2", (v) => `${(v / 2 ** 20).toFixed(0)} MiB`], dram_gb_per_s: ["DRAM", (v) => `${v.toFixed(0)} GB/s (assumed by the cost model)`],
  sm_clock_ghz: ["SM clock", (v) => `${v} GHz`] };

function drawAbout() {
  const cards = data.environments.map((one) => {
    const device = Object.entries(DEVICE_NAMES).filter(([key]) => one.device[key])
      .map(([key, [name, text]]) => [name, text(one.device[key])]);
    const counts = [["runs", one.series], ["final records", one.finals], ["created", one.created.join(" to ")]];
    return card(one.device.name ?? "unknown device", [...device, ...Object.entries(one.versions), ...counts]);
  });
  const noise = data.finals.map((one) => one.noise).filter((value) => value);
  const facts = [
    ...(noise.length ? [["noise floor", `${(100 * Math.min(...noise)).toFixed(2)} to ${(100 * Math.max(...noise)).toFixed(2)} %`]] : []),
    ...data.measures.flatMap((policy) => Object.entries(policy)),
  ];
  if (facts.length) cards.push(card("Measurement policy", facts));
  byId("about").replaceChildren(make("div", { class: "cards" }, ...cards), make("h3", {}, "How it was measured"), method(),
    make("h3", {}, "Files"), files());
}

function card(title, pairs) {
  const lines = pairs.filter(([, value]) => value || value === 0)
    .map(([name, value]) => make("tr", {}, make("td", {}, String(name).replaceAll("_", " ")), make("td", {}, String(value))));
  return make("div", { class: "card" }, make("h3", {}, title), make("table", {}, make("tbody", {}, ...lines)));
}

function method() {
  const facts = [
    "Every kernel was compared with a float64 reference before it was timed; a wrong one is a failure, never a time.",
    "A time is the median of replays of a graph of many chains, or launches. Candidates are interleaved replay by replay, and divided by the drift of a fixed kernel.",
    "In place, a kernel runs between a producer and a consumer, as in a model. Its marginal time is what it adds to the time of these two (`price` in headers and records). Figures marked alone are of the kernel behind itself, where early launches overlap it with its own copy: they rank kernels differently.",
    "Fresh: the producer has just written the main input, everything else comes from DRAM. Cold: everything does. Hot: all is in L2.",
    "The roofline is the best of several hand-written kernels that move the same bytes, timed in the same run. It is a measurement too: a kernel may come out a little above 100 %.",
    "Winners were timed again with their rivals and the default in one interleaved run. The noise floor is a kernel against itself; a difference below it is a tie.",
  ];
  if (rows.some((row) => row.predicted)) {
    facts.push("Predicted records were timed by no GPU: their µs are the cost model's word, for ordering schedules and nothing else.");
  }
  return make("ul", {}, ...facts.map((fact) => make("li", {}, fact)));
}

function files() {
  return make("ul", {}, ...data.sources.map((source) => make("li", {}, `${source.path}: ${plural(source.found, "record")}`,
    source.damaged.length ? make("ul", {}, ...source.damaged.map((line) => make("li", {}, line))) : null)));
}
