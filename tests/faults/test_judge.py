"""A judge that fails (fault F13): its rollouts are not judged, leave the group and are counted, and score never 0.

As a reward of a group, and in `ramet judge` over the rollouts of an evaluation.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet import BenchmarkInfo, Group, OpenAIOptions, Rollout, Task, user_prompt
from ramet.components.build import start_rewards
from ramet.components.services import RunServices
from ramet.config.compose import compose
from ramet.evaluate.header import Header
from ramet.evaluate.judge_pass import JudgedResult
from ramet.evaluate.judge_pass import run as judge
from ramet.evaluate.partial import PartialResults
from ramet.evaluate.tasks import Judgement, group_record, task_result
from ramet.helpers.openai import client as client_module
from ramet.plugins import load_plugins
from ramet.rollout.scoring import ScoredGroup, Scorer, WeightedReward, n_unjudged
from ramet.testing import OpenAIServer, RawReply, written_rollout

ANSWERS = ("Rome", "Paris", "the capital of France", "Bern")  # the second needs no judge
JUDGED = [0.0, 1.0, 1.0, 0.0]
PATIENCE_S = 1.5  # of one attempt


def slow(body: dict[str, Any]) -> str:
    time.sleep(PATIENCE_S + 0.5)
    return "VERDICT: correct"


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "500": lambda body: RawReply(status=500),
    "garbage": lambda body: RawReply(body=b"\xff{"),
    "slow": slow,
    "reset": lambda body: RawReply(reset=True),
    "429": lambda body: RawReply(status=429, headers={"Retry-After": "0.02"}),
    "429 for long": lambda body: RawReply(status=429, headers={"Retry-After": "3600"}),
    "empty": lambda body: RawReply(),
    "half": lambda body: RawReply(body='{"choices": [', promised=1000),
    "nonsense": lambda body: RawReply(body='{"choices": [{"message": {"content": {"verdict": 1}}}]}'),
    "no choice": lambda body: RawReply(body='{"choices": []}'),
    "a list": lambda body: RawReply(body="[0, 1]"),
    "no verdict": lambda body: "VERDICT: 0.8",
    "refuses": lambda body: "I cannot help with that.",
}


def says(body: dict[str, Any]) -> str:
    """What a good judge says of the answers here."""
    right = "capital of France\n</given_answer>"
    return f"VERDICT: {'in' * (right not in body['messages'][0]['content'])}correct"


def task(fault: str) -> Task:
    """One whose answers the judge fails on in this way."""
    prompt = user_prompt(f"Where is the Louvre? ({fault})")
    return Task(id=fault, prompt=prompt, answer=("Paris",), data_source="facts")


def rollouts_of(task: Task) -> list[Rollout]:
    return [written_rollout(task, [text], answer=text, id=str(i)) for i, text in enumerate(ANSWERS)]


def fails(body: dict[str, Any]) -> Any:
    """As the question says."""
    asked = body["messages"][0]["content"]
    return next((fault(body) for name, fault in FAULTS.items() if f"({name})" in asked), None) or says(body)


def scored(url: str, folder: Path) -> list[ScoredGroup]:
    """A group for each fault."""
    entry = load_plugins().get("rewards", "llm_judge")
    assert entry.config is not None
    config = entry.config(server=OpenAIOptions(urls=[url], retries=1, timeout_s=PATIENCE_S))
    rewards = [WeightedReward(name="llm_judge", plugin="rewards", reward=entry.build(config))]

    async def main() -> list[ScoredGroup]:
        await start_rewards(rewards, RunServices(folder=folder, seed=1))
        scorer = Scorer(rewards)
        groups = [Group(task=task(fault), rollouts=tuple(rollouts_of(task(fault)))) for fault in FAULTS]
        found = await asyncio.gather(*map(scorer.score, groups))
        await scorer.aclose()
        return found

    return asyncio.run(main())


def test_what_a_failing_judge_does_not_say_is_masked_and_counted_and_is_judged_once_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)
    with OpenAIServer(fails) as server:
        found = scored(server.url, tmp_path)
    for group in found:
        assert [rollout.reward for rollout in group.rollouts] == [None, 1.0, None, None], group.task.id
        assert n_unjudged([group]) == 3 and len(group.valid) == 1
        faults = [rollout.rollout.fault for rollout in group.rollouts if rollout.rollout.fault is not None]
        assert {(one.where, one.message) for one in faults} == {("reward:llm_judge", "not judged")}
    with OpenAIServer(says) as server:
        again = scored(server.url, tmp_path)  # nothing of the failures was kept
        assert [[rollout.reward for rollout in one.rollouts] for one in again] == [JUDGED] * len(FAULTS)
        assert len(server.requests) == 3 * len(FAULTS)
        assert [one.rollouts for one in scored(server.url, tmp_path)] == [one.rollouts for one in again]
        assert len(server.requests) == 3 * len(FAULTS)


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """An evaluation of a task for each fault and one more, each answered four times; its own metric gave 0.5 to all."""
    info = BenchmarkInfo(description="f", splits=("test",), metrics=("rules",), source="here", licence="MIT")
    header = Header(model="m", k=len(ANSWERS), rules={}, settings={}, benchmarks={"facts": info},
                    versions={}, plugins=[])  # fmt: skip
    partial = PartialResults(tmp_path / "results.json", header)
    for fault in ("none", *FAULTS):
        group = Group(task=task(fault), rollouts=tuple(rollouts_of(task(fault))))
        scores = [{"rules": 0.5}] * len(ANSWERS)
        judged = [Judgement(scores=found) for found in scores]
        partial.add(task_result("facts", group, judged), group_record(group, scores, "rules"))
    partial.finish()
    return tmp_path / "results.json"


def test_a_pass_of_a_failing_judge_counts_what_it_did_not_judge_and_asks_for_that_alone_once_it_works(
    result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plainly equal answers need no judge, and the task `none` has no fault."""
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)
    n, works = len(FAULTS), False
    with OpenAIServer(lambda body: says(body) if works else fails(body)) as server:
        key = "rewards.llm_judge.params.server"
        chosen = [f"{key}.urls=[{server.url}]", f"{key}.retries=1", f"{key}.timeout_s={PATIENCE_S}"]
        resolved = compose(["model.path=''", "rewards=[llm_judge]", *chosen], job="judge")
        judged, scores = summary(judge(result, resolved)[0])
        assert judged == f"{4 + n} of {4 + 4 * n} judged"
        assert scores == {"none": JUDGED} | {fault: [None, 1.0, None, None] for fault in FAULTS}
        works, before = True, len(server.requests)
        judged, scores = summary(judge(result, resolved)[0])
        assert judged == f"{4 + 4 * n} of {4 + 4 * n} judged"
        assert scores == {name: JUDGED for name in ("none", *FAULTS)}
        asked = server.requests[before:]
        assert len({json.dumps(body, sort_keys=True) for body in asked}) == 3 * n  # a slow one is asked again
        assert summary(judge(result, resolved)[0]) == (judged, scores)
        (result.parent / "services/rewards.llm_judge/verdicts.sqlite").unlink()  # what was judged is in the results too
        assert summary(judge(result, resolved)[0]) == (judged, scores)
        assert server.requests[before:] == asked


def summary(found: JudgedResult) -> tuple[str, dict[str, list[float | None]]]:
    """How many were judged, and the scores by task."""
    (benchmark,) = found.results
    scores = {task.task: [rollout.scores["llm_judge"] for rollout in task.rollouts] for task in benchmark.tasks}
    return benchmark.judged, scores
