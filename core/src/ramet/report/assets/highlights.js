// Rollouts worth reading: the best, the worst, and the one that its group makes most surprising, where they differ.

function worthReading(groups) {
  const trained = groups.filter((group) => group.kind === "step");
  const all = (trained.length ? trained : groups).flatMap(candidates);
  if (!all.length) return null;
  const taken = [];
  const pick = (order) => {
    const left = all.filter((one) => !taken.includes(one));
    if (left.length) taken.push(left.reduce((a, b) => (compareAll(order(b), order(a)) > 0 ? b : a)));
  };
  pick((one) => [one.reward, one.group.step, one.calls]);
  pick((one) => [-one.reward, one.group.step, one.confidence]);
  pick((one) => [Number(Math.abs(one.surprise).toFixed(6)), one.surprise < 0 ? one.confidence : -one.confidence, one.group.step]);
  const [best, worst, surprising] = taken;
  const score = scoreName(best.group);
  const newest = best.group.kind === "eval" ? "" : "the newest, then ";
  if (!worst || best.reward === worst.reward) return shown("A rollout worth reading", highlight("One of all", best, `all have the same ${score}`));
  return shown("Rollouts worth reading",
    highlight("Best", best, `the highest ${score}; of equal ones ${newest}the one with most tool calls`),
    highlight("Worst", worst, `the lowest ${score}; of equal ones ${newest}the one that the policy was most sure of`),
    surprising && surprising.surprise ? highlight("Most surprising", surprising, surpriseText(surprising, score)) : null);
}

function shown(title, ...chosen) {
  return el("section", { "data-highlights": "" }, el("h2", {}, title), el("ul", { class: "highlights" }, chosen));
}

// Rollouts that have a reward, with what the choice depends on.
function candidates(group) {
  const scored = group.rollouts.filter((one) => !one.masked && one.reward !== null);
  return scored.map((rollout) => {
    const others = scored.filter((one) => one !== rollout).map((one) => one.reward);
    const logprobs = known(rollout.segments.flatMap((segment) => segment.logprobs || []));
    return {
      group, rollout, reward: rollout.reward,
      calls: rollout.calls.length + rollout.segments.reduce((sum, segment) => sum + (segment.calls || []).length, 0),
      surprise: others.length ? rollout.reward - mean(others) : 0,
      confidence: logprobs.length ? Math.exp(mean(logprobs)) : 0,
    };
  });
}

function compareAll(a, b) {
  const at = a.findIndex((value, i) => value !== b[i]);
  return at < 0 ? 0 : a[at] - b[at];
}

function surpriseText(one, score) {
  const others = one.reward - one.surprise;
  const sure = one.confidence ? `; its tokens had a mean probability of ${number(one.confidence, 2)}` : "";
  return `${score} ${number(one.reward)} where the others of its group have ${number(others, 2)} on average${sure}`;
}

function highlight(title, { group, rollout }, why) {
  const answer = rollout.answer === null ? "no answer" : `answer ${excerpt(rollout.answer, 60)}`;
  const gold = group.gold.length ? `, gold ${excerpt(group.gold.join(" | "), 60)}` : "";
  return el("li", {}, el("h3", {}, title, ": ", el("a", { href: linkOf(group, rollout.id) }, `${titleOf(group)}, rollout ${rollout.id}`)),
    el("p", {}, excerpt(group.question, 160)),
    el("p", { class: "hint" }, `${scoreText(rollout, group)}, ${answer}${gold}. Chosen: ${why}.`));
}
