// The first page: the verdict, the run in short, before and after, evaluations, curves, rollouts worth reading, and what it was.

const FIRST_FACTS = new Set(["job", "state", "seed", "deterministic"]);
const SEVERITY = { problem: "wrong", warning: "look", note: "note" };
const SHOWN = new Set(["valid/reward", "reward/roots_mean"]);

function overviewPage(data, steps) {
  return el("div", { class: "overview" },
    data.notes.map((note) => el("p", { class: "note" }, note)),
    verdict(data.findings, steps.flat()),
    inShort(data.in_short),
    beforeAfter(data.summary),
    evaluationSection(data.evaluation),
    data.sections.map((section) => curveSection(section, stepsOf(steps))),
    worthReading(steps.flat()),
    el("section", {}, el("h2", {}, "Run"), table(["", ""], [...runFacts(steps), ...data.facts.filter(isFirst)], "facts"),
      moreFacts(data.facts.filter((fact) => !isFirst(fact))), files(data)));
}

// What `ramet doctor RUN` says; `findings` is null where the run was not examined.
function verdict(findings, groups) {
  if (!findings) return null;
  return el("section", { "data-verdict": findings.length }, el("h2", {}, "Verdict"),
    findings.length ? el("ul", { class: "findings" }, findings.map((one) => finding(one, groups)))
      : el("p", {}, "ramet doctor finds nothing wrong with this run."));
}

function finding(one, groups) {
  const shown = one.rollouts.map((place) => placeLink(place, groups)).filter((link) => link);
  return el("li", { class: one.severity },
    el("h3", {}, el("span", { class: one.severity === "problem" ? "badge bad" : "badge" }, SEVERITY[one.severity]), " ", one.what),
    el("p", {}, one.text), one.fix ? el("p", {}, el("b", {}, "Change: "), one.fix) : null,
    shown.length ? el("p", { class: "hint" }, "Rollouts that show it: ", shown.flatMap((link, i) => (i ? [", ", link] : [link]))) : null,
    one.page ? el("p", { class: "hint" }, `More: ${one.page}`) : null);
}

// A link to a rollout that is in this file.
function placeLink({ kind, step, task, rollout }, groups) {
  const group = groups.find((one) => one.kind === kind && one.task === task && (kind === "eval" || one.step === step));
  return group ? el("a", { href: linkOf(group, rollout) }, `${titleOf(group)}, rollout ${rollout}`) : null;
}

function inShort(lines) {
  return lines.length ? el("section", { "data-short": "" }, el("h2", {}, "In short"), table(["", ""], lines, "facts short")) : null;
}

const isFirst = ([name]) => FIRST_FACTS.has(name);

function moreFacts(facts) {
  return facts.length ? el("details", { class: "more" }, el("summary", {}, `Versions, data, prompt and state (${facts.length})`), table(["", ""], facts, "facts")) : null;
}

// The steps and validations whose rollouts are in this file, as their addresses: s3, v3.
function stepsOf(steps) {
  return new Set(steps.flat().filter((group) => group.kind !== "eval").map((group) => LETTERS[group.kind] + group.step));
}

function beforeAfter(summary) {
  if (!summary) return null;
  const change = (a, b) => (typeof a === "number" && typeof b === "number" ? signed(b - a, 3) : "");
  const show = (value) => (typeof value === "number" ? number(value) : String(value));
  const rows = summary.pairs.map(([name, a, b]) => [name.replaceAll("_", " "), show(a), show(b), change(a, b)]);
  return el("section", {}, el("h2", {}, "Before and after"),
    rows.length ? table(["", "before", "after", "change"], rows, "numbers") : null,
    summary.rest.length ? table(["", ""], summary.rest.map(([name, value]) => [name.replaceAll("_", " "), value]), "facts") : null);
}

// A curve that is flat or equal to another is a line of a list; those of `SHOWN` are always drawn.
function curveSection(section, linked) {
  const drawn = section.curves.filter((curve) => SHOWN.has(curve.name) || !(curve.flat || curve.same));
  const still = section.curves.filter((curve) => !drawn.includes(curve));
  const main = drawn.filter((curve) => curve.main);
  const rest = drawn.filter((curve) => !curve.main);
  const grid = (curves) => el("div", { class: "charts" }, curves.map((curve) => chart(curve, section.x, linked)));
  return el("section", {}, el("h2", {}, section.title),
    section.thinned ? el("p", { class: "hint" }, "Long curves are drawn as means of neighbouring points.") : null,
    el("p", { class: "hint" }, main.some((curve) => curve.half) ? "Bands: 95 % interval of a step's mean over its groups. " : "",
      linked.size && section.x === "step" ? "A click on a point shows the rollouts of its step." : ""),
    main.length ? grid(main) : null, folded(`All other metrics (${rest.length})`, rest.length, () => grid(rest), !main.length), still.length ? stillTable(still) : null);
}

function stillTable(curves) {
  const value = (curve) => (curve.same && !curve.flat ? `as ${curve.same}` : number(curve.y[0], 4));
  return el("details", { class: "more", "data-still": "" }, el("summary", {}, `Metrics that do not change or equal another (${curves.length})`),
    table(["metric", "value"], curves.map((curve) => [curve.name, value(curve)]), "facts"));
}

function runFacts(steps) {
  const groups = steps.flat();
  const rollouts = groups.flatMap((group) => group.rollouts);
  if (!groups.length) return [];
  return [["rollouts in this file", `${rollouts.length} in ${groups.length} groups${parts(groups)}`]];
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
