"""The pictures of docs/pictures/, drawn as SVG: `python scripts/docs/pictures.py` writes them.

They have a background, so that they can be read on a light and on a dark page. A test compares files and code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
INK, QUIET, EDGE = "#1f2933", "#52606d", "#9aa5b1"
SAMPLED, INSERTED, SHARED, GOOD, BAD = "#b2e2d8", "#e4e7eb", "#f6fbfa", "#2f855a", "#c05621"


def box(x: float, y: float, width: float, text: str, fill: str = INSERTED, *, dashed: bool = False) -> str:
    """Return a rounded box of 34 units height with centred text."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="34" rx="5" fill="{fill}" stroke="{EDGE}"{dash}/>'
        f"{label(x + width / 2, y + 22, text, anchor='middle', colour=QUIET if dashed else INK)}"
    )


def label(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK, bold: bool = False) -> str:
    """Return one line of text; `y` is its baseline."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'


def arrow(*points: tuple[float, float], both: bool = False) -> str:
    """Return a line through the points with a head at its end, or at both."""
    start = ' marker-start="url(#head)"' if both else ""
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{QUIET}" stroke-width="1.5" marker-end="url(#head)"{start}/>'


def picture(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    """Return a complete SVG; the title is what a screen reader says."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="14"><title>{escape(title)}</title>\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="{QUIET}"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def rollout_tree() -> str:
    """Three rollouts of one task: two start at the prompt, one forks after a tool result."""

    def parts() -> Iterator[str]:
        yield box(20, 112, 130, "prompt: 37 * 41?")
        for y, texts, end, colour in (
            (32, ("<python> 37*41", "result: 1517", "<answer> 1517"), "reward 1", GOOD),
            (192, ("37 * 41 is about", "<answer> 1500", ""), "reward 0", BAD),
        ):
            yield arrow((150, 129), (172, 129), (172, y + 17), (192, y + 17))
            for i, text in enumerate(text for text in texts if text):
                yield box(194 + 158 * i, y, 136, text, INSERTED if text.startswith("result") else SAMPLED)
                if i:
                    yield arrow((172 + 158 * i, y + 17), (192 + 158 * i, y + 17))
            yield label(194 + 158 * sum(map(bool, texts)), y + 22, end, colour=colour, bold=True)
        yield arrow((499, 49), (499, 129), (508, 129))
        yield box(510, 112, 136, "<answer> 1571", SAMPLED)
        yield label(668, 134, "reward 0", colour=BAD, bold=True)
        yield label(194, 24, "rollout 0", colour=QUIET)
        yield label(194, 184, "rollout 1", colour=QUIET)
        yield label(380, 134, "fork of rollout 0", colour=QUIET)
        yield box(20, 262, 28, "", SAMPLED) + label(58, 284, "sampled by the policy: trained", colour=QUIET)
        yield box(290, 262, 28, "") + label(328, 284, "inserted (prompt, tool result): not trained", colour=QUIET)

    return picture(760, 312, "A rollout tree: three rollouts of one task, one of them a fork", parts())


def step_timeline() -> str:
    """One training step from the first request to the new weights, with the metric of each part."""

    def parts() -> Iterator[str]:
        lanes = ("engine and tools", "rewards", "policy", "disk")
        for i, lane in enumerate(lanes):
            yield f'<rect x="160" y="{46 + 52 * i}" width="680" height="44" fill="#f5f7fa"/>'
            yield label(20, 73 + 52 * i, lane, bold=True)
        bars = (
            (0, 166, 220, "rollouts of all groups"), (1, 296, 104, "scored"), (2, 406, 80, "pi_old, KL"),
            (2, 492, 142, "update"), (0, 640, 96, "new weights"), (3, 406, 160, "records of rollouts"),
            (3, 742, 92, "checkpoint"),
        )  # fmt: skip
        for lane, x, width, text in bars:
            yield box(x, 51 + 52 * lane, width, text, SAMPLED)
        spans = (
            (166, 400, "time/rollout_s"), (406, 486, "logprobs_s"), (492, 634, "time/update_s"),
            (640, 736, "time/sync_s"), (742, 834, "time/save_s"),
        )  # fmt: skip
        for x, end, text in spans:
            yield f'<path d="M{x},270 v8 H{end} v-8" fill="none" stroke="{QUIET}"/>'
            yield label((x + end) / 2, 296, text, anchor="middle", colour=QUIET)
        yield label(166, 30, "one step: time/step_s", colour=QUIET)
        yield arrow((330, 26), (836, 26))
        yield label(20, 326, "A group is scored when its last rollout ends. With train.staleness, rollouts of later")
        yield label(20, 345, "steps fill the engine during the update.")

    return picture(856, 360, "A training step in time", parts())


