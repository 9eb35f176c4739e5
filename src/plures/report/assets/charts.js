// ---- pictures
const drawn = {};
const builders = {};

function colors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--ink"), quiet: of("--quiet"), line: of("--line"), paper: of("--paper"), soft: of("--soft") };
}

function layout(x, y, more = {}) {
  const now = colors();
  const axis = (text) => ({
    title: { text, font: { size: 12 }, standoff: 8 }, gridcolor: now.line, zerolinecolor: now.quiet, linecolor: now.line, automargin: true,
  });
  const { xaxis, yaxis, ...rest } = more;
  return {
    margin: { l: 52, r: 12, t: 14, b: 42 }, paper_bgcolor: now.paper, plot_bgcolor: now.paper, font: { color: now.ink, size: 12 },
    showlegend: false, hovermode: "closest", hoverlabel: { font: { size: 12 } },
    xaxis: { ...axis(x), ...xaxis }, yaxis: { ...axis(y), ...yaxis }, ...rest,
  };
}

function draw(id) {
  const { traces, look } = builders[id]();
  drawn[id] = true;
  at(id).setAttribute("role", "img");
  at(id).setAttribute("aria-label", `${look.yaxis.title.text || "clients"} against ${look.xaxis.title.text || "clients"}`);
  return Plotly.react(id, traces, look, { responsive: true, displayModeBar: false });
}

const redraw = () => Promise.all(Object.keys(drawn).map(draw));
const drawAll = () => Promise.all(Object.keys(builders).map(draw));
const visible = () => names.filter((name) => shown.has(name));

// ---- who gains and who loses
function gains() {
  const method = at("gain-method").value, other = at("gain-other").value, group = at("gain-group").value;
  const [mine, theirs] = [names.indexOf(method), names.indexOf(other)];
  const text = at("gain-search").value.trim().toLowerCase();
  const named = (one) => String(one.uid) === text || one.name.toLowerCase() === text;
  const exact = page.clients.some(named); // a whole uid or name means that client alone
  const rows = [];
  for (const one of page.clients) {
    if (one.scores[mine] === null || one.scores[theirs] === null) continue;
    if (group === "training" && (!one.seen || one.attacker)) continue;
    if (group === "unseen" && one.seen) continue;
    if (group.startsWith("group ") && `group ${one.group}` !== group) continue;
    const gain = sign * (one.scores[mine] - one.scores[theirs]);
    const found = text !== "" && (exact ? named(one) : one.name.toLowerCase().includes(text));
    rows.push({ ...one, gain, mine: one.scores[mine], theirs: one.scores[theirs], found });
  }
  rows.sort((a, b) => a.gain - b.gain || a.uid - b.uid);
  return { method, other, text, rows };
}

builders.gains = () => {
  const { method, other, text, rows } = gains();
  const hover = rows.map((one) => `${plain(one.name)} (uid ${one.uid})<br>${signed(one.gain)}: ${said(one.mine)} against ${said(one.theirs)}<br>`
    + `${one.train_rows} training rows${one.group === null ? "" : `, group ${one.group}`}${one.seen ? "" : ", unseen"}${one.attacker ? ", attacks" : ""}`);
  const dim = rows.map((one) => (text === "" || one.found ? 1 : 0.15));
  return {
    traces: [{
      type: "scatter", mode: "markers", x: rows.map((_, place) => place + 1), y: rows.map((one) => one.gain), text: hover, hoverinfo: "text",
      marker: {
        color: tint(method), opacity: dim, size: rows.map((one) => (one.found ? 14 : 8)),
        symbol: rows.map((one) => (one.attacker ? "x" : one.seen ? "circle" : "diamond-open")), line: { width: 1, color: tint(method) },
      },
    }],
    look: layout("clients, sorted by their gain", `gain over ${ends[other] ?? plain(other)}`, {
      xaxis: { zeroline: false },
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: colors().quiet, width: 1 } }],
    }),
  };
};

