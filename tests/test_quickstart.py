"""The data of the quickstart that searches, and what the quickstarts promise."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from ramet import Rollout, ToolCall
from ramet.components.prompts import call_problems
from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.errors import ConfigError, ConfigErrors
from ramet.models.encoder import Encoder
from ramet.models.tiny import make_tokenizer
from ramet.rollout.agents.function import FunctionAgent
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import FunctionConfig, TagsConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.runs.lock import RunLock
from ramet.runs.manifest import Attempt, Manifest, write_manifest
from ramet.testing.doubles import ScriptedEngine
from ramet_tools_bing import SearchConfig, SearchTool
from ramet_tools_bing.corpus import Corpus

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "quickstart"
MODULES = [path.stem for path in SCRIPT.glob("*.py")]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """`load(name)`: a module of the script, whose names are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(SCRIPT))
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules and name != "__main__"}
    yield importlib.import_module
    for name in MODULES:
        if name != "__main__":
            sys.modules.pop(name, None)
    sys.modules.update(kept)


@pytest.fixture
def search(load) -> ModuleType:
    return load("search")


@pytest.fixture
def pages(search):
    return search.make_pages()


def test_the_people_are_always_the_same_and_each_is_the_boss_of_one_other(search, pages) -> None:
    assert pages == search.make_pages()
    assert len(pages) == search.PEOPLE
    assert all(re.fullmatch(r"([BDFGKLMNRSTV][AEIOU]){2}", name) and len(set(name)) == 4 for name in pages)
    assert {page.boss for page in pages.values()} == set(pages)
    assert [name for name, page in pages.items() if page.boss == name] == []


def test_question_and_page_end_with_the_name_that_is_copied(search, pages) -> None:
    name, page = next(iter(pages.items()))
    assert search.question(pages, name).question.endswith(f" {name}") and page.text.endswith(f" {page.boss}")


def test_a_permuted_corpus_has_every_text_under_another_title(search, pages) -> None:
    permuted = search.permuted(pages)
    assert permuted == search.permuted(pages) and set(permuted) == set(pages)
    assert Counter(page.text for page in permuted.values()) == Counter(page.text for page in pages.values())
    assert [name for name, page in permuted.items() if page == pages[name]] == []
    answers = [search.question(pages, name).answer == search.question(permuted, name).answer for name in pages]
    assert sum(answers) / len(answers) < 0.01  # what remains is chance


def test_the_search_for_a_name_finds_its_page_first(search, pages, tmp_path: Path) -> None:
    search.write_corpus(tmp_path / "corpus.sqlite", pages)
    corpus = Corpus(tmp_path / "corpus.sqlite")
    assert corpus.passages == search.PEOPLE
    assert [name for name in pages if [item.title for item in corpus.search(name, 1)] != [name]] == []
    corpus.close()


def test_a_trace_is_what_the_tool_and_the_step_would_write(search, pages, tmp_path: Path) -> None:
    search.write_corpus(tmp_path / "corpus.sqlite", pages)
    tool = SearchTool(SearchConfig(corpus=str(tmp_path / "corpus.sqlite"), max_results=1))

    async def found(name: str) -> str:
        return (await tool(ToolCall(name="search", arguments={"query": name}))).text

    async def main(names: list[str]) -> list[str]:
        try:
            return [await found(name) for name in names]
        finally:
            await tool.aclose()

    name = next(iter(pages))
    boss = pages[name].boss
    first, second = (
        "".join(part.text for part in Tags(TagsConfig()).result(text)) for text in asyncio.run(main([name, boss]))
    )
    written = {search.trace(pages, search.question(pages, name), Random(seed)) for seed in range(50)}
    assert written == {
        f"<search>{name}</search>{first}<answer>{boss}</answer>",
        f"<search>{name}</search>{first}<search>{boss}</search>{second}<answer>{pages[boss].boss}</answer>",
    }


