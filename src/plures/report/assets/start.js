// ---- the rest of the page
function setUpChips() {
  for (const one of page.methods) {
    const chip = element("button", null, { class: "chip", type: "button", "aria-pressed": "true", title: one.title || one.name });
    chip.dataset.method = one.name;
    chip.append(glyph(one.name), one.name);
    chip.addEventListener("click", () => {
      if (shown.has(one.name)) shown.delete(one.name); else shown.add(one.name);
      if (!shown.size) names.forEach((name) => shown.add(name));
      for (const other of at("chips").children) other.setAttribute("aria-pressed", shown.has(other.dataset.method));
      drawLeaderboard(); drawPairs(); redraw();
    });
    at("chips").append(chip);
  }
}

function fillText() {
  at("direction").textContent = page.higher_is_better ? "Higher is better." : "Lower is better.";
  for (const note of page.notes) at("notes").append(element("li", note));
  if (!page.notes.length) at("notes-section").remove();
  for (const [name, value] of page.settings) at("settings").append(row([element("td", name, { class: "text" }), element("td", value, { class: "text", style: "white-space:normal" })]));
  const versions = { ...(page.about.versions ?? {}), device: page.about.device, platform: page.about.platform };
  for (const [name, value] of Object.entries(versions)) if (value) at("settings").append(row([element("td", name, { class: "text" }), element("td", value, { class: "text" })]));
  if (!page.command) at("command").remove();
  if (page.toml) at("toml").textContent = page.toml; else at("toml-details").remove();
  for (const one of page.references) {
    const item = element("li", `${one.title} (${one.name}): `);
    item.append(one.url ? element("a", one.paper, { href: one.url }) : one.paper);
    at("references").append(item);
  }
  if (!page.references.length) at("references-section").remove();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  redraw();
}

function setUpTheme() {
  const wish = window.matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.dataset.theme = wish.matches ? "dark" : "light";
  wish.addEventListener("change", () => setTheme(wish.matches ? "dark" : "light"));
  at("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  let before = null;
  window.addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; drawAll(); });
  window.addEventListener("afterprint", () => setTheme(before));
}

setUpTheme();
setUpChips();
drawLeaderboard();
drawPairs();
setUpGains();
setUpClusters();
fillText();

// Pictures are drawn when they come near the window, so that the page is there at once.
const watch = new IntersectionObserver((seen) => {
  for (const one of seen) if (one.isIntersecting && !drawn[one.target.id]) draw(one.target.id);
}, { rootMargin: "300px" });
for (const id of Object.keys(builders)) watch.observe(at(id));
window.plures = { page, drawAll, shown };
document.documentElement.dataset.ready = "yes";
