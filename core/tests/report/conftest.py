"""Runs on disk for the report (groups with forks, faults and hostile text, a byte-level tokenizer) and a browser."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.tracking.jsonl import JsonlTracker
from ramet.types import (
    CallStatus,
    Fault,
    Origin,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ToolRecord,
    user_prompt,
)

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer() -> Tokenizer:
    """One token per byte; ids are the bytes' positions in the alphabet."""
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def segment(kind: SegmentKind, turn: int, text: str) -> Segment:
    """Entropies rise and fall along the text. A lone surrogate has no bytes: it is encoded as its three."""
    ids = array("i", byte_tokenizer().encode(text.encode("utf-8", "replace").decode()).ids)
    if kind is not SegmentKind.TURN:
        return Segment(origin=Origin.INSERTED, kind=kind, turn=turn, text=text, token_ids=ids)
    wave = array("f", (1.2 * (1 + math.sin(i / 3)) for i in range(len(ids))))
    return Segment(
        origin=Origin.SAMPLED,
        kind=kind,
        turn=turn,
        text=text,
        token_ids=ids,
        logprobs=array("f", (-value for value in wave)),
        entropies=wave,
        policy_version=3,
    )


def call(turn: int, text: str, *, status: CallStatus = CallStatus.OK) -> ToolRecord:
    return ToolRecord(
        turn=turn,
        name="python",
        arguments={"code": "print(17 * 23)"},
        status=status,
        text=text,
        wait_s=0.0012,
        run_s=0.0371,
        attempts=1,
    )


def forked_group(
    task_id: str, question: str, texts: Sequence[str], result: str = "391", source: str = "arithmetic"
) -> tuple[Rollout, ...]:
    """Two roots; root 0 has forks 0.0 and 0.1 after its first tool result, 0.0 has 0.0.0, root 1 is masked."""
    task = Task(id=task_id, prompt=user_prompt(question), answer=("391",), data_source=source)
    prompt = segment(SegmentKind.PROMPT, 0, f"<|user|>{question}<|end|><|assistant|>")
    ask = segment(SegmentKind.TURN, 0, f"<think>{texts[0]}</think><python>print(17 * 23)</python>")
    got = segment(SegmentKind.RESULT, 0, f"<result>{result}</result>")
    again = segment(SegmentKind.TURN, 1, "<python>print(391 + 0)</python>")
    twice = segment(SegmentKind.RESULT, 1, "<result>391</result>")
    first = call(0, result)

    def end(text: str, turn: int) -> Segment:
        return segment(SegmentKind.TURN, turn, f"<answer>{text}</answer>")

    base = {"task": task, "stop": StopReason.ANSWER}
    fork = {**base, "parent": "0", "fork_turn": 1, "n_shared": 3, "tool_calls": (first,)}
    fork["fork_reason"] = {"entropy change": 0.1234, "probability": 0.5, "draw": 0.25}
    return (
        Rollout(id="0", segments=(prompt, ask, got, end(texts[1], 1)), answer=texts[1], tool_calls=(first,), **base),
        Rollout(
            id="0.0",
            segments=(prompt, ask, got, again, twice, end("391", 2)),
            answer="391",
            **{**fork, "tool_calls": (first, call(1, "391"))},
        ),
        Rollout(
            id="0.0.0",
            segments=(prompt, ask, got, again, twice, end("0", 2), segment(SegmentKind.FORCED, 2, "!")),
            **{**fork, "parent": "0.0", "fork_turn": 2, "n_shared": 5, "stop": StopReason.LENGTH},
        ),
        Rollout(id="0.1", segments=(prompt, ask, got, end(texts[2], 1)), answer=texts[2], **fork),
        Rollout(
            id="1",
            segments=(prompt, segment(SegmentKind.TURN, 0, "<python>1</python>")),
            tool_calls=(call(0, "the sandbox did not start", status=CallStatus.INFRA),),
            fault=Fault(where="tool:python", message="the sandbox did not start"),
            task=task,
            stop=StopReason.FAULT,
        ),
    )


def record(step: int, rollouts: Sequence[Rollout]) -> GroupRecord:
    """Rewards 1 for the answer 391 and 0 otherwise; one advantage for all tokens of a rollout, minus on shared ones."""
    scored, advantages = [], {}
    for rollout in rollouts:
        reward = float(rollout.answer == "391") if rollout.valid else None
        parts = {} if reward is None else {"math": reward, "format": 1.0}
        reasons = {"math": "it is not 391"} if reward == 0 else {}
        scored.append(ScoredRollout(rollout=rollout, reward=reward, parts=parts, reasons=reasons))
        if reward is not None:
            advantages[rollout.id] = array("f", [reward - 0.5] * rollout.n_response_tokens)
    group = ScoredGroup(task=rollouts[0].task, rollouts=tuple(scored))
    return GroupRecord(step=step, group=group, advantages=advantages)


