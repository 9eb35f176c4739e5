"use strict";
const page = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const looks = Object.fromEntries(page.methods.map((one) => [one.name, one]));
const names = page.methods.map((one) => one.name);
const paint = (name) => (looks[name].color === "ink" ? "var(--ink)" : looks[name].color); // in the page itself
const tint = (name) => (looks[name].color === "ink" ? colors().ink : looks[name].color);
const shown = new Set(names);
const sign = page.higher_is_better ? 1 : -1;
const ends = { local_only: "training alone", fedavg: "one model for all" };

// ---- words and numbers
const said = (value, digits = page.digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
const signed = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${said(value)}`);
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // for pictures, which read tags
const megabytes = (value) => (value === null ? "–" : value >= 0.1 || value === 0 ? value.toFixed(2) : value.toPrecision(2));

function element(kind, text, attributes = {}) {
  const found = document.createElement(kind);
  if (text !== undefined && text !== null) found.textContent = text;
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  return found;
}

function row(cells, kind = "td") {
  const found = element("tr");
  for (const cell of cells) found.append(cell instanceof Node ? cell : element(kind, cell));
  return found;
}

function glyph(name) {
  return element("span", null, { class: "glyph", "aria-hidden": "true", "data-glyph": looks[name].glyph, style: `color:${paint(name)}` });
}

function labeled(name) {
  const cell = element("td", null, { class: "text" });
  cell.append(glyph(name), name);
  if (looks[name].title) cell.title = `${looks[name].title}. ${looks[name].summary}`;
  return cell;
}

// ---- the leaderboard
const columns = [
  ["method", "method"], ["mean", "mean"], ["weighted_mean", "by rows"], ["worst_decile", "worst 10 %"], ["gini", "Gini"],
  ["worse_than_alone", "below alone"], ["worse_than_global", "below global"], ["gain_over_alone", "gain over alone"],
  ["unseen", "unseen"], ["valid_mean", "on valid rows"], ["steps_per_client", "steps"], ["mb_per_client", "MB"], ["seconds", "s"],
  ["against_best", "against the best"],
];
let sorted = { key: null, down: true };

function drawLeaderboard() {
  const table = at("leaderboard");
  table.replaceChildren();
  const head = element("tr");
  for (const [key, text] of columns) {
    const cell = element("th", text, { "data-key": key, scope: "col", tabindex: "0", class: key === "against_best" ? "text" : "" });
    if (sorted.key === key) cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    const upward = key === "method" || (["mean", "weighted_mean", "worst_decile", "unseen", "valid_mean"].includes(key) && !page.higher_is_better);
    const sort = () => {
      sorted = { key, down: sorted.key === key ? !sorted.down : !upward };
      drawLeaderboard();
      table.querySelector(`th[data-key=${key}]`).focus();
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
    head.append(cell);
  }
  table.append(head);
  const rows = page.leaderboard.map((one) => ({ ...one, seconds: page.times.seconds[one.method] }));
  if (sorted.key) rows.sort((a, b) => order(a[sorted.key], b[sorted.key]) * (sorted.down ? -1 : 1));
  const able = page.leaderboard.filter((one) => !page.unsound.includes(one.against_best) && one.mean !== null);
  const top = Math.max(...able.map((one) => one.high ?? 0), 1e-12), drawable = able.every((one) => one.mean >= 0);
  for (const one of rows) {
    if (!shown.has(one.method)) continue;
    const mean = element("td", said(one.mean), { "data-value": one.mean });
    if (drawable && one.mean !== null) mean.append(bar(one, top));
    const found = row([
      labeled(one.method), mean, said(one.weighted_mean), said(one.worst_decile), said(one.gini, 3), percent(one.worse_than_alone),
      percent(one.worse_than_global), signed(one.gain_over_alone), said(one.unseen), said(one.valid_mean), said(one.steps_per_client, 0), megabytes(one.mb_per_client),
      element("td", said(one.seconds, 1), { class: "time" }), element("td", one.against_best, { class: "text" }),
    ]);
    found.dataset.method = one.method;
    if (one.method === page.answer.advice) found.className = "advice";
    table.append(found);
  }
  for (const one of page.yardsticks) {
    const gaps = columns.slice(2, -1).map(() => element("td", ""));
    const found = row([element("td", one.name, { class: "text" }), said(one.mean), ...gaps, element("td", "reference", { class: "text" })]);
    found.className = "reference";
    table.append(found);
  }
}

function order(a, b) {
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function bar(one, top) {
  const share = (value) => 100 * Math.min(Math.max(value, 0) / top, 1);
  const place = (value) => `${share(value)}%`;
  const found = element("span", null, { class: "bar", "aria-hidden": "true" });
  found.append(element("i", null, { style: `width:${place(one.mean)};background:${paint(one.method)};opacity:.75` }));
  const width = `${share(one.high) - share(one.low)}%`;
  found.append(element("b", null, { style: `left:${place(one.low)};width:${width}` }));
  return found;
}

function drawPairs() {
  const table = at("pairs");
  const able = names.filter((name) => shown.has(name) && page.pairs.some((one) => one.method === name || one.other === name));
  const gap = {};
  for (const one of page.pairs) {
    gap[`${one.method}\n${one.other}`] = turned(one, sign);
    gap[`${one.other}\n${one.method}`] = turned(one, -sign);
  }
  table.replaceChildren(row(["", ...able], "th"));
  for (const name of able) {
    const cells = able.map((other) => {
      const one = gap[`${name}\n${other}`];
      if (!one) return element("td", "");
      const cell = element("td", signed(one.mean), { class: !one.clear ? "noise" : one.mean > 0 ? "better" : "worse" });
      cell.title = `${name} over ${other}: ${interval(one)}, p ${probability(one)}`;
      return cell;
    });
    table.append(row([labeled(name), ...cells]));
  }
  const list = at("pair-list");
  list.replaceChildren(row(["better by", "", "", "interval", "p", ""], "th"));
  for (const one of page.pairs) {
    if (!shown.has(one.method) || !shown.has(one.other)) continue;
    const found = turned(one, sign);
    const word = !one.clear ? "within noise" : found.mean > 0 ? "better" : "worse";
    list.append(row([labeled(one.method), element("td", `over ${one.other}`, { class: "text" }), signed(found.mean), interval(found), probability(one), word]));
  }
}

// A difference seen from the side on which more is better.
function turned(one, by) {
  const times = (value) => (value === null ? null : by * value);
  return { ...one, mean: times(one.mean), low: times(by > 0 ? one.low : one.high), high: times(by > 0 ? one.high : one.low) };
}

const interval = (one) => (one.low === null ? "unknown" : `${signed(one.low)} to ${signed(one.high)}`);
const probability = (one) => (one.p < 0.001 ? "< 0.001" : one.p.toFixed(3));
