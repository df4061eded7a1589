"""A judge that fails (fault F13): its rollouts are not judged, leave the group and are counted, and score never 0."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet import Group, OpenAIOptions, Task, user_prompt
from ramet.components.build import start_rewards
from ramet.components.services import RunServices
from ramet.openai_client import client as client_module
from ramet.plugins import load_plugins
from ramet.rollout.scoring import ScoredGroup, Scorer, WeightedReward, n_unjudged
from ramet.testing import OpenAIServer, RawReply, written_rollout

ANSWERS = ("Rome", "Paris", "the capital of France", "Bern")  # the second needs no judge
TASK = Task(id="facts/1", prompt=user_prompt("Where is the Louvre?"), answer=("Paris",), data_source="facts")


def slow(body: dict[str, Any]) -> str:
    time.sleep(0.5)
    return "VERDICT: correct"


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "500": lambda body: RawReply(status=500),
    "garbage": lambda body: RawReply(body=b"\xff{"),
    "slow": slow,
    "refuses": lambda body: "I cannot help with that.",
}


def scored(url: str, folder: Path) -> ScoredGroup:
    entry = load_plugins().get("rewards", "llm_judge")
    assert entry.config is not None
    config = entry.config(server=OpenAIOptions(urls=[url], retries=1, timeout_s=0.1))
    rewards = [WeightedReward(name="llm_judge", plugin="rewards", reward=entry.build(config))]
    rollouts = [written_rollout(TASK, [text], answer=text, id=str(i)) for i, text in enumerate(ANSWERS)]

    async def main() -> ScoredGroup:
        await start_rewards(rewards, RunServices(folder=folder, seed=1))
        scorer = Scorer(rewards)
        found = await scorer.score(Group(task=TASK, rollouts=tuple(rollouts)))
        await scorer.aclose()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_failing_judge_does_not_say_is_masked_and_counted_and_is_judged_once_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)
    with OpenAIServer(FAULTS[fault]) as server:
        found = scored(server.url, tmp_path)
    assert [rollout.reward for rollout in found.rollouts] == [None, 1.0, None, None]
    assert n_unjudged([found]) == 3 and len(found.valid) == 1
    faults = [rollout.rollout.fault for rollout in found.rollouts if rollout.rollout.fault is not None]
    assert {(one.where, one.message) for one in faults} == {("reward:llm_judge", "not judged")}
    right = "capital of France\n</given_answer>"
    with OpenAIServer(lambda body: f"VERDICT: {'in' * (right not in body['messages'][0]['content'])}correct") as server:
        again = scored(server.url, tmp_path)  # nothing of the failure was kept
        assert [rollout.reward for rollout in again.rollouts] == [0.0, 1.0, 1.0, 0.0]
        assert len(server.requests) == 3
        assert scored(server.url, tmp_path).rollouts == again.rollouts
        assert len(server.requests) == 3