def write_run(folder: Path, records: Sequence[GroupRecord], *, tokenizer: bool = True) -> Path:
    """A run directory with metrics of 40 steps, a manifest, a summary and these records."""
    tracker = JsonlTracker(folder / "metrics.jsonl")
    for step in range(1, 41):
        rise = 1 - math.exp(-step / 12)
        tracker.log(step, {"reward/mean": 0.2 + 0.7 * rise + 0.05 * math.sin(7 * step), "rollout/tool_use": rise})
        tracker.log(step, {"rollout/forks_per_group": 3 * rise, "rollout/turns_mean": 2.0})
        tracker.log(step, {"train/entropy": 1.4 * (1 - rise), "train/grad_norm": 0.1 + 1 / step, "time/step_s": 2.5})
        if step % 10 == 0:
            tracker.log(step, {"valid/reward": rise})
    for step in sorted({one.step for one in records}):
        path = folder / "rollouts" / f"step_{step:06d}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        write_records(path, [one for one in records if one.step == step])
    if tokenizer:
        (folder / "tokenizer").mkdir()
        byte_tokenizer().save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "manifest.json").write_text(json.dumps({"name": folder.name, "seed": 1, "versions": {"torch": "2.13"}}))
    summary = {"greedy_before": 0.31, "greedy_after": 0.94, "tool_use_before": 0.2, "tool_use_after": 0.99}
    (folder / "summary.json").write_text(json.dumps({**summary, "rl_steps": 40, "seconds_by_phase": {"rl": 101.5}}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three steps of three groups each."""
    texts = ("I should compute 17 times 23 with the tool.", "391", "390")
    records = [
        record(step, forked_group(f"task-{step}-{i}", f"What is 17 * 23? ({i})", texts, source=source))
        for step in (1, 20, 40)
        for i, source in enumerate(("arithmetic", "arithmetic", "search"))
    ]
    return write_run(tmp_path / "quickstart", records)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run(texts, question=…, result=…, tokenizer=…)`: one group of these texts."""

    def make(texts: Sequence[str], *, question: str = "q", result: str = "391", tokenizer: bool = True) -> Path:
        group = record(1, forked_group("task", question, texts, result))
        return write_run(tmp_path / "run", [group], tokenizer=tokenizer)

    return make


VOID = {"meta", "input", "br", "hr", "img", "link"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=4000 --enable-logging=stderr"
).split()
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"  # whatever a page or the browser asks for, nothing leaves


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str | None = None, **attributes: str | None) -> list[Element]:
        """Descendants with this tag and these attributes (`data_x` for `data-x`; None: any value)."""
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            if isinstance(child, Element):
                here = all(n in child.attributes and v in (None, child.attributes[n]) for n, v in wanted.items())
                found += [child] * (here and tag in (None, child.tag)) + child.all(tag, **attributes)
        return found

    def within(self, other: Element) -> bool:
        return self.parent is other or (self.parent is not None and self.parent.within(other))


class Parser(HTMLParser):
    """The tree of a serialised page."""

    def __init__(self) -> None:
        super().__init__()
        self.top = self.open = Element("", {})

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attributes}, self.open)
        self.open.children.append(element)
        if tag not in VOID:
            self.open = element

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.tag == tag and self.open.parent is not None
            self.open = self.open.parent

    def handle_data(self, data: str) -> None:
        self.open.children.append(data)


@dataclass
class Page:
    """A page after its scripts ran: its tree, and what the browser said."""

    html: Element
    console: str

    @property
    def facts(self) -> dict[str, str]:
        """What the page's script says about itself, and what intruders would."""
        return {k.removeprefix("data-"): v for k, v in self.html.attributes.items() if k.startswith("data-")}


@pytest.fixture(scope="session")
def open_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Page]:
    """`open_page(file, hash, *flags)` shows a file in a headless browser, or skips the test."""
    binary = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if binary is None:
        pytest.skip(f"no browser on PATH (looked for {', '.join(BROWSERS)})")
    profile = tmp_path_factory.mktemp("browser")

    def show(file: Path, hash: str = "", *flags: str) -> Page:
        command = [binary, *QUIET, OFFLINE, f"--user-data-dir={profile}", *flags, "--dump-dom", file.as_uri() + hash]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
        parser = Parser()
        parser.feed(done.stdout)
        (html,) = parser.top.all("html")
        return Page(html, done.stderr)

    return show
