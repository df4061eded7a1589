// The table of tasks: one row per group, filtered and sorted.

const PAGE = 200;
const COLUMNS = [
  ["step", "step", (g) => g.step],
  ["index", "group", (g) => g.index],
  ["benchmark", "benchmark", (g) => g.benchmark || ""],
  ["task", "task", (g) => g.task],
  ["source", "source", (g) => g.source],
  ["question", "question", (g) => g.question],
  ["rollouts", "rollouts", (g) => g.rollouts.length],
  ["forks", "forks", (g) => g.rollouts.filter((r) => r.at).length],
  ["masked", "masked", (g) => g.rollouts.filter((r) => r.masked).length],
  ["mean", "reward", (g) => mean(rewards(g))],
  ["min", "min", (g) => (rewards(g).length ? Math.min(...rewards(g)) : null)],
  ["max", "max", (g) => (rewards(g).length ? Math.max(...rewards(g)) : null)],
  ["calls", "calls", (g) => callsOf(g).length],
  ["tokens", "tokens", (g) => g.rollouts.flatMap((r) => r.segments).reduce((sum, s) => sum + s.n, 0)],
];
const NAMES = new Set(["step", "index", "benchmark", "task", "source", "question"]); // on the left; the others are numbers
const KINDS = { step: "training", valid: "validation", eval: "evaluation" };
const SPARE = new Set(["index", "source", "question", "rollouts", "min", "max", "calls", "tokens"]); // left out on phones
const WIDE_ONLY = new Set(["index", "source", "min", "max", "tokens"]); // left out below 1000 pixels
const RIGHT = 1 - 1e-9; // a score of 1
const STATUS = {
  "all groups": () => true,
  "with forks": (row) => row.forks > 0,
  "with a right rollout": (row) => row.max !== null && row.max >= RIGHT,
  "without a right rollout": (row) => row.max === null || row.max < RIGHT,
  "with rollouts not judged": (row) => row.group.rollouts.some((r) => !r.masked && r.reward === null),
  "with masked rollouts": (row) => row.masked > 0,
  "with tool errors": (row) => callsOf(row.group).some((call) => call.status !== "ok"),
  "without tool calls": (row) => row.calls === 0,
  "rewards differ": (row) => row.max !== null && row.max > row.min,
  "rewards all equal": (row) => row.max !== null && row.max === row.min,
};

const rewards = (group) => known(group.rollouts.map((r) => r.reward));
const callsOf = (group) => group.rollouts.flatMap((r) => [...r.segments.flatMap((s) => s.calls || []), ...r.calls]);
const LETTERS = { step: "s", valid: "v", eval: "e" };
const linkOf = (group, rollout) => `#${LETTERS[group.kind]}${group.step}/g${group.index}` + (rollout ? "/r" + rollout : "");

function rowsOf(steps) {
  return steps.flat().map((group) => {
    const row = { group };
    for (const [key, , value] of COLUMNS) row[key] = value(group);
    return row;
  });
}

function textOf(row) {
  if (row.text === undefined) {
    const g = row.group;
    const parts = g.rollouts.flatMap((r) => [r.answer || "", ...r.segments.map((s) => s.text)]);
    row.text = [g.task, g.source, g.question, ...g.gold, ...parts].join("\n").toLowerCase();
  }
  return row.text;
}

// Steps have groups, evaluations have benchmarks; a report may hold both.
function columnsOf(rows) {
  const evaluates = rows.some((row) => row.group.kind === "eval");
  const trains = rows.some((row) => row.group.kind !== "eval");
  return COLUMNS.filter(([key]) => (key !== "benchmark" || evaluates) && (key !== "step" || trains || !evaluates) && (key !== "index" || trains || !evaluates))
    .map(([key, title, value]) => [key, key === "mean" && !trains && evaluates ? "score" : title, value]);
}

function tasksPage(state) {
  const columns = columnsOf(state.rows);
  const body = el("tbody");
  const count = el("p", { class: "hint", "aria-live": "polite" });
  const more = el("button", { class: "plain", click: () => { state.shown += PAGE; draw(); } }, "show more");
  const heads = columns.map(([key, title]) => el("th", { class: cellClass(key) }, el("button", { "data-key": key, click: () => { sortBy(state, key); draw(); } }, title)));
  const draw = () => {
    const rows = visibleRows(state);
    const shown = rows.slice(0, state.shown);
    body.replaceChildren(...shown.map((row) => taskRow(row, columns)));
    count.textContent = `${rows.length} of ${state.rows.length} groups` + (rows.length > shown.length ? `, the first ${shown.length} shown` : "");
    more.hidden = shown.length === rows.length;
    for (const head of heads) {
      const mine = head.firstChild.dataset.key === state.sort;
      head.setAttribute("aria-sort", !mine ? "none" : state.down ? "descending" : "ascending");
    }
    document.documentElement.dataset.rows = rows.length;
  };
  draw();
  return el("div", { class: "tasks" }, el("h2", {}, "Tasks"), filters(state, draw), count,
    el("div", { class: "scroll" }, el("table", { class: "grid" }, el("thead", {}, el("tr", {}, heads)), body)), more);
}

