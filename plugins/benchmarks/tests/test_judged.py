"""Benchmarks with a judge: what a fake one says of the perturbed answers of the page, and what it does not say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ramet import OpenAIOptions, Task, user_prompt
from ramet.plugins import load_plugins
from ramet.testing import OpenAIServer, RawReply, local_services, written_rollout
from ramet_benchmarks.config import JudgeConfig, PublishedConfig

pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
pytestmark = pytest.mark.skipif(
    "llm_judge" not in load_plugins().registries.rewards, reason="ramet-benchmarks[judge] is not installed"
)
GOLDS = ("360", "three hundred and sixty")
ANSWERS = {  # answer -> what the judge has to say
    "360": "",  # equal to a gold answer: it is not asked
    "Three hundred and sixty.": "",
    "360 euros": "correct",
    "dreihundertsechzig": "correct",
    "-360": "incorrect",
    "63": "incorrect",
}
Scores = list[Mapping[str, float | None]]


def judged(name: str, url: str, cache: Path) -> Scores:
    """Scores of every answer, in order."""
    judge = JudgeConfig(ask=True, server=OpenAIOptions(urls=[url], retries=0), cache=str(cache))
    benchmark: Any = load_plugins().registries.benchmarks.get(name).build(PublishedConfig(judge=judge))
    task = Task(id="t", prompt=user_prompt("How many?"), answer=GOLDS, metadata={"answer_type": "exactMatch"})
    rollouts = [written_rollout(task, [answer], answer=answer, id=str(i)) for i, answer in enumerate(ANSWERS)]

    async def score() -> Scores:
        with local_services() as services:
            await benchmark.start(services)
            found = [await benchmark.score(rollout) for rollout in rollouts]
            await benchmark.aclose()
        return found

    return asyncio.run(score())


def says(body: dict[str, Any]) -> str:
    given = body["messages"][0]["content"].partition("<given_answer>\n")[2].partition("\n</given_answer>")[0]
    return f"VERDICT: {ANSWERS[given]}"


@pytest.mark.parametrize("name", ["webwalker", "gaia", "hle", "xbench", "simpleqa"])
def test_the_judge_decides_what_rules_cannot_and_is_asked_once_for_each_answer(name: str, tmp_path: Path) -> None:
    with OpenAIServer(lambda body: RawReply(status=500)) as server:
        down = judged(name, server.url, tmp_path / "verdicts")
    assert [scores["judge"] for scores in down] == [1.0, 1.0] + [None] * 4
    with OpenAIServer(says) as server:
        found = judged(name, server.url, tmp_path / "verdicts")
        assert [scores["judge"] for scores in found] == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
        assert len(server.requests) == 4
        assert judged(name, server.url, tmp_path / "verdicts") == found
        assert len(server.requests) == 4
    rules = [{metric: value for metric, value in scores.items() if metric != "judge"} for scores in found]
    assert rules == [{metric: value for metric, value in scores.items() if metric != "judge"} for scores in down]
    assert all(rules) and {value for one in rules for value in one.values()} >= {0.0, 1.0}
