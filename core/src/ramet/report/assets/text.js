// Building blocks. Whatever comes from a run reaches the page through text nodes only.

const SVG = "http://www.w3.org/2000/svg";
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

// Controls, bidi marks, zero-width characters and lone surrogates by their number.
function codeOf(character) {
  return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

function plain(text) {
  return text.replace(UNSEEN, (character) => "[" + codeOf(character) + "]");
}

function append(node, text) {
  let last = 0;
  for (const match of text.matchAll(UNSEEN)) {
    node.append(document.createTextNode(text.slice(last, match.index)));
    const mark = document.createElement("span");
    mark.className = "unseen";
    mark.textContent = codeOf(match[0]);
    node.append(mark);
    last = match.index + match[0].length;
  }
  node.append(document.createTextNode(text.slice(last)));
  return node;
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === "") continue;
    if (child instanceof Node) node.append(child);
    else append(node, String(child));
  }
  return node;
}

const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

function number(value, digits = 3) {
  if (value === null || value === undefined) return "-";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 0.001)) return value.toExponential(2);
  return String(Number(value.toFixed(size >= 100 ? 1 : digits)));
}

function signed(value, digits = 2) {
  if (value === null || value === undefined) return "-";
  return (value > 0 ? "+" : "") + number(value, digits);
}

const withInterval = ([value, half]) => number(value) + (half === null || half === undefined ? "" : " \u00b1 " + number(half));

function seconds(value) {
  if (value === null || value === undefined) return "-";
  return value < 1 ? Math.round(value * 1000) + " ms" : number(value, 2) + " s";
}

function excerpt(text, length) {
  const line = text.replace(/\s+/g, " ").trim();
  const cut = Array.from(line);
  return cut.length > length ? cut.slice(0, length - 1).join("") + "\u2026" : line;
}

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const known = (values) => (values || []).filter((value) => value !== null && value !== undefined);

// file:// pages may lack the clipboard; the text is then offered for copying by hand.
async function copy(button, value) {
  const text = JSON.stringify(value, null, 1);
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    const area = el("textarea", { class: "copyarea", readonly: true, rows: 8 });
    area.value = text;
    button.after(area);
    area.select();
    button.textContent = "select and copy";
  }
  setTimeout(() => { button.textContent = label; }, 2000);
}