const cellClass = (key) => [[!NAMES.has(key), "number"], [SPARE.has(key), "spare"], [WIDE_ONLY.has(key), "wide"], [key === "source", "source"]]
  .filter(([is]) => is).map(([, name]) => name).join(" ");

function taskRow(row, columns) {
  const cells = columns.map(([key]) => {
    if (key === "step") return el("td", {}, row.group.kind === "step" ? String(row.step) : row.group.kind === "valid" ? `${row.step} valid` : "-");
    if (key === "index") return el("td", { class: cellClass(key) }, String(row.index));
    if (key === "benchmark") return el("td", { class: "source" }, row.benchmark || "-");
    if (key === "task") return el("td", { class: "name" }, el("a", { href: linkOf(row.group) }, excerpt(row.task, 40)), below(row));
    if (key === "source") return el("td", { class: cellClass(key) }, excerpt(row.source, 30));
    if (key === "question") return el("td", { class: "question spare" }, excerpt(row.question, 90));
    const alarm = key === "masked" && row.masked > 0;
    return el("td", { class: cellClass(key) + (alarm ? " alarm" : "") }, number(row[key], 2));
  });
  return el("tr", { "data-row": "", click: () => { location.hash = linkOf(row.group); } }, cells);
}

// On a phone, where the columns of source and question are left out.
function below(row) {
  return el("div", { class: "hint phone" }, row.source ? row.source + ": " : "", excerpt(row.question, 60));
}

function sortBy(state, key) {
  state.down = state.sort === key ? !state.down : false;
  state.sort = key;
}

function visibleRows(state) {
  const wanted = state.text.toLowerCase();
  const kept = state.rows.filter((row) =>
    (state.kind === "" || row.group.kind === state.kind) &&
    (state.benchmark === "" || row.benchmark === state.benchmark) &&
    (state.step === "" || (row.group.kind !== "eval" && row.step === Number(state.step))) &&
    STATUS[state.status](row) &&
    (state.source === "" || row.source === state.source) &&
    (state.low === "" || (row.mean !== null && row.mean >= Number(state.low))) &&
    (state.high === "" || (row.mean !== null && row.mean <= Number(state.high))) &&
    (wanted === "" || textOf(row).includes(wanted)));
  const order = (a, b) => {
    const [x, y] = [a[state.sort], b[state.sort]];
    if (x === null || y === null) return (x === null) - (y === null);
    const compared = typeof x === "string" ? x.localeCompare(y) : x - y;
    return state.down ? -compared : compared;
  };
  return kept.sort(order);
}

function filters(state, draw) {
  const bind = (key, node) => {
    node.value = state[key];
    node.addEventListener("input", () => { state[key] = node.value; state.shown = PAGE; draw(); });
    return node;
  };
  const choice = (values) => el("select", {}, values.map(([value, title]) => el("option", { value }, title)));
  const distinct = (values) => [...new Set(values)];
  const kinds = distinct(state.rows.map((row) => row.group.kind));
  const benchmarks = distinct(state.rows.map((row) => row.benchmark).filter((name) => name));
  const steps = distinct(state.rows.filter((row) => row.group.kind !== "eval").map((row) => row.step));
  const sources = [...new Set(state.rows.map((row) => row.source).filter((source) => source))].sort();
  const field = (title, node) => el("label", {}, title, node);
  return el("form", { class: "filters", submit: (event) => event.preventDefault() },
    steps.length || !benchmarks.length ? field("step", bind("step", choice([["", "all"], ...steps.map((s) => [String(s), String(s)])]))) : null,
    kinds.length > 1 ? field("of", bind("kind", choice([["", "all"], ...kinds.map((kind) => [kind, KINDS[kind]])]))) : null,
    benchmarks.length > 1 ? field("benchmark", bind("benchmark", choice([["", "all"], ...benchmarks.map((name) => [name, excerpt(name, 40)])]))) : null,
    field("show", bind("status", choice(Object.keys(STATUS).map((name) => [name, name])))),
    field("source", bind("source", choice([["", "all"], ...sources.map((s) => [s, excerpt(s, 40)])]))),
    field(kinds.every((kind) => kind === "eval") && kinds.length ? "score from" : "reward from", bind("low", el("input", { type: "number", step: "any", size: 5 }))),
    field("to", bind("high", el("input", { type: "number", step: "any", size: 5 }))),
    field("text", bind("text", el("input", { type: "search", placeholder: "task, question, rollouts" }))));
}
