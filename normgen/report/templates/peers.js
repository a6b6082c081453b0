// Prices of other libraries over ours, an entry a line: where ours leads least comes first.
function drawPeers() {
  const shown = data.benches.filter(passes), names = unique(data.benches.flatMap((one) => Object.keys(one.peers)));
  byId("peers-section").hidden = !data.benches.length;
  const ratios = (one) => Object.values(one.peers).map((peer) => peer.ratio).filter((ratio) => ratio !== null);
  const least = (one) => Math.min(...ratios(one), Infinity);
  const cell = (peer) => {
    if (!peer) return make("td", { class: "n" }, "");
    const text = peer.ratio === null ? "–" : `${peer.ratio.toFixed(2)}×`;
    return make("td", { class: "n", title: peer.why || `${figures(peer.us)} µs` }, text);
  };
  byId("peers").replaceChildren(
    make("thead", {}, make("tr", {}, ...["entry", "suite", "our marginal µs", ...names].map((name, i) =>
      make("th", { scope: "col", class: i > 1 ? "n" : "" }, name)))),
    make("tbody", {}, ...[...shown].sort((a, b) => least(a) - least(b)).map((one) => make("tr", {},
      make("td", {}, one.label), make("td", {}, one.suite), make("td", { class: "n" }, figures(one.us)),
      ...names.map((name) => cell(one.peers[name]))))));
  const means = names.map((name) => {
    const found = shown.map((one) => one.peers[name]?.ratio).filter((ratio) => ratio);
    const mean = Math.exp(found.reduce((sum, ratio) => sum + Math.log(ratio), 0) / found.length);
    return found.length ? `${name} ${mean.toFixed(2)}× (${found.length})` : "";
  }).filter(Boolean);
  byId("peers-note").textContent = means.length
    ? `Geometric means, and of how many: ${means.join(", ")}.` : "No bench matches the filters.";
}

function startPeers() { redraws.push(drawPeers); }
