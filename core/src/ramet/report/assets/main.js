// The address holds what is shown: #overview, #tasks, #s3 (the tasks of a step), #s3/g2, #s3/g2/r0.1.

const state = { text: "", step: "", kind: "", benchmark: "", status: "all groups", source: "", low: "", high: "", sort: "step", down: false, shown: PAGE, rows: [] };
const view = { shade: "entropy" };
let here = null; // the open group, for the keys

const [facts] = read("overview");
const steps = read("step");
state.rows = rowsOf(steps);
const groups = state.rows.map((row) => row.group);

function route() {
  const hash = location.hash.slice(1);
  const match = /^([sve])(\d+)\/g(\d+)(?:\/r([\d.]+))?$/.exec(hash);
  const step = /^([sv])(\d+)$/.exec(hash);
  here = null;
  if (step) Object.assign(state, { step: step[2], kind: step[1] === "s" ? "step" : "valid", shown: PAGE });
  const wanted = (g) => LETTERS[g.kind] === match[1] && g.step === Number(match[2]) && g.index === Number(match[3]);
  const at = match ? groups.findIndex(wanted) : -1;
  if (at >= 0) openGroup(at, match[4]);
  else if (match) page.replaceChildren(el("p", { class: "note" }, "This group is not in this file. ", el("a", { href: "#tasks" }, "All tasks")));
  else page.replaceChildren(hash === "tasks" || step ? tasksPage(state) : overviewPage(facts, steps));
  for (const link of document.querySelectorAll("#top a")) {
    const isTasks = match !== null || step !== null || hash === "tasks";
    if (isTasks === (link.hash === "#tasks")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function openGroup(at, rollout) {
  const opened = groupPage(groups[at], { before: groups[at - 1], after: groups[at + 1] }, view);
  here = opened.context;
  page.replaceChildren(opened.page);
  if (rollout) showRollout(here, rollout);
  else window.scrollTo(0, 0);
}

function move(by) {
  const order = inOrder(here.group).map(({ rollout }) => rollout.id);
  const now = order.indexOf(here.current);
  const next = now < 0 ? 0 : Math.min(order.length - 1, Math.max(0, now + by));
  showRollout(here, order[next]);
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (here && event.key === "j") move(1);
  if (here && event.key === "k") move(-1);
});

header(facts.name, groups.length ? [el("a", { href: "#overview" }, "Overview"), el("a", { href: "#tasks" }, `Tasks (${groups.length})`)] : []);
window.addEventListener("hashchange", route);
phone.addEventListener("change", route);
route();
root.dataset.groups = groups.length;
root.dataset.rollouts = groups.reduce((sum, g) => sum + g.rollouts.length, 0);
root.dataset.segments = groups.flatMap((g) => g.rollouts).reduce((sum, r) => sum + r.segments.length, 0);
root.dataset.ready = "1";
