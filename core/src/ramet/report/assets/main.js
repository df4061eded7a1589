// The address holds what is shown: #overview, #tasks, #s3/g2, #s3/g2/r0.1.

const page = document.getElementById("page");
const root = document.documentElement;
const state = { text: "", step: "", kind: "", benchmark: "", status: "all groups", source: "", low: "", high: "", sort: "step", down: false, shown: PAGE, rows: [] };
const view = { shade: "entropy" };
let here = null; // the open group, for the keys

root.dataset.errors = 0;
window.addEventListener("error", () => { root.dataset.errors = Number(root.dataset.errors) + 1; });

function read(kind) {
  return [...document.querySelectorAll(`script[data-kind="${kind}"]`)].map((node) => JSON.parse(node.textContent));
}

const [facts] = read("overview");
const steps = read("step");
state.rows = rowsOf(steps);
const groups = state.rows.map((row) => row.group);

function route() {
  const hash = location.hash.slice(1);
  const match = /^([sve])(\d+)\/g(\d+)(?:\/r([\d.]+))?$/.exec(hash);
  here = null;
  const wanted = (g) => LETTERS[g.kind] === match[1] && g.step === Number(match[2]) && g.index === Number(match[3]);
  const at = match ? groups.findIndex(wanted) : -1;
  if (at >= 0) openGroup(at, match[4]);
  else if (match) page.replaceChildren(el("p", { class: "note" }, "This group is not in this file. ", el("a", { href: "#tasks" }, "All tasks")));
  else page.replaceChildren(hash === "tasks" ? tasksPage(state) : overviewPage(facts, steps));
  for (const link of document.querySelectorAll("#top a")) {
    const mine = link.hash === "#overview" ? !match && hash !== "tasks" : match !== null || hash === "tasks";
    link.toggleAttribute("aria-current", mine);
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

function themeButton() {
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  return el("button", { class: "plain", click: () => { root.dataset.theme = dark() ? "light" : "dark"; } }, "light / dark");
}

document.getElementById("top").append(
  el("h1", {}, "Ramet ", el("span", { class: "run" }, facts.name)),
  el("nav", {}, el("a", { href: "#overview" }, "Overview"), el("a", { href: "#tasks" }, `Tasks (${groups.length})`), themeButton()));
window.addEventListener("hashchange", route);
phone.addEventListener("change", route);
route();
root.dataset.groups = groups.length;
root.dataset.rollouts = groups.reduce((sum, g) => sum + g.rollouts.length, 0);
root.dataset.segments = groups.flatMap((g) => g.rollouts).reduce((sum, r) => sum + r.segments.length, 0);
root.dataset.ready = "1";