function drawClients() {
  const { method, other, text, rows } = gains();
  const [up, down] = [rows.filter((one) => one.gain > 1e-9).length, rows.filter((one) => one.gain < -1e-9).length];
  const small = page.clients.filter((one) => one.small).map((one) => one.name);
  at("gain-said").textContent = `${up} of ${rows.length} clients do better with ${method} than with ${other}, ${down} do worse. `
    + (rows.some((one) => !one.seen) ? "Diamonds were not seen in training. " : "") + (rows.some((one) => one.attacker) ? "Crosses attack. " : "")
    + (small.length ? `Too little data to trust a single score (${small.length}): ${small.slice(0, 8).join(", ")}${small.length > 8 ? ", …" : ""}.` : "");
  const head = row(["client", "uid", "group", "rows", method, other, "gain"], "th");
  const table = at("clients");
  table.replaceChildren(head);
  const kept = text === "" ? rows : rows.filter((one) => one.found);
  for (const one of kept.slice(0, 500)) {
    const gain = element("td", signed(one.gain), { class: one.gain > 1e-9 ? "better" : one.gain < -1e-9 ? "worse" : "noise" });
    const found = row([element("td", one.name, { class: "text" }), one.uid, one.group ?? "–", one.train_rows, said(one.mine), said(one.theirs), gain]);
    found.dataset.uid = one.uid;
    table.append(found);
  }
  if (kept.length > 500) table.append(row([element("td", `… ${kept.length - 500} more: search for them`, { class: "text" })]));
  const known = page.clients.find((one) => String(one.uid) === text || one.name.toLowerCase() === text);
  if (!kept.length) table.append(row([element("td", known ? `${known.name} is not among the clients shown, or has no score` : "no such client", { class: "text" })]));
}

function options(id, values, chosen) {
  at(id).replaceChildren(...values.map(([value, text]) => element("option", text, { value })));
  at(id).value = chosen;
}

function setUpGains() {
  const first = page.answer.advice || names[0];
  const other = ["local_only", "fedavg"].find((name) => names.includes(name) && name !== first) ?? names.find((name) => name !== first) ?? first;
  options("gain-method", names.map((name) => [name, name]), first);
  options("gain-other", names.map((name) => [name, ends[name] ? `${name} (${ends[name]})` : name]), other);
  const groups = [...new Set(page.clients.map((one) => one.group))].filter((one) => one !== null).sort((a, b) => a - b);
  const unseen = page.clients.some((one) => !one.seen) ? [["unseen", "unseen clients"]] : [];
  options("gain-group", [["training", "clients in training"], ["", "all clients"], ...groups.map((one) => [`group ${one}`, `group ${one}`]), ...unseen], "training");
  for (const id of ["gain-method", "gain-other", "gain-group"]) at(id).addEventListener("change", () => { drawClients(); draw("gains"); });
  at("gain-search").addEventListener("input", () => { drawClients(); draw("gains"); });
  drawClients();
}

// ---- curves, costs, fairness, newcomers
function curves(by) {
  const traces = [];
  for (const one of page.curves) {
    if (!shown.has(one.method) || !one.rounds.length) continue;
    const look = looks[one.method], color = tint(one.method), x = one[by];
    traces.push({
      x: [...x, ...[...x].reverse()], y: [...one.high, ...[...one.low].reverse()], fill: "toself", fillcolor: `${color}22`,
      line: { width: 0 }, hoverinfo: "skip", type: "scatter", mode: "lines", showlegend: false,
    });
    traces.push({
      x, y: one.mean, name: one.method, type: "scatter", mode: "lines+markers", line: { color, dash: look.dash, width: 2 },
      marker: { symbol: look.symbol, size: 6, color }, hovertemplate: `${plain(one.method)}<br>%{y:.3f} at %{x}<extra></extra>`,
    });
  }
  return traces;
}

