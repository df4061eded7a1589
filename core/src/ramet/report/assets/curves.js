// One metric as a small chart: the points, a running mean where there are many, and a readout under the pointer.

const CHART = { width: 340, height: 150, left: 48, right: 10, top: 8, bottom: 20 };
const SMOOTHED_FROM = 60;

// `range`: of the axis of values; without it that of the points.
function chart(curve, xName, range = null) {
  const points = curve.x.map((x, i) => [x, curve.y[i]]);
  const finite = points.filter(([x, y]) => x !== null && y !== null);
  const readout = el("span", { class: "readout" });
  const rest = finite.length ? number(finite[finite.length - 1][1]) : "no finite values";
  readout.textContent = rest;
  const head = el("figcaption", {}, el("span", { class: "metric", title: plain(curve.name) }, curve.name), readout);
  const picture = svg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": plain(curve.name) });
  if (finite.length) drawCurve(picture, finite, xName, readout, rest, range);
  return el("figure", { class: "chart", "data-curve": "" }, head, picture);
}

function drawCurve(picture, points, xName, readout, rest, range) {
  const scale = scales(points, range);
  drawAxes(picture, scale, xName);
  const smooth = points.length >= SMOOTHED_FROM;
  picture.append(svg("path", { class: smooth ? "line faint" : "line", d: pathOf(points, scale) }));
  if (smooth) picture.append(svg("path", { class: "line", d: pathOf(smoothed(points), scale) }));
  if (points.length <= 12) {
    for (const [x, y] of points) picture.append(svg("circle", { class: "dot", cx: scale.x(x), cy: scale.y(y), r: 2.6 }));
  }
  const hair = svg("line", { class: "hair", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  const spot = svg("circle", { class: "dot", r: 3.4, visibility: "hidden" });
  picture.append(hair, spot);
  picture.addEventListener("mousemove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * CHART.width;
    const near = points.reduce((a, b) => (Math.abs(scale.x(b[0]) - at) < Math.abs(scale.x(a[0]) - at) ? b : a));
    hair.setAttribute("x1", scale.x(near[0]));
    hair.setAttribute("x2", scale.x(near[0]));
    spot.setAttribute("cx", scale.x(near[0]));
    spot.setAttribute("cy", scale.y(near[1]));
    for (const mark of [hair, spot]) mark.setAttribute("visibility", "visible");
    readout.textContent = `${xName} ${number(near[0])}: ${number(near[1], 4)}`;
  });
  picture.addEventListener("mouseleave", () => {
    for (const mark of [hair, spot]) mark.setAttribute("visibility", "hidden");
    readout.textContent = rest;
  });
}

function scales(points, range) {
  const extent = (values) => [Math.min(...values), Math.max(...values)];
  let [x0, x1] = extent(points.map((p) => p[0]));
  let [y0, y1] = range || extent(points.map((p) => p[1]));
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = [y0 - (Math.abs(y0) || 1) * 0.5, y1 + (Math.abs(y1) || 1) * 0.5];
  const ticks = niceTicks(y0, y1);
  y0 = Math.min(y0, ticks[0]);
  y1 = Math.max(y1, ticks[ticks.length - 1]);
  const wide = CHART.width - CHART.left - CHART.right;
  const high = CHART.height - CHART.top - CHART.bottom;
  return {
    x0, x1, ticks,
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
  return points.map(([x, y], i) => `${i ? "L" : "M"}${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}`).join("");
}

function smoothed(points) {
  const half = Math.max(3, Math.floor(points.length / 25));
  return points.map(([x], i) => [x, mean(points.slice(Math.max(0, i - half), i + half + 1).map((p) => p[1]))]);
}
