"""ARPO in a rollout worker with a scripted engine: where it forks, what it shares, what it fills."""

from __future__ import annotations

import asyncio
from typing import Any

from ramet import Group, Task, user_prompt
from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import Reply, ScriptedEngine, echo_tool, tiny_encoder
from ramet_arpo.branching import Arpo
from ramet_arpo.config import ArpoConfig


def play(entropy: Any, *, group_size: int = 6, initial: int = 2) -> Group:
    def script(task: str, path: str, turn: int) -> Reply:
        text = "<python>1</python>" if turn < 2 else "<answer>2</answer>"
        return Reply(text=text, entropies=(entropy(path, turn),))

    async def main() -> Group:
        encoder = tiny_encoder()
        worker = RolloutWorker(
            engine=ScriptedEngine(script, encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=Arpo(ArpoConfig(initial_rollouts=initial)),
            tools={"python": (echo_tool(), ToolConfig())},
            config=RolloutConfig(group_size=group_size),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=True,
        )
        [group] = await worker.run(RolloutRequest(tasks=[Task(id="t", prompt=user_prompt("?"))], step=0))
        return group

    return asyncio.run(main())


def test_forks_start_right_after_the_tool_result_where_the_entropy_rose() -> None:
    group = play(lambda path, turn: 2.0 if (path, turn) == ("1", 2) else 1.0)
    forks = [r for r in group.rollouts if r.parent]
    assert [(r.id, r.fork_turn) for r in forks] == [("1.0", 2)]
    last = forks[0].segments[forks[0].n_shared - 1]
    assert (last.kind, last.turn) == ("result", 1)
    assert [r.id for r in group.rollouts] == ["0", "1", "1.0", "2", "3", "4"]


def test_without_any_rise_the_budget_goes_to_whole_rollouts() -> None:
    group = play(lambda path, turn: 1.0)
    assert [r.id for r in group.rollouts] == ["0", "1", "2", "3", "4", "5"]


def test_with_a_rise_everywhere_forks_use_up_the_budget_in_order_of_turn_and_path() -> None:
    group = play(lambda path, turn: float(turn))
    assert [(r.id, r.fork_turn) for r in group.rollouts] == [
        ("0", None),
        ("0.0", 1),
        ("0.0.0", 2),
        ("0.1", 2),
        ("1", None),
        ("1.0", 1),
    ]
