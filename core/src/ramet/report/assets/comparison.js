// Several runs beside each other: in short, what differs in their settings, curves over each other, evaluations.

const [facts] = read("overview");

function legend(labels) {
  return el("ul", { class: "legend", "aria-label": "colours of the runs" },
    labels.map((label, i) => el("li", { class: "key" }, svg("svg", { class: "swatch", viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("circle", { class: `dot c${i}`, cx: 6, cy: 6, r: 5 })), label)));
}

function settings(rows) {
  return el("section", { "data-settings": "" }, el("h2", {}, `Settings that differ (${rows.length})`),
    rows.length ? table(["key", ...facts.labels], rows, "facts compared") : el("p", { class: "hint" }, "The configurations are equal."));
}

function curvesOver(section) {
  const drawn = section.curves.filter((curve) => !curve.same);
  const main = drawn.filter((curve) => curve.main);
  const rest = drawn.filter((curve) => !curve.main);
  const grid = (curves) => el("div", { class: "charts" }, curves.map((curve) => chart(curve, section.x)));
  return el("section", {}, el("h2", {}, section.title), legend(facts.labels),
    main.length ? grid(main) : null, folded(`All other metrics (${rest.length})`, rest.length, () => grid(rest), !main.length),
    folded(`Metrics that are the same in all runs, or equal another (${section.curves.length - drawn.length})`, drawn.length < section.curves.length,
      () => el("p", {}, section.curves.filter((curve) => curve.same).map((curve) => curve.name).join(", "))));
}

function evaluation(pair) {
  const rows = pair.rows.map((row) => [row.benchmark, row.metric, number(row.before), number(row.after), signed(row.difference, 3),
    row.interval ? `${signed(row.interval[0], 3)}\u00a0to\u00a0${signed(row.interval[1], 3)}` : "none", String(row.won), String(row.lost), String(row.tasks)]);
  return el("section", { "data-evaluation": "" }, el("h2", {}, `Evaluation: from ${pair.before} to ${pair.after}`),
    pair.note ? el("p", { class: "note" }, pair.note) : null,
    rows.length ? table(["benchmark", "metric", "before", "after", "difference", "95 % interval", "tasks won", "tasks lost", "tasks"], rows, "numbers") : null,
    rows.length ? el("p", { class: "hint" }, "Paired by task: over the tasks that both have judged. Fewer than 6 tasks, or differences that are all equal, have no interval.") : null);
}

header(facts.name, []);
page.append(
  el("section", { "data-short": "" }, el("h2", {}, "In short"), table(["", ...facts.labels], facts.in_short, "facts compared")),
  ...facts.evaluations.map(evaluation),
  ...facts.sections.map(curvesOver),
  settings(facts.settings));
root.dataset.ready = "1";
