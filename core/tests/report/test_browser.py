"""The report in a real browser. `--dump-dom` gives the page after its scripts ran."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.io.json_lines import json_line
from ramet.report.credit import CREDIT, credit_folder
from ramet.report.html import write_report
from ramet.rollout.record import read_records
from ramet.rollout.record_files import recorded_files
from ramet.tracking.jsonl import JsonlTracker

pytestmark = pytest.mark.browser

HOSTILE = (
    "</script><script>window.PWNED=1;document.documentElement.dataset.pwned=1</script>"
    '<img src=x onerror="document.documentElement.dataset.pwned=1">'
    "\u202eevil\u202c \ud800 \x1b[31mred\x1b[0m <!-- &lt;b&gt; ]]> \u2028 \u200b {{7*7}}"
)
SEEN = HOSTILE.replace("\u202e", "U+202E").replace("\u202c", "U+202C").replace("\ud800", "U+D800")
SEEN = SEEN.replace("\x1b", "U+001B").replace("\u2028", "U+2028").replace("\u200b", "U+200B")


def test_it_opens_from_disk_and_holds_every_recorded_group_rollout_and_segment(
    run: Path, open_page: Callable[..., Any]
) -> None:
    groups = [record.group for file in recorded_files(run) for record in read_records(file.path)]
    segments = {id(s) for g in groups for r in g.rollouts for s in r.rollout.segments if s.kind != "prompt"}
    page = open_page(write_report(run))
    assert page.facts["ready"] == "1" and page.facts["errors"] == "0"
    assert int(page.facts["groups"]) == len(groups) == 9
    assert int(page.facts["rollouts"]) == sum(len(g.rollouts) for g in groups) == 45
    assert int(page.facts["segments"]) == len(segments)
    assert "Refused" not in page.console and "Uncaught" not in page.console
    shown = page.html.all("main")[0]
    titles = ["Verdict", "In short", "Before and after", "Training", "Rollouts worth reading", "Run"]
    assert [e.text for e in shown.all("h2")] == titles
    assert [e.text for e in shown.all("span", **{"class": "metric"})][:2] == ["valid/reward", "reward/mean"]
    (still,) = shown.all("details", data_still=None)
    assert still.all("summary")[0].text == "Metrics that do not change or equal another (2)"
    links = [link for item in shown.all("ul", **{"class": "highlights"}) for link in item.all("a")]
    assert [link.attributes["href"] for link in links] == ["#s40/g0/r0", "#s40/g0/r0.1", "#s40/g1/r0.1"]
    assert all(figure.all("path") or figure.all("circle") for figure in shown.all("figure"))


def test_what_turns_were_worth_is_shown_at_them(run: Path, open_page: Callable[..., Any]) -> None:
    first = next(read_records(recorded_files(run)[0].path))
    worth = {"mean": 0.5, "low": 0.25, "high": 0.75}
    credit_folder(run).mkdir()
    row = {"rollout": f"{first.step}/0/0", "turn": 0, "worth": worth}
    (credit_folder(run) / CREDIT).write_bytes(json_line(row))
    shown = open_page(write_report(run), f"#s{first.step}/g0").html.text
    assert shown.count("worth +0.5 (95 % interval +0.25 to +0.75)") == 1


def test_the_verdict_comes_first_and_leads_to_rollouts(run: Path, open_page: Callable[..., Any]) -> None:
    (verdict,) = open_page(write_report(run)).html.all("section", data_verdict=None)
    (problem, *_) = verdict.all("li", **{"class": "problem"})
    assert problem.all("h3")[0].text == "wrong rollouts are masked by tool:python"
    assert "the sandbox did not start" in problem.text and "Change: tools.python.timeout_s" in problem.text
    assert problem.all("a")[0].attributes["href"] == "#s1/g0/r1"


def test_a_link_to_a_rollout_shows_the_whole_tree_and_indents_forks_only(
    run: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(write_report(run), "#s20/g1/r0.0")
    nodes = {e.attributes["data-rollout"]: e for e in page.html.all("details", data_rollout=None)}
    assert list(nodes) == ["0", "0.0", "0.0.0", "0.1", "1"]
    inside = {(a, b) for a in nodes for b in nodes if nodes[a].within(nodes[b])}
    assert inside == {("0.0", "0"), ("0.0.0", "0.0"), ("0.0.0", "0"), ("0.1", "0")}
    assert len(page.html.all("div", data_segment=None)) == 10
    assert [id for id, e in nodes.items() if "current" in e.attributes["class"]] == ["0.0"]
    assert "fork of 0 at turn 2" in nodes["0.0"].text
    assert "Forked here because: entropy change 0.1234, probability 0.5, draw 0.25turn 2" in nodes["0.0"].text
    assert "weights version 3" in nodes["0.0"].text
    assert "reward part math0: it is not 391" in nodes["0.1"].text
    assert "advantage +0.5 (shared prefix +0.5)" in nodes["0.0"].text
    assert "masked" in nodes["1"].text and "tool:python: the sandbox did not start" in nodes["1"].text
    assert len(page.html.all("details", data_call=None)) == 3
    tokens = [e for e in nodes["0.1"].all("span") if e.attributes.get("class", "").startswith("tok")]
    assert "".join(e.text for e in tokens) == "<answer>390</answer>"
    assert page.facts["errors"] == "0"


@pytest.mark.parametrize("tokenizer", [True, False])
def test_hostile_text_is_shown_and_does_nothing(
    make_run: Callable[..., Path], open_page: Callable[..., Any], tokenizer: bool
) -> None:
    folder = make_run((HOSTILE,) * 3, question=HOSTILE, result=HOSTILE, tokenizer=tokenizer)
    page = open_page(write_report(folder), "#s1/g0")
    assert "pwned" not in page.facts and page.facts["errors"] == "0"
    assert page.html.all("img") == []
    assert len(page.html.all("script")) == 3  # two of data, one of code
    assert "Refused" not in page.console and "Uncaught" not in page.console
    shown = page.html.all("main")[0]
    assert SEEN in shown.text
    assert not re.search("[\ud800-\udfff\u202a-\u202e\u2066-\u2069\u200b\x1b]", shown.text)
    (root,) = shown.all("details", data_rollout="0")
    assert f"<think>{SEEN}</think>" in root.text


def test_without_token_texts_entropies_stand_as_bars(
    make_run: Callable[..., Path], open_page: Callable[..., Any]
) -> None:
    page = open_page(write_report(make_run(("abc", "1", "2"), tokenizer=False)), "#s1/g0/r0.1")
    (fork,) = page.html.all("details", data_rollout="0.1")
    assert len(fork.all("rect", **{"class": "bar1"})) == len("<answer>2</answer>")


def test_nothing_is_asked_of_the_network(run: Path, open_page: Callable[..., Any], tmp_path: Path) -> None:
    careless = tmp_path / "careless.html"
    careless.write_text("<!doctype html><html><body><img src='http://outside.test/x.png'></body></html>")
    asked = []
    for file in (careless, write_report(run)):
        log = tmp_path / f"{file.stem}.json"
        open_page(file, "", f"--log-net-log={log}", "--net-log-capture-mode=Everything")
        urls = re.findall(r'"url":"(?:https?|wss?)://([^/":]*)', log.read_text(encoding="utf-8", errors="replace"))
        asked.append({host for host in urls if not host.endswith((".google.com", ".googleapis.com"))})  # its own calls
    assert asked == [{"outside.test"}, set()]


DRIVER = """
<script>
const note = (name, value) => { document.documentElement.dataset[name] = value; };
const later = (act) => new Promise((done) => setTimeout(() => done(act && act()), 30));
const change = (node, value) => { node.value = value; node.dispatchEvent(new Event("input")); };
const type = (selector, value) => change(document.querySelector(selector), value);
const rows = () => [...document.querySelectorAll("[data-row]")].map((r) => r.cells[2].firstChild.textContent).join(" ");
const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
(async () => {
  location.hash = "#tasks";
  await later();
  type("input[type=search]", "TASK-20-");
  note("text", rows());
  document.querySelector("button[data-key=task]").click();
  document.querySelector("button[data-key=task]").click();
  note("sorted", rows());
  type("input[type=number]", "0.9");
  note("none", rows());
  type("input[type=number]", "");
  change(document.querySelectorAll("select")[1], "rewards all equal");
  note("equal", rows());
  change(document.querySelectorAll("select")[1], "all groups");
  change(document.querySelectorAll("select")[2], "search");
  note("source", [rows(), document.querySelector("td.source").textContent].join(" of "));
  document.querySelector("button[data-key=source]").click();
  change(document.querySelectorAll("select")[2], "");
  note("sources", [...document.querySelectorAll("td.source")].map((cell) => cell.textContent).join(" "));
  location.hash = "#s40/g2";
  await later();
  const seen = [];
  for (const key of ["j", "j", "j", "k", "x"]) { press(key); seen.push(location.hash); }
  note("keys", seen.join(" "));
  note("paper", getComputedStyle(document.body).backgroundColor);
  location.hash = "#s40/g99";
  await later();
  note("missing", document.querySelector("main").textContent);
  location.hash = "#s40/g0/r%E0%A4%A";
  await later();
  note("odd", document.querySelectorAll("[data-rollout]").length);
  note("done", 1);
})();
</script>
"""


def test_filters_sorting_keys_and_the_dark_theme_work(run: Path, open_page: Callable[..., Any]) -> None:
    facts = open_page(driven(write_report(run), DRIVER), "", "--blink-settings=preferredColorScheme=0").facts
    assert facts["done"] == "1" and facts["errors"] == "0"
    assert facts["text"] == "task-20-0 task-20-1 task-20-2"
    assert facts["sorted"] == "task-20-2 task-20-1 task-20-0"
    assert facts["none"] == "" and facts["equal"] == ""
    assert facts["source"] == "task-20-2 of search"
    assert facts["sources"] == "arithmetic arithmetic search"
    assert facts["keys"] == "#s40/g2/r0 #s40/g2/r0.0 #s40/g2/r0.0.0 #s40/g2/r0.0 #s40/g2/r0.0"
    assert facts["paper"] == "rgb(20, 23, 28)"
    assert facts["missing"].startswith("This group is not in this file.")
    assert facts["odd"] == "0"


ACCESS = Path(__file__).with_name("access.js")


def driven(page: Path, script: str) -> Path:
    """Write the page with a script that drives it, without the policy that would stop one, as it should."""
    free = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text(encoding="ascii"))
    out = page.with_name("driven.html")
    out.write_text(free.replace("</body>", f"{script}</body>"), encoding="ascii")
    return out


def test_headings_are_in_order_controls_have_names_and_texts_a_contrast_of_at_least_4_5(
    run: Path, open_page: Callable[..., Any]
) -> None:
    pages = json.dumps(["#overview", "#tasks", "#s20/g1/r0.0"])
    script = ACCESS.read_text(encoding="ascii").replace("PAGES)", f"{pages})")
    facts = open_page(driven(write_report(run), f"<script>{script}</script>")).facts
    assert facts["done"] == "1" and int(facts["texts"]) > 1000
    assert facts["found"] == ""


def test_at_800_pixels_the_table_of_tasks_fits(run: Path, open_page: Callable[..., Any]) -> None:
    script = """<script>setTimeout(() => {
      const box = document.querySelector(".tasks .scroll");
      document.documentElement.dataset.fits = box.scrollWidth <= box.clientWidth;
      const heads = [...box.querySelectorAll("thead th")].filter((head) => head.getBoundingClientRect().width > 0);
      document.documentElement.dataset.heads = heads.map((head) => head.textContent).join(" ");
    }, 50);</script>"""
    facts = open_page(driven(write_report(run), script), "#tasks", "--window-size=800,900").facts
    assert facts["heads"] == "step task question rollouts forks masked reward calls"
    assert facts["fits"] == "true"


def test_a_report_of_sft_has_no_page_of_tasks(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    tracker = JsonlTracker(tmp_path / "sft" / "metrics.jsonl")
    for step in (10, 20):
        tracker.log(step, {"sft/loss": 20 / step, "sft/lr": 0.1})
    (tmp_path / "sft" / "manifest.json").write_text(json.dumps({"job": "sft", "resume_level": "A, exact"}))
    page = open_page(write_report(tmp_path / "sft"))
    shown = page.html.all("main")[0]
    assert [e.text for e in shown.all("h2")] == ["Verdict", "In short", "SFT", "Run"]
    assert page.html.all("header")[0].all("a") == []
    assert "group" not in shown.text and "SFT loss2.000 at step 10, 1.000 at step 20" in shown.text
    (folded,) = [e for e in shown.all("details") if "resume_level" in e.text and "open" not in e.attributes][:1]
    assert folded.all("summary")[0].text == "Versions, data, prompt and state (1)"


def test_a_point_of_a_curve_leads_to_the_rollouts_of_its_step(run: Path, open_page: Callable[..., Any]) -> None:
    script = """<script>
    const picture = [...document.querySelectorAll("svg")].find((one) => one.ariaLabel.startsWith("reward/mean"));
    const box = picture.getBoundingClientRect();
    picture.dispatchEvent(new MouseEvent("click", { clientX: box.left + box.width * 0.97, bubbles: true }));
    setTimeout(() => {
      const rows = [...document.querySelectorAll("[data-row]")];
      document.documentElement.dataset.rowsSteps = rows.map((row) => row.cells[0].textContent).join(" ");
    }, 50);
    </script>"""
    page = open_page(driven(write_report(run), script))
    assert page.facts["rows-steps"] == "40 40 40"


PHONE = """<!doctype html><html><body style="margin: 0">
<iframe style="border: 0; width: 390px; height: 844px" srcdoc="PAGE"></iframe>
<script>
const note = (name, value) => { document.documentElement.dataset[name] = value; };
const later = () => new Promise((done) => setTimeout(done, 100));
addEventListener("load", async () => {
  const shown = document.querySelector("iframe").contentWindow;
  const all = (selector) => [...shown.document.querySelectorAll(selector)];
  const inside = (node) => { const box = node.getBoundingClientRect(); return box.width > 0 && box.right <= 390; };
  const overflow = () => shown.document.documentElement.scrollWidth;
  const visit = async (hash) => { shown.location.hash = hash; await later(); };
  note("width", shown.innerWidth);
  await visit("#overview");
  note("overview", overflow());
  await visit("#tasks");
  note("tasks", overflow());
  note("heads", all("thead th").filter(inside).map((node) => node.textContent).join(" "));
  note("row", all("[data-row]")[0].innerText.replace(/\\s+/g, " "));
  await visit("#s20/g1");
  note("group", overflow());
  const texts = all(".lanes text").filter((node) => node.textContent);
  note("lanes", texts.filter(inside).length === texts.length);
  note("numbers", texts.map((node) => node.textContent).join(" "));
  note("size", Math.round(Math.min(...texts.map((node) => node.getBoundingClientRect().height))));
});
</script></body></html>
"""


def test_a_phone_shows_reward_and_advantage(run: Path, open_page: Callable[..., Any]) -> None:
    """390 pixels wide: nothing is wider than the screen, and the numbers of the lanes can be read."""
    free = re.sub(r"<meta http-equiv[^>]*>", "", write_report(run).read_text(encoding="ascii"))
    (run / "phone.html").write_text(PHONE.replace("PAGE", html.escape(free)), encoding="ascii")
    facts = open_page(run / "phone.html").facts
    assert facts["width"] == "390"
    assert all(int(facts[page]) <= 390 for page in ("overview", "tasks", "group"))
    assert facts["heads"] == "step task forks masked reward"
    assert facts["row"] == "1 task-1-0 arithmetic: What is 17 * 23? (0) 3 1 0.5"
    assert facts["lanes"] == "true" and int(facts["size"]) >= 11
    ticks, _, numbers = facts["numbers"].partition(" reward advantage ")
    assert ticks == "0 tokens 100"
    assert numbers == "0 1 +0.5 0.0 1 +0.5 0.0.0 0 -0.5 0.1 0 -0.5 1 masked"
