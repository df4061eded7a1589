// One group: rollouts as flat chains of segments; only a fork is indented, where it leaves its parent.

const SHADES = 9;
const FULL_ENTROPY = 3; // nats of the darkest shade; the scale is a square root, so that small entropies show
const OPEN_TOKENS = 20000; // a group up to this size opens with every rollout unfolded
const shadeOf = (entropy) => Math.min(SHADES, Math.round(SHADES * Math.sqrt(Math.max(0, entropy) / FULL_ENTROPY)));

function groupPage(group, around, view) {
  const context = { group, view, nodes: new Map() };
  const roots = group.rollouts.filter((one) => !one.at).map((root) => rolloutNode(root, context));
  const tokens = group.rollouts.flatMap((r) => r.segments).reduce((sum, s) => sum + s.n, 0);
  const unfold = (all) => { for (const { rollout } of inOrder(group)) context.nodes.get(rollout.id).open = all; };
  const page = el("div", { class: "group", "data-shade": view.shade },
    el("nav", { class: "crumbs", "aria-label": "groups" }, el("a", { href: "#tasks" }, "all tasks"),
      around.before ? el("a", { href: linkOf(around.before) }, "previous") : null,
      around.after ? el("a", { href: linkOf(around.after) }, "next") : null),
    el("h2", {}, `${titleOf(group)}: `, group.task),
    question(group), lanes(group, (id) => showRollout(context, id)), legend(group));
  page.append(toolbar(group, view, page, unfold), ...roots);
  openLazily(context);
  unfold(tokens <= OPEN_TOKENS);
  if (tokens > OPEN_TOKENS) roots[0].open = true;
  return { page, context, unfold };
}

function titleOf(group) {
  if (group.kind === "eval") return group.benchmark;
  return `${group.kind === "valid" ? "Validation after step" : "Step"} ${group.step}, group ${group.index}`;
}

function question(group) {
  return el("div", { class: "task" },
    el("div", { class: "text" }, group.question),
    el("p", { class: "hint" }, group.gold.length ? `gold answer: ${group.gold.join(" | ")}` : "no gold answer", group.source ? `, source: ${group.source}` : ""),
    group.prompt ? el("details", { class: "more" }, el("summary", {}, `Prompt as the model read it (${group.prompt.n} tokens)`),
      el("div", { class: "segment prompt", "data-origin": "prompt" }, el("div", { class: "text" }, group.prompt.text))) : null);
}

function legend(group) {
  const swatch = (kind, name) => el("span", { class: "key" }, el("i", { class: "swatch " + kind }), name);
  const scale = Array.from({ length: SHADES + 1 }, (_, i) => el("i", { class: "shade e" + i, title: `${number(FULL_ENTROPY * (i / SHADES) ** 2, 2)} nats` }));
  return el("div", { class: "legend" }, swatch("turn", "sampled by the policy"), swatch("result", "tool result or messages"),
    swatch("result failed", "tool result, call failed"), swatch("forced", "forced end"), swatch("prompt", "prompt"),
    el("span", { class: "key" }, "entropy 0 ", scale, ` ${FULL_ENTROPY} nats or more`));
}

function toolbar(group, view, page, unfold) {
  const shade = el("select", {}, ["entropy", "advantage", "nothing"].map((name) => el("option", { value: name }, name)));
  shade.value = view.shade;
  shade.addEventListener("input", () => { view.shade = shade.value; page.dataset.shade = shade.value; });
  return el("div", { class: "toolbar" }, el("label", {}, "shade tokens by", shade),
    el("button", { class: "plain", click: () => unfold(true) }, "unfold all"),
    el("button", { class: "plain", click: () => unfold(false) }, "fold all"),
    el("button", { class: "plain", click: (event) => copy(event.target, group) }, "copy group as JSON"),
    el("span", { class: "hint" }, "j / k: next, previous rollout"));
}

function rolloutNode(rollout, context) {
  const node = el("details", { class: rollout.at ? "rollout fork" : "rollout", "data-rollout": rollout.id, tabindex: -1 },
    el("summary", {}, rolloutHead(rollout, context.group)));
  context.nodes.set(rollout.id, node);
  node.fillBody = () => {
    const forks = children(context.group, rollout);
    const parts = [];
    for (let i = 0; i <= rollout.segments.length; i += 1) {
      for (const fork of forks.filter((one) => one.at[1] === i)) parts.push(context.nodes.get(fork.id));
      if (i < rollout.segments.length) parts.push(segmentNode(rollout.segments[i]));
    }
    node.append(el("div", { class: "chain" }, forkReason(rollout), parts, rolloutFoot(rollout, context.group)));
  };
  return node;
}

