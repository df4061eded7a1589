// An evaluation: scores with their intervals, by benchmark and data source, pass@k, tools, what has no score.

const INTERVAL = { width: 180, height: 18, pad: 6 };

function evaluationSection(data) {
  if (!data) return null;
  const all = data.benchmarks;
  const tasks = all.reduce((sum, one) => sum + one.n_tasks, 0);
  const curves = all.map((one) => one.curve).filter((curve) => curve && curve.x.length > 1);
  return el("section", { "data-evaluation": "" }, el("h2", {}, "Evaluation"),
    el("p", { class: "hint" }, `${data.model}, ${data.k} ${data.k === 1 ? "rollout" : "rollouts"} per task`),
    data.finished ? null : el("p", { class: "note" }, `The evaluation is not finished: ${tasks} ${tasks === 1 ? "task is" : "tasks are"} scored so far.`),
    all.length ? scoreTable(all) : null,
    data.notes.map((note) => el("p", { class: "note" }, note)),
    titled("By data source (main metric)", sourceTable(all)),
    titled("pass@k (main metric)", curves.length ? el("div", { class: "charts" }, curves.map((curve) => chart({ ...curve, share: true }, "k"))) : null),
    titled("Tools", all.length ? toolTables(all) : null),
    titled("Rollouts without a score", missingTable(all)),
    titled("Judges", judgeTable(data.judges)));
}

function titled(title, content) {
  return content ? el("div", {}, el("h3", {}, title), content) : null;
}

function scoreTable(benchmarks) {
  const rows = benchmarks.flatMap((one) => one.metrics.map((metric, i) => [
    i ? "" : one.name, metric.name, withInterval(metric.avg) + bounds(metric), interval(metric.avg), passText(metric.passes),
    number(metric.maj), ...(i ? ["", ""] : one.ends), metric.judged, i ? "" : String(one.n_tasks)]));
  return el("div", {}, table(["benchmark", "metric", "avg@k (95 %)", "0 to 1", "pass@k", "maj@k", "answered", "cut", "scored", "tasks"], rows, "numbers scores"),
    el("p", { class: "hint" }, "The interval is that of the mean over tasks. Where all tasks have the same score it is 0, which says nothing of other tasks. "
      + "In brackets: avg@k if rollouts without a score were wrong, and if they were right. Cut: without an answer, by the limit of tokens."));
}

const bounds = (metric) => (metric.bounds ? ` [${metric.bounds.map((one) => number(one)).join(", ")}]` : "");

const passText = (passes) => passes.map(([k, value]) => `@${k}\u00a0${number(value)}`).join(", ");

// The mean as a dot, its interval as a line, cut at 0 and 1.
function interval([value, half]) {
  const x = (score) => INTERVAL.pad + Math.min(1, Math.max(0, score)) * (INTERVAL.width - 2 * INTERVAL.pad);
  const middle = INTERVAL.height / 2;
  const label = value === null ? "no score" : withInterval([value, half]);
  const picture = svg("svg", { class: "interval", viewBox: `0 0 ${INTERVAL.width} ${INTERVAL.height}`, role: "img", "aria-label": label });
  for (const at of [0, 0.5, 1]) picture.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 1, y2: INTERVAL.height - 1 }));
  if (value === null) return picture;
  if (half !== null) picture.append(svg("line", { class: "whisker", x1: x(value - half), x2: x(value + half), y1: middle, y2: middle }));
  picture.append(svg("circle", { class: "dot", cx: x(value), cy: middle, r: 3.6 }));
  return picture;
}

function sourceTable(benchmarks) {
  const rows = benchmarks.flatMap((one) => one.sources.map((source, i) => [
    i ? "" : one.name, source.name || "(none)", withInterval(source.avg), interval(source.avg), source.judged, String(source.n_tasks)]));
  return rows.length ? table(["benchmark", "data source", "avg@k (95 %)", "0 to 1", "scored", "tasks"], rows, "numbers scores") : null;
}

function toolTables(benchmarks) {
  const share = (value) => (value === null || value === undefined ? "-" : number(100 * value, 1) + " %");
  const use = benchmarks.map(({ name, tools }) => [
    name, share(tools.share_using), number(tools.calls_per_rollout, 2), number(tools.calls_if_right, 2),
    number(tools.calls_if_wrong, 2), number(tools.sampled_tokens, 1), number(tools.inserted_tokens, 1)]);
  const calls = benchmarks.flatMap(({ name, tools }) => Object.keys(tools.calls).map((tool) => [
    name, tool, String(tools.calls[tool]), share((tools.success || {})[tool]), String(tools.errors[tool] || 0),
    String(tools.infra[tool] || 0), seconds((tools.mean_s || {})[tool])]));
  return el("div", {},
    table(["benchmark", "rollouts with calls", "calls per rollout", "if right", "if wrong", "sampled tokens", "tokens of results"], use, "numbers"),
    calls.length ? table(["benchmark", "tool", "calls", "success", "errors of the model", "infrastructure failures", "mean time"], calls, "numbers")
      : el("p", { class: "hint" }, "No rollout called a tool."));
}

function missingTable(benchmarks) {
  const rows = benchmarks.flatMap((one) => one.missing.map(([reason, n]) => [one.name, reason, String(n)]));
  return rows.length ? table(["benchmark", "why", "rollouts"], rows, "facts missing") : null;
}

function judgeTable(judges) {
  const rows = judges.map((one) => [one.judge, one.benchmark, withInterval(one.avg), interval(one.avg), one.judged]);
  return rows.length ? table(["judge", "benchmark", "avg@k (95 %)", "0 to 1", "judged"], rows, "numbers scores") : null;
}
