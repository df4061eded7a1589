// One metric as a small chart: the points with their intervals, a running mean where there are many, and a readout under
// the pointer. A chart of several runs has a line for each.

const CHART = { width: 340, height: 150, left: 48, right: 10, top: 8, bottom: 20 };
const SMOOTHED_FROM = 60;
const DOTS_UP_TO = 60;

// `linked`: addresses of the steps whose rollouts are in the file; a click on a point of one goes there.
function chart(curve, xName, linked = new Set()) {
  const lines = (curve.lines || [curve]).map((line, i) => ({ ...line, colour: `c${line.colour || i}`, points: pointsOf(line) })).filter((line) => line.points.length);
  const readout = el("span", { class: "readout" });
  const last = lines.map((line) => line.points[line.points.length - 1]);
  const rest = lines.length === 1 ? withInterval([last[0].y, last[0].half]) : lines.length ? "" : "no finite values";
  readout.textContent = rest;
  const head = el("figcaption", {}, el("span", { class: "metric", title: plain(curve.name) }, curve.name), readout);
  const picture = svg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": chartLabel(curve.name, lines, xName) });
  if (lines.length) drawCurves(picture, lines, { xName, readout, rest, share: curve.share, address: addressOf(curve.name, linked) });
  return el("figure", { class: "chart", "data-curve": "" }, head, picture);
}

function pointsOf(line) {
  const points = line.x.map((x, i) => ({ x, y: line.y[i], half: line.half ? line.half[i] : null }));
  return points.filter(({ x, y }) => x !== null && y !== null);
}

function chartLabel(name, lines, xName) {
  const said = lines.map(({ label, points }) => {
    const [first, last] = [points[0], points[points.length - 1]];
    const values = points.map((point) => point.y);
    const ends = first === last ? `${number(first.y)} at ${xName} ${number(first.x)}`
      : `from ${number(first.y)} at ${xName} ${number(first.x)} to ${number(last.y)} at ${xName} ${number(last.x)}, lowest ${number(Math.min(...values))}, highest ${number(Math.max(...values))}`;
    return (label ? `${label} ` : "") + ends;
  });
  return plain(`${name}: ${said.join("; ") || "no finite values"}`);
}

function addressOf(name, linked) {
  const letter = name.startsWith("valid/") ? "v" : "s";
  return (x) => (linked.has(letter + x) ? `#${letter}${x}` : null);
}