const legend = { showlegend: true, legend: { orientation: "h", y: -0.22, font: { size: 11 } } };
builders["curve-rounds"] = () => ({ traces: curves("rounds"), look: layout("rounds", `valid ${page.metric}`, legend) });
builders["curve-mb"] = () => ({ traces: curves("mb"), look: layout("megabytes per client", `valid ${page.metric}`, legend) });

builders.front = () => {
  const board = page.leaderboard.filter((one) => shown.has(one.method) && one.mean !== null);
  const dearest = Math.max(...board.map((one) => one.mb_per_client));
  const traces = board.map((one) => {
    const look = looks[one.method], color = tint(one.method);
    return {
      x: [one.mb_per_client], y: [one.mean], name: one.method, type: "scatter", mode: "markers+text", text: [page.front.includes(one.method) ? plain(one.method) : ""],
      textposition: one.mb_per_client > 0.7 * dearest ? "top left" : "top right", textfont: { size: 11 }, cliponaxis: false, marker: { color, symbol: look.symbol, size: 11 },
      error_y: { type: "data", symmetric: false, array: [one.high - one.mean], arrayminus: [one.mean - one.low], color, thickness: 1.5, width: 3 },
      hovertemplate: `${plain(one.method)}<br>${page.metric} %{y:.3f}, %{x:.3g} MB<extra></extra>`,
    };
  });
  const on = page.front.map((name) => page.leaderboard.find((one) => one.method === name)).filter((one) => shown.has(one.method));
  traces.unshift({
    x: on.map((one) => one.mb_per_client), y: on.map((one) => one.mean), type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false,
    line: { color: colors().quiet, dash: "dot", width: 1.5, shape: "hv" },
  });
  return { traces, look: layout("megabytes per client", `test ${page.metric}`, { ...legend, xaxis: { rangemode: "tozero" } }) };
};

builders.fairness = () => ({
  traces: page.fairness.filter((one) => shown.has(one.method)).map((one) => ({
    x: one.deciles.map((_, place) => 10 * place), y: page.higher_is_better ? one.deciles : [...one.deciles].reverse(), name: one.method,
    type: "scatter", mode: "lines+markers", line: { color: tint(one.method), dash: looks[one.method].dash, width: 2 },
    marker: { symbol: looks[one.method].symbol, size: 6 }, hovertemplate: `${plain(one.method)}<br>%{y:.3f} at %{x} %<extra></extra>`,
  })),
  look: layout("clients, the worst first (%)", `test ${page.metric}`, { ...legend, xaxis: { zeroline: false } }),
});

if (page.newcomers.length) {
  builders.newcomers = () => {
    const most = page.newcomers.reduce((so, one) => Math.max(so, one.all_rows ?? 0, ...one.rows), 0);
    const ticks = [...new Set(page.newcomers.flatMap((one) => one.rows))].sort((a, b) => a - b);
    const place = (rows) => Math.log2(1 + rows);
    return {
      traces: page.newcomers.filter((one) => shown.has(one.method)).map((one) => ({
        x: [...one.rows.map(place), place(one.all_rows)], y: [...one.mean, one.all_mean], name: one.method, type: "scatter", mode: "lines+markers",
        line: { color: tint(one.method), dash: looks[one.method].dash, width: 2 }, marker: { symbol: looks[one.method].symbol, size: 7 },
        text: [...one.rows.map((rows, k) => `${rows} rows, ${one.clients[k]} clients`), `all their rows, ${one.all_clients} clients`],
        hovertemplate: `${plain(one.method)}<br>%{y:.3f} with %{text}<extra></extra>`,
      })),
      look: layout("training rows that a newcomer brings", `test ${page.metric}`, {
        ...legend, xaxis: { zeroline: false, tickvals: [...ticks.map(place), place(most)], ticktext: [...ticks, "all"] },
      }),
    };
  };
} else at("newcomers-section").remove();

// ---- clusters
function clusterOf() {
  return page.clusters.find((one) => one.method === at("cluster-method").value);
}

