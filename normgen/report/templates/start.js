// Filters, figures at a glance, and the first drawing.
function drawTiles() {
  const shown = rows.filter(passes), tried = shown.filter((row) => row.kind === "candidate");
  const failed = tried.filter((row) => row.outcome !== "ok" && !row.predicted).length;
  const winners = shown.filter((row) => row.kind === "winner");
  const middle = (values) => (values.length ? quantile([...values].sort((a, b) => a - b), 0.5) : null);
  const roofs = winners.map((row) => row.roof).filter((value) => value !== null);
  const gains = winners.map((row) => row.gain).filter((value) => value !== null);
  const tile = (name, value, more) => make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, more)));
  byId("tiles").replaceChildren(
    tile("Problems with a winner", String(unique(winners.map((row) => COLUMNS[0].of(row))).length),
      unique(shown.map((row) => row.device)).join(", ")),
    tile("Candidates", tried.length.toLocaleString("en"), `${failed} failed`),
    tile("% of roofline, median winner", middle(roofs)?.toFixed(1) ?? "–",
      roofs.length ? `${Math.min(...roofs).toFixed(1)} to ${Math.max(...roofs).toFixed(1)}` : "no measured winner"),
    tile("Against the default, median", gains.length ? `${middle(gains).toFixed(2)}×` : "–",
      gains.length ? `${Math.min(...gains).toFixed(2)}× to ${Math.max(...gains).toFixed(2)}×` : "no default in the same run"));
  const predicted = shown.filter((row) => row.predicted).length, banner = byId("predicted-banner");
  banner.hidden = !predicted;
  banner.textContent = `${plural(predicted, "record")} of ${shown.length.toLocaleString("en")} ${predicted === 1 ? "is a prediction" : "are predictions"}` +
    " of the cost model: no GPU timed them. They are marked, and drawn only where nothing was measured.";
}

function startFilters() {
  const titles = { op: "Operation", direction: "Direction", dtype: "Dtype", place: "L2 and context" };
  const everyone = [...data.series, ...data.finals, ...data.benches];
  byId("filters").append(...SHARED.map((name) => selectOf(name, titles[name], unique(everyone.map((one) => one[name])))),
    make("button", { type: "button", onclick: () => change({ ...DEFAULTS }) }, "Clear all filters"));
  redraws.push(drawTiles);
}

readHash();
startFilters();
startProgress();
startRoof();
startKnobs();
startPeers();
startTable();
drawAbout();
redraw();
addEventListener("hashchange", () => { readHash(); redraw(); });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
let widthBefore = innerWidth;
addEventListener("resize", () => { if (innerWidth !== widthBefore) { widthBefore = innerWidth; redraw(); } });
document.documentElement.dataset.ready = "yes";
