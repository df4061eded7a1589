// The group at a glance: one lane per rollout, x = tokens, colour = who wrote them, forks joined to their parent's lane.

const WIDE = { width: 1000, left: 64, right: 170, rewardAt: 56, advantageAt: 140, height: 20, bar: 11, top: 22 };
// On a phone one unit is about one pixel, so that the numbers can be read.
const NARROW = { width: 350, left: 42, right: 122, rewardAt: 52, advantageAt: 120, height: 22, bar: 11, top: 24 };
const phone = matchMedia("(max-width: 640px)");
let LANE = WIDE;

function children(group, rollout) {
  return group.rollouts.filter((one) => one.at && one.at[0] === rollout.id);
}

// Depth first: a rollout, then its forks in the order in which they leave it.
function inOrder(group) {
  const out = [];
  const visit = (rollout, depth) => {
    out.push({ rollout, depth });
    const forks = children(group, rollout);
    forks.sort((a, b) => a.at[1] - b.at[1]);
    for (const fork of forks) visit(fork, depth + 1);
  };
  for (const root of group.rollouts.filter((one) => !one.at)) visit(root, 0);
  return out;
}

function lanes(group, open) {
  LANE = phone.matches ? NARROW : WIDE;
  const order = inOrder(group);
  const drawn = new Map();
  for (const { rollout } of order) {
    const owner = rollout.at ? drawn.get(rollout.at[0]) : null;
    const start = owner ? owner.starts[rollout.at[1]] : 0;
    const starts = [start];
    for (const segment of rollout.segments) starts.push(starts[starts.length - 1] + segment.n);
    drawn.set(rollout.id, { lane: drawn.size, starts, owner });
  }
  const longest = Math.max(1, ...[...drawn.values()].map((p) => p.starts[p.starts.length - 1]));
  const x = (tokens) => LANE.left + (tokens / longest) * (LANE.width - LANE.left - LANE.right);
  const y = (lane) => LANE.top + lane * LANE.height;
  const height = LANE.top + order.length * LANE.height + 6;
  const picture = svg("svg", { class: "lanes", viewBox: `0 0 ${LANE.width} ${height}`, role: "img", "aria-label": "rollouts of the group over tokens" });
  picture.append(...laneAxis(longest, x, height, group));
  for (const { rollout } of order) picture.append(lane(rollout, drawn.get(rollout.id), x, y, { open, group }));
  return el("div", { class: "scroll" }, picture);
}

function laneAxis(longest, x, height, group) {
  const ticks = niceTicks(0, longest).filter((tick) => tick >= 0 && tick <= (LANE === NARROW ? 0.8 : 1) * longest);
  return [
    ...ticks.flatMap((tick) => [
      svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 14, y2: height - 4 }),
      svg("text", { class: "tick", x: x(tick), y: 9, "text-anchor": "middle" }, tick === 0 ? "0 tokens" : number(tick))]),
    svg("text", { class: "tick", x: LANE.width - LANE.right + LANE.rewardAt, y: 9, "text-anchor": "end" }, scoreName(group)),
    ...(hasAdvantages(group) ? [svg("text", { class: "tick", x: LANE.width - LANE.right + LANE.advantageAt, y: 9, "text-anchor": "end" }, "advantage")] : []),
  ];
}

function lane(rollout, { lane: at, starts, owner }, x, y, { open, group: whole }) {
  const middle = y(at) + LANE.bar / 2;
  const group = svg("g", { class: "lane", click: () => open(rollout.id) }, svg("title", {}, describe(rollout, whole)));
  group.append(svg("rect", { class: "hit", x: 0, y: y(at) - 4, width: LANE.width, height: LANE.height }));
  if (owner) {
    group.append(svg("path", { class: "branch", d: `M${x(starts[0])} ${y(owner.lane) + LANE.bar}V${middle}H${x(starts[0]) + 3}` }));
  }
  rollout.segments.forEach((segment, i) => {
    const width = Math.max(1.5, x(starts[i + 1]) - x(starts[i]) - 1);
    group.append(svg("rect", { class: "bar " + colourOf(segment), x: x(starts[i]) + 1, y: y(at), width, height: LANE.bar, rx: 2 }));
  });
  const text = (at, value, kind) => svg("text", { class: "lanetext " + kind, x: at, y: middle + 4, "text-anchor": "end" }, value);
  group.append(text(LANE.left - 8, rollout.id, ""));
  group.append(text(LANE.width - LANE.right + LANE.rewardAt, rollout.masked ? "masked" : number(rollout.reward, 2), rollout.masked ? "bad" : ""));
  group.append(text(LANE.width - LANE.right + LANE.advantageAt, rollout.masked || !hasAdvantages(whole) ? "" : signed(rollout.own), tone(rollout.own)));
  return group;
}

function colourOf(segment) {
  const failed = (segment.calls || []).some((call) => call.status !== "ok");
  return segment.kind === "result" && failed ? "result failed" : segment.kind;
}

const tone = (advantage) => (advantage > 0 ? "good" : advantage < 0 ? "bad" : "");
// What a benchmark gave is a score, what training used a reward.
const scoreName = (group) => (group.kind === "eval" ? "score" : "reward");
const hasAdvantages = (group) => group.kind === "step";
const scoreText = (r, group) => (r.masked ? "masked" : r.reward === null ? "not judged" : `${scoreName(group)} ${number(r.reward)}`);
const describe = (r, group) => plain(`rollout ${r.id}: ${scoreText(r, group)}${r.masked ? ", " + r.masked.join(": ") : ""}, stop ${r.stop}`);