// Fork nodes are made before any body, so that a body can hang them where they belong.
function openLazily(context) {
  for (const rollout of context.group.rollouts) if (!context.nodes.has(rollout.id)) rolloutNode(rollout, context);
  for (const node of context.nodes.values()) {
    const body = () => { if (node.open && node.childElementCount === 1) node.fillBody(); };
    new MutationObserver(body).observe(node, { attributes: true, attributeFilter: ["open"] });
  }
}

function rolloutHead(rollout, group) {
  const turns = rollout.segments.filter((s) => s.kind === "turn");
  const sampled = turns.reduce((sum, s) => sum + s.n, 0);
  const whose = rollout.at ? `of its own, ${rollout.sampled} in all` : "";
  const facts = [`stop: ${rollout.stop}`, `${turns.length} ${turns.length === 1 ? "turn" : "turns"}`, `${sampled} sampled tokens ${whose}`];
  if (rollout.at) facts.unshift(`fork of ${rollout.parent} at turn ${rollout.turn + 1}`);
  const advantage = rollout.own === null ? null :
    el("span", { class: "badge " + tone(rollout.own), title: "mean advantage of its own sampled tokens" }, "advantage " + signed(rollout.own),
      rollout.shared === null ? "" : ` (shared prefix ${signed(rollout.shared)})`);
  return [el("b", { class: "rid" }, rollout.id),
    el("span", { class: rollout.masked || rollout.reward === null ? "badge bad" : "badge" }, scoreText(rollout, group)),
    advantage, el("span", { class: "hint" }, facts.join(", "))];
}

// The numbers by which the branch policy decided; plugins may give none.
function forkReason(rollout) {
  const given = Object.entries(rollout.reason).map(([name, value]) => `${name} ${number(value, 4)}`);
  return given.length ? el("p", { class: "hint", "data-reason": "" }, `Forked here because: ${given.join(", ")}`) : null;
}

function rolloutFoot(rollout, group) {
  const rows = [["answer", rollout.answer === null ? "none" : rollout.answer]];
  if (rollout.masked) rows.push(["masked because", rollout.masked.join(": ")]);
  for (const [name, value] of Object.entries(rollout.parts)) {
    const reason = rollout.reasons[name] ? `: ${rollout.reasons[name]}` : "";
    rows.push([group.kind === "eval" ? `metric ${name}` : `reward part ${name}`, number(value) + reason]);
  }
  for (const [at, value] of Object.entries(rollout.token_rewards)) rows.push([`token reward at ${at}`, number(value)]);
  for (const [turn, value] of rollout.turn_rewards) rows.push([`reward of turn ${turn + 1}`, number(value)]);
  for (const [turn, text] of rollout.infos) rows.push([`info of turn ${turn + 1}`, text]);
  for (const [name, value] of Object.entries(rollout.stats)) rows.push([name, number(value)]);
  return el("div", { class: "foot" }, rollout.calls.map(callNode), (rollout.asked || []).map(judgeNode), table(["", ""], rows, "facts"),
    el("button", { class: "plain", click: (event) => copy(event.target, rollout) }, "copy rollout as JSON"));
}

function segmentNode(segment) {
  const facts = [segment.kind === "turn" ? `turn ${segment.turn + 1}` : segment.kind, `${segment.n} tokens`];
  if (segment.thread !== undefined) facts.unshift(`thread ${segment.thread + 1}`);
  const entropies = known(segment.entropies);
  if (entropies.length) facts.push(`entropy ${number(mean(entropies), 2)}`);
  if (typeof segment.advantages === "number") facts.push(`advantage ${signed(segment.advantages)}`);
  if (Array.isArray(segment.advantages)) facts.push(`advantage ${signed(mean(known(segment.advantages)))} (per token)`);
  if (segment.worth) facts.push(worthText(segment.worth));
  if (segment.version !== undefined && segment.version !== null) facts.push(`weights version ${segment.version}`);
  const node = el("div", { class: "segment " + colourOf(segment), "data-segment": segment.kind }, el("div", { class: "meta" }, facts.join("  \u00b7  ")));
  node.append(...(segment.calls || []).map(callNode));
  node.append(segment.tokens ? tokenText(segment) : el("div", { class: "text" }, segment.text));
  if (!segment.tokens && entropies.length) node.append(bars(segment));
  return node;
}