function setUpClusters() {
  if (!page.clusters.length) { at("clusters-section").remove(); return; }
  const able = page.clusters.map((one) => one.method);
  options("cluster-method", able.map((name) => [name, name]), able.find((name) => !looks[name].oracle) ?? able[0]);
  at("cluster-method").addEventListener("change", () => { sayClusters(); draw("cluster-map"); draw("cluster-matrix"); });
  builders["cluster-map"] = clusterMap;
  builders["cluster-matrix"] = clusterMatrix;
  sayClusters();
}

function sayClusters() {
  const one = clusterOf();
  const match = one.adjusted_rand === null ? "No groups are planted in these data."
    : `Against the planted groups: adjusted Rand index ${said(one.adjusted_rand, 2)} (1 is the same partition, 0 chance), purity ${said(one.purity, 2)}.`;
  at("cluster-said").textContent = `${one.method}: ${said(one.clusters, 1)} clusters, mean over ${one.labels.length} seeds. ${match} `
    + "Left: whom each cluster of the first seed holds. Right: the share of seeds in which two clients share a cluster"
    + (one.sampled ? `, for ${one.uids.length} of the clients.` : ".");
}

function clusterMap() {
  const one = clusterOf(), planted = one.counts.every(([, group]) => group !== null);
  const clusters = [...new Set(one.counts.map(([cluster]) => cluster))];
  const groups = planted ? [...new Set(one.counts.map(([, group]) => group))].sort((a, b) => a - b) : [null];
  const z = clusters.map((cluster) => groups.map((group) => one.counts.find(([label, other]) => label === cluster && other === group)?.[2] ?? 0));
  return {
    traces: [{
      type: "heatmap", z, x: groups.map((group) => (planted ? `group ${group}` : "all clients")), y: clusters.map((cluster) => `cluster ${cluster}`),
      colorscale: [[0, colors().soft], [1, tint(one.method)]], showscale: false, text: z, texttemplate: clusters.length <= 20 ? "%{text}" : "",
      hovertemplate: "%{y}, %{x}: %{z} clients<extra></extra>",
    }],
    look: layout(planted ? "planted" : "", "found", { xaxis: { side: "bottom" }, margin: { l: 80, r: 12, t: 14, b: 42 } }),
  };
}

function clusterMatrix() {
  const one = clusterOf(), number = one.uids.length;
  const share = (i, j) => one.labels.filter((labels) => labels[i] === labels[j]).length / one.labels.length;
  const z = Array.from({ length: number }, (_, i) => Array.from({ length: number }, (_, j) => share(i, j)));
  const edges = [];
  one.groups.forEach((group, k) => { if (k && group !== one.groups[k - 1]) edges.push(k - 0.5); });
  const line = (edge, down) => ({
    type: "line", layer: "above", line: { color: colors().ink, width: 1 },
    ...(down ? { x0: edge, x1: edge, y0: -0.5, y1: number - 0.5 } : { y0: edge, y1: edge, x0: -0.5, x1: number - 0.5 }),
  });
  const text = one.uids.map((_, i) => one.names.map((name, j) => `${plain(one.names[i])} and ${plain(name)}`));
  return {
    traces: [{
      type: "heatmap", z, zmin: 0, zmax: 1, text, colorscale: [[0, colors().soft], [1, tint(one.method)]], showscale: false,
      hovertemplate: "%{text}: together in %{z:.0%} of seeds<extra></extra>",
    }],
    look: layout(page.groups ? "clients, by planted group" : "clients", "", {
      shapes: edges.flatMap((edge) => [line(edge, true), line(edge, false)]),
      xaxis: { showticklabels: false, showgrid: false, zeroline: false, ticks: "" },
      yaxis: { showticklabels: false, showgrid: false, zeroline: false, ticks: "", autorange: "reversed", scaleanchor: "x", constrain: "domain" },
    }),
  };
}
