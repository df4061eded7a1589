// What every page of a report has: its data, the header with links, the choice of light or dark.

const page = document.getElementById("page");
const root = document.documentElement;

root.dataset.errors = 0;
window.addEventListener("error", () => { root.dataset.errors = Number(root.dataset.errors) + 1; });

function read(kind) {
  return [...document.querySelectorAll(`script[data-kind="${kind}"]`)].map((node) => JSON.parse(node.textContent));
}

function themeButton() {
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  return el("button", { class: "plain", type: "button", click: () => { root.dataset.theme = dark() ? "light" : "dark"; } }, "light / dark");
}

function header(name, links) {
  document.getElementById("top").append(
    el("h1", {}, "Ramet ", el("span", { class: "run" }, name)),
    el("nav", { "aria-label": "pages of this report" }, links, themeButton()));
}

// A part that is drawn when it is opened; nothing where there is none of it.
function folded(title, is, draw, open = false) {
  if (!is) return null;
  const node = el("details", { class: "more", open }, el("summary", {}, title));
  const fillOnce = () => { if (node.open && node.childElementCount === 1) node.append(draw()); };
  node.addEventListener("toggle", fillOnce);
  fillOnce();
  return node;
}

function table(heads, rows, kind) {
  const head = heads.some((title) => title) ? el("thead", {}, el("tr", {}, heads.map((title) => el("th", { scope: "col" }, title)))) : null;
  return el("div", { class: "scroll" }, el("table", { class: kind }, head,
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => (i ? el("td", {}, cell) : el("th", { scope: "row" }, cell))))))));
}