function drawCurves(picture, lines, { xName, readout, rest, share, address }) {
  const all = lines.flatMap((line) => line.points);
  const scale = scales(all, share);
  drawAxes(picture, scale, xName);
  for (const line of lines) drawLine(picture, line, scale);
  const hair = svg("line", { class: "hair", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  const spots = lines.map((line) => svg("circle", { class: `dot ${line.colour}`, r: 3.4, visibility: "hidden" }));
  picture.append(hair, ...spots);
  const near = (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * CHART.width;
    const closer = (a, b) => (Math.abs(scale.x(b.x) - at) < Math.abs(scale.x(a.x) - at) ? b : a);
    return lines.map((line) => line.points.reduce(closer));
  };
  picture.addEventListener("mousemove", (event) => {
    const found = near(event);
    hair.setAttribute("x1", scale.x(found[0].x));
    hair.setAttribute("x2", scale.x(found[0].x));
    hair.setAttribute("visibility", "visible");
    spots.forEach((spot, i) => fill(spot, { cx: scale.x(found[i].x), cy: scale.y(found[i].y), visibility: "visible" }, []));
    readout.textContent = `${xName} ${number(found[0].x)}: ${found.map((point) => withInterval([point.y, point.half])).join(", ")}`;
    picture.style.cursor = address(found[0].x) ? "pointer" : "";
  });
  picture.addEventListener("click", (event) => {
    const target = address(near(event)[0].x);
    if (target) location.hash = target;
  });
  picture.addEventListener("mouseleave", () => {
    for (const mark of [hair, ...spots]) mark.setAttribute("visibility", "hidden");
    readout.textContent = rest;
  });
}

function drawLine(picture, { points, colour }, scale) {
  const wide = points.filter((point) => point.half !== null && point.half !== undefined);
  if (wide.length > 1) {
    const edge = (sign) => wide.map((point) => ({ x: point.x, y: scale.inside(point.y + sign * point.half) }));
    const band = pathOf(edge(1), scale) + pathOf(edge(-1).reverse(), scale).replace("M", "L") + "Z";
    picture.append(svg("path", { class: `band ${colour}`, d: band }));
  }
  const smooth = points.length >= SMOOTHED_FROM;
  picture.append(svg("path", { class: `line ${colour}${smooth ? " faint" : ""}`, d: pathOf(points, scale) }));
  if (smooth) picture.append(svg("path", { class: `line ${colour}`, d: pathOf(smoothed(points), scale) }));
  if (points.length > DOTS_UP_TO) return;
  for (const { x, y } of points) picture.append(svg("circle", { class: `dot ${colour}`, cx: scale.x(x), cy: scale.y(y), r: points.length <= 12 ? 2.6 : 1.6 }));
}

// `share`: the metric cannot leave [0, 1], so the axis does not either.
function scales(points, share) {
  const extent = (values) => [Math.min(...values), Math.max(...values)];
  let [x0, x1] = extent(points.map((point) => point.x));
  let [y0, y1] = extent(points.flatMap(({ y, half }) => [y - (half || 0), y + (half || 0)]));
  const limits = share ? [0, 1] : [-Infinity, Infinity];
  const inside = (y) => Math.min(limits[1], Math.max(limits[0], y));
  [y0, y1] = [inside(y0), inside(y1)];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = share ? [0, 1] : [y0 - (Math.abs(y0) || 1) * 0.5, y1 + (Math.abs(y1) || 1) * 0.5];
  const ticks = niceTicks(y0, y1).filter((tick) => tick === inside(tick));
  y0 = Math.min(y0, ticks[0]);
  y1 = Math.max(y1, ticks[ticks.length - 1]);
  const wide = CHART.width - CHART.left - CHART.right;
  const high = CHART.height - CHART.top - CHART.bottom;
  return {
    x0, x1, ticks, inside,
    x: (x) => CHART.left + ((x - x0) / (x1 - x0)) * wide,
    y: (y) => CHART.top + (1 - (y - y0) / (y1 - y0)) * high,
  };
}

function niceTicks(low, high) {
  const raw = (high - low) / 3;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw);
  const ticks = [];
  for (let i = Math.floor(low / step); i <= Math.ceil(high / step); i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function drawAxes(picture, scale, xName) {
  for (const tick of scale.ticks) {
    picture.append(svg("line", { class: "grid", x1: CHART.left, x2: CHART.width - CHART.right, y1: scale.y(tick), y2: scale.y(tick) }));
    picture.append(svg("text", { class: "tick", x: CHART.left - 6, y: scale.y(tick) + 3.5, "text-anchor": "end" }, number(tick, 4)));
  }
  const y = CHART.height - 5;
  picture.append(svg("text", { class: "tick", x: CHART.left, y }, number(scale.x0)));
  picture.append(svg("text", { class: "tick", x: (CHART.left + CHART.width - CHART.right) / 2, y, "text-anchor": "middle" }, xName));
  picture.append(svg("text", { class: "tick", x: CHART.width - CHART.right, y, "text-anchor": "end" }, number(scale.x1)));
}

function pathOf(points, scale) {
  return points.map(({ x, y }, i) => `${i ? "L" : "M"}${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}`).join("");
}

function smoothed(points) {
  const half = Math.max(3, Math.floor(points.length / 25));
  return points.map(({ x }, i) => ({ x, y: mean(points.slice(Math.max(0, i - half), i + half + 1).map((point) => point.y)) }));
}
