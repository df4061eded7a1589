// Drives a report through PAGES in both themes, and notes what a screen reader or weak eyes would miss.

const note = (name, value) => { document.documentElement.dataset[name] = value; };
const later = () => new Promise((done) => setTimeout(done, 30));
const rgba = (text) => { // rgb(1, 2, 3), rgba(1, 2, 3, 0.5), color(srgb 0.1 0.2 0.3 / 0.5)
  const [r, g, b, a = 1] = text.match(/[\d.]+(e-\d+)?/g).map(Number);
  return text.startsWith("color") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
};
const over = (top, below) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]);
const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (node) => {
  const chain = [];
  for (let at = node; at; at = at.parentElement) chain.unshift(rgba(getComputedStyle(at).backgroundColor));
  return chain.reduce((below, top) => over(top, below), [255, 255, 255]);
};
const contrast = (node) => {
  const below = ground(node), style = getComputedStyle(node);
  const [a, b] = [light(over(rgba(node.closest("svg") ? style.fill : style.color), below)), light(below)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const shown = (node) => node.getBoundingClientRect().width > 0;
const faint = () => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = new Set();
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (walk.currentNode.data.trim() && shown(node) && !node.closest("script, style, noscript") && contrast(node) < 4.5) found.add(`${node.tagName}.${node.getAttribute("class")} ${contrast(node).toFixed(2)}`);
  }
  return [...found];
};
const unnamed = () => [...document.querySelectorAll("button, select, input, textarea, a, svg[role=img], nav")].filter(shown).filter((node) => {
  const label = node.matches("select, input") ? node.closest("label")?.textContent : node.matches("svg, nav") ? node.getAttribute("aria-label") : node.textContent;
  return !(label || "").trim();
}).map((node) => node.outerHTML.slice(0, 80));
const skips = () => {
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(shown).map((node) => Number(node.tagName[1]));
  return levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1 ? ["h1"] : levels.filter((level, i) => i && level > levels[i - 1] + 1);
};
(async () => {
  const found = [];
  for (const hash of PAGES) for (const theme of ["light", "dark"]) {
    document.documentElement.dataset.theme = theme;
    location.hash = hash;
    await later();
    for (const node of document.querySelectorAll("details")) node.open = true;
    await later();
    for (const [what, list] of [["faint", faint()], ["unnamed", unnamed()], ["skips", skips()]]) if (list.length) found.push(`${hash} ${theme} ${what}: ${list.join("; ")}`);
  }
  note("found", found.join("\n"));
  note("texts", document.body.textContent.length);
  note("done", 1);
})();