def shared_prefix() -> str:
    """A rollout and its fork: what the fork owns, and what it shares."""

    def parts() -> Iterator[str]:
        widths = (("prompt", 110, INSERTED), ("turn 0", 120, SAMPLED), ("result 0", 110, INSERTED))
        for y, own in ((40, "turn 1: answer"), (120, "turn 1: another answer")):
            x = 130.0
            for text, width, fill in widths:
                yield box(x, y, width, text, SHARED if y > 40 else fill, dashed=y > 40)
                x += width + 8
            yield box(x, y, 190, own, SAMPLED)
        yield label(20, 62, "rollout 0", bold=True)
        yield label(20, 142, "its fork", bold=True)
        for x in (185, 308, 431):
            yield arrow((x, 118), (x, 78))
        yield label(130, 24, "n_shared = 3 segments: stored once, by the parent", colour=QUIET)
        facts = (
            ("Engine", "the keys and values of the prefix are reused; only the fork's own tokens are sampled."),
            ("Tools", "calls of the prefix are not repeated; a tool's state is copied or replayed."),
            ("Update", "policy.share_prefixes computes each common token once; losses and gradients are equal."),
            ("Record", "a file of rollouts has each segment once, and each rollout the numbers of its segments."),
        )
        for i, (what, text) in enumerate(facts):
            yield label(20, 194 + 24 * i, what, bold=True)
            yield label(90, 194 + 24 * i, text)

    return picture(760, 284, "A fork shares the prefix of its parent", parts())


def ray_processes() -> str:
    """The processes of a run with cluster=ray, and what they send each other."""

    def group(x: int, y: int, width: int, height: int, title: str) -> str:
        frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#f5f7fa" stroke="{EDGE}"/>'
        return frame + label(x + 14, y + 24, title, bold=True)

    def parts() -> Iterator[str]:
        yield group(20, 130, 220, 150, "driver (ramet train)")
        for i, text in enumerate(("loop, tasks, seeds", "rewards, advantages", "records, metrics, run folder")):
            yield label(34, 180 + 24 * i, text)
        yield group(470, 20, 330, 140, "rollout workers")
        yield box(486, 60, 140, "engine", SAMPLED) + box(640, 60, 140, "engine", SAMPLED)
        yield box(486, 108, 140, "tools, step") + box(640, 108, 140, "tools, step")
        yield group(470, 250, 330, 110, "policy workers")
        yield box(486, 294, 140, "rank 0 (FSDP2)", SAMPLED) + box(640, 294, 140, "rank 1 (FSDP2)", SAMPLED)
        yield arrow((130, 128), (130, 60), (468, 60))
        yield label(142, 50, "tasks, branch policy, limits")
        yield arrow((470, 120), (190, 120), (190, 128))
        yield label(252, 112, "groups of rollouts")
        yield arrow((242, 240), (350, 240), (350, 300), (468, 300))
        yield label(256, 232, "batches")
        yield arrow((470, 334), (130, 334), (130, 282))
        yield label(190, 354, "metrics; each rank writes its shard")
        yield arrow((635, 248), (635, 164))
        yield label(648, 212, "new weights, after each update")
        yield arrow((802, 90), (860, 90), both=True)
        yield label(866, 86, "search, MCP,") + label(866, 104, "sandboxes")
        yield arrow((60, 282), (60, 390), both=True)
        yield label(72, 394, "judges, trackers")

    return picture(970, 412, "The processes of a run under Ray, and what they send each other", parts())


PICTURES: dict[str, Callable[[], str]] = {
    "rollout_tree": rollout_tree,
    "step_timeline": step_timeline,
    "shared_prefix": shared_prefix,
    "ray_processes": ray_processes,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
