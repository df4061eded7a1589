// The first page: before and after, curves, evaluations, and what the run was.

function overviewPage(data, steps) {
  return el("div", { class: "overview" },
    data.notes.map((note) => el("p", { class: "note" }, note)),
    beforeAfter(data.summary),
    evaluationSection(data.evaluation),
    data.sections.map(curveSection),
    el("section", {}, el("h2", {}, "Run"), table(["", ""], [...runFacts(steps), ...data.facts], "facts"), files(data)));
}

function beforeAfter(summary) {
  if (!summary) return null;
  const change = (a, b) => (typeof a === "number" && typeof b === "number" ? signed(b - a) : "");
  const show = (value) => (typeof value === "number" ? number(value) : String(value));
  const rows = summary.pairs.map(([name, a, b]) => [name.replaceAll("_", " "), show(a), show(b), change(a, b)]);
  return el("section", {}, el("h2", {}, "Before and after"),
    rows.length ? table(["", "before", "after", "change"], rows, "numbers") : null,
    summary.rest.length ? table(["", ""], summary.rest.map(([name, value]) => [name.replaceAll("_", " "), value]), "facts") : null);
}

function curveSection(section) {
  const main = section.curves.filter((curve) => curve.main);
  const rest = section.curves.filter((curve) => !curve.main);
  const grid = (curves) => el("div", { class: "charts" }, curves.map((curve) => chart(curve, section.x)));
  const more = el("details", { class: "more", open: main.length === 0 }, el("summary", {}, `All other metrics (${rest.length})`));
  const open = () => { if (more.open && more.childElementCount === 1) more.append(grid(rest)); };
  more.addEventListener("toggle", open);
  open();
  return el("section", {}, el("h2", {}, section.title),
    section.thinned ? el("p", { class: "hint" }, "Long curves are drawn as means of neighbouring points.") : null,
    main.length ? grid(main) : null, rest.length ? more : null);
}

function runFacts(steps) {
  const groups = steps.flat();
  const rollouts = groups.flatMap((group) => group.rollouts);
  const masked = rollouts.filter((one) => one.masked).length;
  return [
    ["rollouts in this file", `${rollouts.length} in ${groups.length} groups${parts(groups)}`],
    ["masked", `${masked} of ${rollouts.length}`],
  ];
}

// " of 3 steps and 2 validations"; nothing for an evaluation alone.
function parts(groups) {
  const count = (kind, one, many) => {
    const n = new Set(groups.filter((group) => group.kind === kind).map((group) => group.step)).size;
    return n ? `${n} ${n === 1 ? one : many}` : "";
  };
  const found = [count("step", "step", "steps"), count("valid", "validation", "validations"), count("eval", "evaluation", "")].filter((text) => text);
  return found.length ? " of " + found.join(" and ") : "";
}

function files(data) {
  const shown = [["Configuration", data.config], ["Overrides", data.overrides], ["Manifest", data.manifest]];
  return shown.filter(([, text]) => text).map(([title, text]) =>
    el("details", { class: "more" }, el("summary", {}, title), el("pre", { class: "text" }, text)));
}

function table(heads, rows, kind) {
  const head = heads.some((title) => title) ? el("thead", {}, el("tr", {}, heads.map((title) => el("th", {}, title)))) : null;
  return el("div", { class: "scroll" }, el("table", { class: kind }, head,
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el(i ? "td" : "th", {}, cell)))))));
}