def test_no_question_is_in_two_of_the_files_and_most_traces_stop_after_the_first_page(search, tmp_path: Path) -> None:
    search.write(tmp_path, None, 2000, 3)
    files = {name: (tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("test", "rl", "sft")}
    rows = {name: [json.loads(line) for line in lines] for name, lines in files.items()}
    traces = [(row["conversations"][0]["value"], row["conversations"][1]["value"]) for row in rows["sft"]]
    asked = {name: {row["prompt"] for row in rows[name]} for name in ("test", "rl")}
    asked["sft"] = {question for question, _ in traces}
    assert len(rows["test"]) == len(asked["test"]) == search.TEST_QUESTIONS
    assert len(rows["rl"]) == len(asked["rl"]) == search.RL_QUESTIONS
    assert not (asked["test"] & asked["rl"] or asked["test"] & asked["sft"] or asked["rl"] & asked["sft"])
    pages = search.make_pages()
    right = {search.question(pages, name).question: search.question(pages, name).answer[0] for name in pages}
    searched_twice = [trace.count("<search>") == 2 for _, trace in traces]
    assert [trace.endswith(f"<answer>{right[question]}</answer>") for question, trace in traces] == searched_twice
    assert sum(searched_twice) / len(traces) == pytest.approx(1 - search.HABIT, abs=0.04)


def test_held_out_questions_and_corpora_are_the_same_for_every_seed_and_the_other_files_are_not(
    search, tmp_path: Path
) -> None:
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        search.write(tmp_path / str(seed), None, 10, seed)
    same = {
        name: (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
        for name in ("test.jsonl", "corpus.jsonl", "permuted.jsonl", "rl.jsonl", "sft.jsonl")
    }
    assert same == {
        "test.jsonl": True, "corpus.jsonl": True, "permuted.jsonl": True, "rl.jsonl": False, "sft.jsonl": False
    }  # fmt: skip


def test_a_trace_for_the_agent_is_what_its_program_and_the_template_would_write(load, tmp_path: Path) -> None:
    """The real program of the quickstart, whose policy writes what the trace's assistant does."""
    pytest.importorskip("agents", reason="openai-agents is not installed")
    agent, pages = load("agent"), load("search").make_pages()
    agent.write(tmp_path, None, 5, 1)
    tokenizer = make_tokenizer(agent.KIND.sizes["tags"], agent.CHAT_TEMPLATE)
    encoder, task = Encoder(tokenizer), load("search").question(pages, next(iter(pages)))
    assert call_problems(encoder) == []
    by_calls = {
        sum("tool_calls" in m for m in trace): trace
        for trace in (agent.trace(pages, task, Random(n)) for n in range(20))
    }
    said = [message for message in by_calls[2] if message["role"] == "assistant"]

    async def play() -> Rollout:
        worker = RolloutWorker(
            engine=ScriptedEngine(lambda task, path, turn: reply(said[turn]), encoder),
            encoder=encoder,
            step=FunctionAgent(
                FunctionConfig(
                    function=f"{SCRIPT / 'openai_agent.py'}:run", arguments={"pages": str(tmp_path / "pages.json")}
                )
            ),
            branch_policy=NoBranching(),
            tools={},
            config=RolloutConfig(group_size=1),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )
        try:
            return (await worker.run(RolloutRequest(tasks=[task], step=1)))[0].rollouts[0]
        finally:
            await worker.close()

    def reply(message: dict[str, Any]) -> str:
        shown = tokenizer.apply_chat_template([message], tokenize=False)
        return shown.removeprefix("<|assistant|>").removesuffix("<|end|>")

    rollout = asyncio.run(play())
    assert rollout.valid and rollout.answer == task.answer[0] and set(by_calls) == {1, 2}
    ids = [token for segment in rollout.segments for token in segment.token_ids]
    assert ids == list(encoder.markup(tokenizer.apply_chat_template(by_calls[2], tools=[agent.TOOL], tokenize=False)))
    assert [call.text for call in rollout.tool_calls] == [m["content"] for m in by_calls[2] if m["role"] == "tool"]


def metrics(run: Path, steps: list[tuple[float, float]]) -> None:
    """Mean reward and forks per group, by step."""
    lines = [
        {"step": n, "time": 0.0, "reward/mean": reward, "rollout/forks_per_group": forks}
        for n, (reward, forks) in enumerate(steps, start=1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("steps", "least"),
    [
        ([(0.4, 4.0), (0.6, 2.5), (0.8, 0.0), (0.7, 0.0)], 2.5),
        ([(0.9, 3.0), (0.9, 0.0)], 3.0),  # it knew before: the first step
        ([(0.1, 4.0), (0.2, 1.5), (0.3, 2.0)], 1.5),  # it never learned
    ],
)
def test_forks_are_counted_until_it_has_learned(load, tmp_path: Path, steps, least: float) -> None:
    metrics(tmp_path, steps)
    assert load("summary").forks_while_learning(tmp_path) == least


def test_every_promise_that_is_missed_is_named(load, search) -> None:
    summary, measure = load("summary"), load("measure")
    good = measure.Measured(greedy=1.0, sampled=0.9, tool_use=1.0, tool_use_sampled=0.9, tool_accuracy=0.95)
    bad = measure.Measured(greedy=0.0, sampled=0.3, tool_use=0.0, tool_use_sampled=0.3, tool_accuracy=0.95)
    kept = summary.Outcome(
        seed=1, before=bad, after=good, misled=measure.Misled(accuracy=0.0, follows=1.0), forks=4.0,
        question="?",
        seconds_by_phase={}, config=None, kind=search.KIND,
    )  # fmt: skip
    assert kept.missed() == []
    missed = replace(
        kept, before=replace(good, tool_accuracy=0.89), after=replace(bad, greedy=0.79),
        misled=measure.Misled(accuracy=0.11, follows=0.79), forks=0.9,
    )  # fmt: skip
    assert missed.missed() == [
        "greedy accuracy before is over 0.4",
        "SFT taught copying badly: accuracy with the tool is under 0.9",
        "greedy accuracy after is under 0.8",
        "sampled accuracy rose by less than 0.35",
        "accuracy with a permuted corpus is over 0.1",
        "the answers do not follow a permuted corpus",
        "a step while it learned had less than 1 forks per group",
    ]
    assert replace(kept, kind=load("arithmetic").KIND, forks=0.0).missed() == []


def left_by(run: Path, *programs: str) -> None:
    """A run on which these worked, one after the other."""
    run.mkdir()
    attempts = [Attempt(started="", host="h", pid=1, argv=[program, "train"]) for program in programs]
    manifest = Manifest(
        job="train", seed=1, deterministic=False, resume_level="exact", git=None, versions={}, plugins=[],
        attempts=attempts,
    )  # fmt: skip
    write_manifest(run / "manifest.json", manifest)


@pytest.mark.parametrize("programs", [("/bin/ramet",), (str(SCRIPT), "/bin/ramet"), ("mine/quickstart",)])
def test_a_run_on_which_another_program_worked_is_never_removed(load, tmp_path: Path, programs) -> None:
    run, inputs = tmp_path / "quickstart_search", tmp_path / "quickstart_search-inputs"
    left_by(run, *programs)
    inputs.mkdir()
    (inputs / "mine").touch()
    with pytest.raises(ConfigErrors) as caught:
        load("folders").claim(run, inputs)
    text = "exists, and no quickstart made it; move it away, or choose another folder with --root"
    assert caught.value.problems == [f"{run} {text}", f"{inputs} {text}"]
    assert (run / "manifest.json").exists() and (inputs / "mine").exists()


def test_what_quickstarts_left_is_removed_and_not_while_one_runs(load, tmp_path: Path) -> None:
    run, inputs, claim = tmp_path / "run", tmp_path / "inputs", load("folders").claim
    claim(run, inputs).release()
    left_by(run, str(SCRIPT), "scripts/quickstart/__main__.py")
    (inputs / "data").mkdir()
    lock = claim(run, inputs)
    assert isinstance(lock, RunLock)
    assert not run.exists() and [path.name for path in inputs.iterdir()] == ["quickstart.lock"]
    left_by(run, str(SCRIPT))
    with pytest.raises(ConfigError, match=rf"^run directory '{inputs}' is in use by pid \d+ on "):
        claim(run, inputs)
    assert run.exists()
    lock.release()


def test_a_link_of_that_name_is_not_followed(load, tmp_path: Path) -> None:
    left_by(tmp_path / "elsewhere", str(SCRIPT))
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigErrors, match="no quickstart made it"):
        load("folders").claim(tmp_path / "run", tmp_path / "inputs")
    assert (tmp_path / "elsewhere" / "manifest.json").exists()