// What `ramet credit` measured: the difference of the mean rewards of continuations after and before this turn.
function worthText([mean, low, high]) {
  return `worth ${signed(mean)}` + (low === null ? "" : ` (95 % interval ${signed(low)} to ${signed(high)})`);
}

function tokenText(segment) {
  const box = el("div", { class: "text tokens" });
  segment.tokens.forEach((text, i) => {
    const entropy = segment.entropies ? segment.entropies[i] : null;
    const token = el("span", { class: entropy === null ? "tok" : `tok e${shadeOf(entropy)}`, "data-i": i });
    const advantage = Array.isArray(segment.advantages) ? segment.advantages[i] : segment.advantages;
    if (advantage) token.classList.add(advantage > 0 ? "up" : "down");
    box.append(append(token, text));
  });
  box.addEventListener("mouseover", (event) => {
    const token = event.target.closest(".tok");
    if (token && !token.title) token.title = tokenTitle(segment, Number(token.dataset.i));
  });
  return box;
}

function tokenTitle(segment, i) {
  const at = (values) => (Array.isArray(values) ? values[i] : values);
  return plain(`${JSON.stringify(segment.tokens[i])}\nentropy ${number(at(segment.entropies))} nats\nlog-probability ${number(at(segment.logprobs))}\nadvantage ${signed(at(segment.advantages))}`);
}

// Without token texts the entropies are drawn below the text, one bar per token.
function bars(segment) {
  const n = segment.entropies.length;
  const strip = svg("svg", { class: "strip", viewBox: `0 0 ${n} 20`, preserveAspectRatio: "none", role: "img", "aria-label": "entropy per token" });
  segment.entropies.forEach((entropy, i) => {
    const high = Math.max(0.6, 20 * Math.sqrt(Math.min(FULL_ENTROPY, Math.max(0, entropy || 0)) / FULL_ENTROPY));
    const advantage = Array.isArray(segment.advantages) ? segment.advantages[i] : segment.advantages;
    strip.append(svg("rect", { class: "bar1", x: i, y: 20 - high, width: 0.8, height: high },
      svg("title", {}, `token ${i}: entropy ${number(entropy)} nats, advantage ${signed(advantage)}`)));
  });
  strip.style.maxWidth = `${Math.max(60, 8 * n)}px`;
  return el("div", { class: "strips" }, strip);
}

function callNode(call) {
  const facts = [seconds(call.run_s), `queued ${seconds(call.wait_s)}`, ...call.marks];
  if (call.attempts > 1) facts.push(`${call.attempts} attempts`);
  return el("details", { class: "call " + (call.status === "ok" ? "" : "failed"), "data-call": call.status },
    el("summary", {}, el("b", {}, call.name), el("span", { class: call.status === "ok" ? "badge good" : "badge bad" }, call.status),
      el("span", { class: "hint" }, facts.join(", "))),
    el("div", { class: "label" }, "arguments"), el("div", { class: "text" }, call.arguments),
    el("div", { class: "label" }, "shown to the model"), el("div", { class: "text" }, call.text));
}

// What a judge was asked and answered, as text.
function judgeNode(asked) {
  const failed = asked.reply === null;
  return el("details", { class: failed ? "call failed" : "call", "data-judge": "" },
    el("summary", {}, el("b", {}, "judge"), el("span", { class: failed ? "badge bad" : asked.accepted ? "badge good" : "badge bad" }, failed ? "no answer" : asked.accepted ? "answered" : "no verdict"),
      el("span", { class: "hint" }, [asked.model, asked.prompt].filter((text) => text).join(", "))),
    asked.messages.flatMap((one) => [el("div", { class: "label" }, one.role), el("div", { class: "text" }, one.content)]),
    el("div", { class: "label" }, failed ? "why there is no answer" : "answer"), el("div", { class: "text" }, failed ? asked.error : asked.reply));
}

function showRollout(context, id) {
  const byId = new Map(context.group.rollouts.map((one) => [one.id, one]));
  const chain = [];
  for (let one = byId.get(id); one; one = one.at ? byId.get(one.at[0]) : null) chain.unshift(one);
  for (const one of chain) {
    const node = context.nodes.get(one.id);
    node.open = true;
    if (node.childElementCount === 1) node.fillBody();
  }
  const node = context.nodes.get(id);
  if (!node) return;
  for (const other of context.nodes.values()) other.classList.toggle("current", other === node);
  node.focus({ preventScroll: true });
  node.scrollIntoView({ block: "start" });
  context.current = id;
  history.replaceState(null, "", linkOf(context.group, id));
}
